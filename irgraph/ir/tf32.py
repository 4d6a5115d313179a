"""Matrix products in tf32: f32 in memory, rounded to 10 bits of mantissa inside the matrix units.

No tensor changes its type, therefore such a product is a separate op: ``irgraph.mm_tf32`` computes
the product of ``aten.mm`` from factors that it rounds as it reads them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec.structs import replace

from irgraph.ir.edit import Edit, without_times
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op

PRODUCTS = "tf32"
"""Setting of a model: whether its program allows products of float32 in tf32, on any device."""

CONVOLUTIONS = "tf32_convolutions"
"""Setting of a model: whether its program allows cuDNN to multiply float32 in tf32."""

FIRST_FACTORS = {"linear": 0, "addmm": 1, "mm": 0, "bmm": 0, "baddbmm": 1}
"""Operand index of the first factor in torch's products with a tf32 form; the second follows."""

TF32 = {f"aten.{name}": f"irgraph.{name}_tf32" for name in FIRST_FACTORS}
"""Names of products in tf32, by torch's names."""

PLAIN = {form: name for name, form in TF32.items()}
"""Torch's names of products, by their names in tf32."""


def plain_name(name: str) -> str:
    """Return torch's name of an op: a product in tf32 is torch's call under another setting."""
    return PLAIN.get(name, name)


def factors(op: Op) -> tuple[int, int]:
    """Return the indices of the operands that a product in tf32 rounds."""
    first = FIRST_FACTORS[op.base.removesuffix("_tf32")]
    return first, first + 1


def products_in_tf32(graph: Graph) -> list[Op]:
    """Return the outermost products in tf32, in launch order."""
    return [product for op in graph.ops for product in _topmost(op, PLAIN)]


def products_at(graph: Graph, op: Op, names: Mapping[str, str]) -> list[Op]:
    """Return the outermost ops with one of ``names`` that contain an op, or that it calls."""
    body = graph.ops
    for position in graph.paths.get(op, ()):
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
    """Rename products and the products that they call, without their measured times.

    Returns the new graph and the renamed products.
    """
    edit = Edit(graph)
    new_ops = []
    for op in dict.fromkeys(ops):
        new_ops.append(_rename_op(op, names))
        edit.insert(new_ops[-1], before=op)
        edit.remove(op)
    return edit.commit(), tuple(new_ops)


def _rename_op(op: Op, names: Mapping[str, str]) -> Op:
    body = tuple(_rename_op(inner, names) for inner in op.body)
    if op.name not in names:
        return replace(op, body=body) if body else op
    return replace(op, name=names[op.name], notes=without_times(op.notes), body=body)
