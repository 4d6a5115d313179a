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
from irgraph.ops.book import names_with
from irgraph.ops.operator import Trait
from irgraph.verbs.quantizing.rewriter import QuantizeRewrite
from irgraph.verbs.refusal import RefusedError, op_refusal

SINGLE = "aten.embedding"
MEAN = 1
"""Mode of a lookup that computes means of bags."""


def is_lookup(op: Op) -> bool:
    """Return whether an op looks up one table."""
    return op.name in names_with(Trait.BAGS, Trait.ROWS)


def arguments(graph: Graph, op: Op) -> Mapping[str, Value]:
    """Return an op's arguments by the names of its schema."""
    by_name = arguments_of(op, graph.schemas)
    if not by_name:
        raise op_refusal(op, "has no schema that takes these operands")
    return by_name


def check_lookup(graph: Graph, op: Op, target: str) -> Tensor:
    """Return the table of a lookup that can read rows of a format; refuse others."""
    by_name = arguments(graph, op)
    weight, indices = by_name.get("weight"), by_name.get("indices")
    if not isinstance(weight, Tensor) or not isinstance(indices, Tensor) or weight.rank != 2:
        raise op_refusal(op, "looks up no table of rows")
    if by_name.get("mode", 0) not in (0, MEAN):
        raise op_refusal(op, "takes the maximum of a bag, and lookups in narrow rows add up")
    if by_name.get("padding_idx") not in (None, -1) and op.name != SINGLE:
        raise op_refusal(op, "leaves out an index (padding_idx), and lookups in narrow rows do not")
    if not indices.contiguous:
        raise op_refusal(op, f"has indices with gaps (%{indices.name})")
    _check_results(graph, op)
    try:
        columns_of(target, int(weight.shape[1]))
    except ValueError as error:
        raise RefusedError(str(error), [(op, "")]) from None
    return weight


def _check_results(graph: Graph, op: Op) -> None:
    """Refuse a lookup if other ops read the results that it saves for its own backward pass."""
    own_leaves = set(op.leaves())
    for tensor in op.outputs[1:]:
        for _, leaf in graph.touching.get(tensor.buffer, ()):
            if leaf not in own_leaves and any(t.name == tensor.name for t in leaf.inputs):
                detail = (
                    f"{leaf.name} reads %{tensor.name}, which the lookup keeps for its gradient"
                )
                raise RefusedError(f"the step trains this table: {detail}", [(leaf, "")])


def quantize_lookup(rewrite: QuantizeRewrite, op: Op, table: Declared, target: str) -> None:
    """Replace a lookup in f32 by one in narrow rows."""
    by_name = arguments(rewrite.graph, op)
    weight, indices, out = table.tensor, by_name["indices"], op.outputs[0]
    assert isinstance(indices, Tensor)
    shape = (weight.shape[0], columns_of(target, int(weight.shape[1])))
    dtype = "u8" if FORMATS[target].packed else target
    packed = rewrite.tensor(f"{weight.name}_{target}", dtype, shape, weight)
    rows = rewrite.parameter(packed, target, ROWS, table)
    operands: list[Value] = [rows]
    if op.name == SINGLE:
        flat_indices = rewrite.as_matrix(op, indices, 1)
        output = rewrite.row_result(out, flat_indices.shape[0])
        operands += [flat_indices]
    else:
        output, flat_indices = out, indices
        operands += [flat_indices, by_name["offsets"]]
    attributes = {
        name: by_name[name]
        for name in ("per_sample_weights", "include_last_offset")
        if by_name.get(name) not in (None, False)
    }
    if target in PARTS[SCALE]:
        scale = rewrite.tensor(f"{weight.name}_{target}_scale", "f32", (1,), weight)
        attributes["scale"] = rewrite.parameter(scale, target, SCALE, table)
    name = LOOKUPS.get(target, ROWS_LOOKUP)
    if by_name.get("mode", 0) != MEAN:
        rewrite.insert(op, name, operands, replace(output, strides=None), **attributes)
        rewrite.reshape(op, output, out)
        return
    sums = rewrite.tensor(f"{output.name}_sums", output.dtype, output.shape, output)
    rewrite.insert(op, name, operands, sums, **attributes)
    mean_attributes = {k: v for k, v in attributes.items() if k == "include_last_offset"}
    rewrite.insert(
        op, MEANS, (sums, *operands[1:3]), replace(output, strides=None), **mean_attributes
    )
