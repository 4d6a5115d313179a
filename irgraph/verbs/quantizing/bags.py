"""Lookups in a table of f32 that become lookups in narrow rows."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from irgraph.ir.graph import Declared, Graph
from irgraph.ir.narrow.ops import LOOKUPS, MEANS, ROWS_LOOKUP
from irgraph.ir.narrow.prepared import PARTS, ROWS, SCALE
from irgraph.ir.narrow.rows import FORMATS, columns_of
from irgraph.ir.op import Op, Value
from irgraph.ir.schema import arguments_of
from irgraph.ir.tensor import Tensor
from irgraph.verbs.quantizing.rewriter import QuantizeRewrite
from irgraph.verbs.refusal import RefusedError, op_refusal

BAGS = ("aten.embedding_bag", "aten._embedding_bag", "aten._embedding_bag_forward_only")
SINGLE = "aten.embedding"
MEAN = 1
"""The mode of a lookup that takes means of bags."""


def is_lookup(op: Op) -> bool:
    """Return whether an op looks up one table."""
    return op.name in (*BAGS, SINGLE)


def arguments(graph: Graph, op: Op) -> Mapping[str, Value]:
    """Return an op's arguments by the names of its schema."""
    given = arguments_of(op, graph.schemas)
    if not given:
        raise op_refusal(op, "has no schema that takes these operands")
    return given


def check_lookup(graph: Graph, op: Op, to: str) -> Tensor:
    """Return the table of a lookup that can read rows of a format; refuse others."""
    given = arguments(graph, op)
    weight, indices = given.get("weight"), given.get("indices")
    if not isinstance(weight, Tensor) or not isinstance(indices, Tensor) or weight.rank != 2:
        raise op_refusal(op, "looks up no table of rows")
    if given.get("mode", 0) not in (0, MEAN):
        raise op_refusal(op, "takes the maximum of a bag, and lookups in narrow rows add up")
    if given.get("padding_idx") not in (None, -1) and op.name != SINGLE:
        raise op_refusal(op, "leaves out an index (padding_idx), and lookups in narrow rows do not")
    if not indices.contiguous:
        raise op_refusal(op, f"has indices with gaps (%{indices.name})")
    _check_results(graph, op)
    try:
        columns_of(to, int(weight.shape[1]))
    except ValueError as error:
        raise RefusedError(str(error), [(op, "")]) from None
    return weight


def _check_results(graph: Graph, op: Op) -> None:
    """Refuse a lookup whose notes for its own backward pass somebody reads."""
    own = {id(leaf) for leaf in op.leaves()}
    for tensor in op.outputs[1:]:
        for _, leaf in graph.touching.get(tensor.buffer, ()):
            if id(leaf) not in own and any(t.name == tensor.name for t in leaf.inputs):
                what = f"{leaf.name} reads %{tensor.name}, which the lookup keeps for its gradient"
                raise RefusedError(f"the step trains this table: {what}", [(leaf, "")])


def quantize_lookup(work: QuantizeRewrite, op: Op, table: Declared, to: str) -> None:
    """Put the lookup in narrow rows in the place of one in f32."""
    given = arguments(work.graph, op)
    weight, indices, out = table.tensor, given["indices"], op.outputs[0]
    assert isinstance(indices, Tensor)
    shape = (weight.shape[0], columns_of(to, int(weight.shape[1])))
    kept = "u8" if FORMATS[to].packed else to
    named = work.tensor(f"{weight.name}_{to}", kept, shape, weight)
    rows = work.parameter(named, to, ROWS, table)
    operands: list[Value] = [rows]
    if op.name == SINGLE:
        looked = work.flat(op, indices, 1)
        made = work.result(out, looked.shape[0])
        operands += [looked]
    else:
        made, looked = out, indices
        operands += [looked, given["offsets"]]
    more = {
        name: given[name]
        for name in ("per_sample_weights", "include_last_offset")
        if given.get(name) not in (None, False)
    }
    if to in PARTS[SCALE]:
        one = work.tensor(f"{weight.name}_{to}_scale", "f32", (1,), weight)
        more["scale"] = work.parameter(one, to, SCALE, table)
    name = LOOKUPS.get(to, ROWS_LOOKUP)
    if given.get("mode", 0) != MEAN:
        work.put(op, name, operands, replace(made, strides=None), **more)
        work.shaped(op, made, out)
        return
    sums = work.tensor(f"{made.name}_sums", made.dtype, made.shape, made)
    work.put(op, name, operands, sums, **more)
    closed = {k: v for k, v in more.items() if k == "include_last_offset"}
    work.put(op, MEANS, (sums, *operands[1:3]), replace(made, strides=None), **closed)
