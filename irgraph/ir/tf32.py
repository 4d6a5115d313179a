"""Matrix products in tf32: f32 in memory, rounded to 10 bits of mantissa inside the matrix units.

No tensor changes its type, so that such a product is an op of its own: ``irgraph.mm_tf32`` computes
what ``aten.mm`` does, from factors that it rounds as it reads them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec.structs import replace

from irgraph.ir.edit import Edit, without_times
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op

PRODUCTS = "tf32"
"""Setting of a model: its program lets the units multiply float32 in tf32, wherever it runs."""

CONVOLUTIONS = "tf32_convolutions"
"""Setting of a model: whether its program lets cuDNN do so."""

FIRST_FACTORS = {"linear": 0, "addmm": 1, "mm": 0, "bmm": 0, "baddbmm": 1}
"""Torch's products that have such a form, and where the first factor stands; the other follows."""

TF32 = {f"aten.{name}": f"irgraph.{name}_tf32" for name in FIRST_FACTORS}
"""Torch's products by name, and what they are called in tf32."""

PLAIN = {form: name for name, form in TF32.items()}
"""Products in tf32, and the torch products that they stand for."""


def plain_name(name: str) -> str:
    """Return torch's name of an op: in tf32 it is the same call under another setting."""
    return PLAIN.get(name, name)


def factors(op: Op) -> tuple[int, int]:
    """Return which operands a product in tf32 rounds."""
    first = FIRST_FACTORS[op.base.removesuffix("_tf32")]
    return first, first + 1


def products_in_tf32(graph: Graph) -> list[Op]:
    """Return the outermost products in tf32, in launch order."""
    return [product for op in graph.ops for product in _topmost(op, PLAIN)]


def products_at(graph: Graph, op: Op, names: Mapping[str, str]) -> list[Op]:
    """Return the outermost products of some names that an op is part of, or that it calls."""
    body = graph.ops
    for position in graph.paths.get(id(op), ()):
        if body[position].name in names:
            return [body[position]]
        body = body[position].body
    return list(_topmost(op, names))


def _topmost(op: Op, names: Mapping[str, str]) -> Iterator[Op]:
    if op.name in names:
        yield op
        return
    for inner in op.body:
        yield from _topmost(inner, names)


def rename_products(
    graph: Graph, ops: list[Op], names: Mapping[str, str]
) -> tuple[Graph, tuple[Op, ...]]:
    """Give products other names, with those that they call; what was measured is forgotten."""
    edit = Edit(graph)
    new_ops = []
    for op in {id(op): op for op in ops}.values():
        new_ops.append(_rename_op(op, names))
        edit.insert(new_ops[-1], before=op)
        edit.remove(op)
    return edit.commit(), tuple(new_ops)


def _rename_op(op: Op, names: Mapping[str, str]) -> Op:
    body = tuple(_rename_op(inner, names) for inner in op.body)
    if op.name not in names:
        return replace(op, body=body) if body else op
    return replace(op, name=names[op.name], notes=without_times(op.notes), body=body)
