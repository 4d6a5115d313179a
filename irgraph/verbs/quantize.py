"""``quantize``: tables in narrow rows, layers of integers and f8, exchanges in short types.

Packed tables and weights are parameters that are prepared before the step; the f32 ones are
removed. A lookup dequantises internally; the rounding and scaling of a layer are separate ops.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from irgraph.ir.effects import effects, is_view, written_by
from irgraph.ir.graph import Declared, Graph
from irgraph.ir.narrow.prepared import with_prepared
from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor, overlap
from irgraph.verbs.insert import outermost_call
from irgraph.verbs.launch_order import declared
from irgraph.verbs.quantizing.bags import check_lookup, is_lookup, quantize_lookup
from irgraph.verbs.quantizing.exchanges import check_exchange, is_exchange, quantize_exchange
from irgraph.verbs.quantizing.layers import (
    LayerQuantization,
    RoundedRows,
    check_layer,
    is_layer,
    quantize_layer,
    span_of,
)
from irgraph.verbs.quantizing.rewriter import QuantizeRewrite
from irgraph.verbs.refusal import RefusedError, op_refusal


class QuantizeResult(Struct, frozen=True):
    """Result of ``quantize``: the graph, the new ops, the replaced ops, and the refused ones.

    ``saved_bytes`` are the bytes that parameters shrink by.
    """

    graph: Graph
    new_ops: tuple[Op, ...]
    ops: tuple[Op, ...]
    refused: tuple[tuple[Op, RefusedError], ...] = ()
    saved_bytes: int = 0


def check_quantize(graph: Graph, op: Op, target: str, range: float = 0.0) -> None:  # noqa: A002
    """Refuse an op that is no lookup, layer or exchange, or whose parameter the step trains."""
    unit = outermost_call(graph, op)
    if is_exchange(unit):
        check_exchange(graph, unit, target)
    else:
        parameter_of(graph, unit, target)
    if range and (target != "i8" or not is_layer(unit)):
        raise op_refusal(unit, f"has no range in {target}: only rows of layers in i8 do")


def quantize(graph: Graph, ops: Sequence[Op], target: str, range: float = 0.0) -> QuantizeResult:  # noqa: A002
    """Rewrite lookups to read rows, or layers to multiply, in the format ``target``.

    With a ``range`` above zero, layers in ``i8`` round their rows in equal steps up to it (static
    quantisation); otherwise each row is scaled by its largest element. A parameter is converted
    entirely or not at all: if an op that is not among ``ops`` uses it too, no op that shares it
    changes. Check each op with ``check_quantize`` first.
    """
    units = list({unit: unit for unit in (outermost_call(graph, op) for op in ops)}.values())
    units.sort(key=lambda unit: graph.places[next(unit.leaves())])
    units_by_parameter: dict[str, list[Op]] = {}
    for unit in (unit for unit in units if not is_exchange(unit)):
        units_by_parameter.setdefault(parameter_of(graph, unit, target).tensor.name, []).append(
            unit
        )
    refusals: list[tuple[Op, RefusedError]] = []
    views: list[Op] = []
    for name, sharing_units in units_by_parameter.items():
        try:
            views += _views_of(graph, graph.by_name[name], sharing_units)
        except RefusedError as error:
            refusals += [(unit, error) for unit in sharing_units]
    refused_units = {unit for unit, _ in refusals}
    accepted = [unit for unit in units if unit not in refused_units]
    return replace(
        _rewrite(graph, accepted, views, LayerQuantization(target, range)), refused=tuple(refusals)
    )


def parameter_of(graph: Graph, unit: Op, target: str) -> Declared:
    """Return the parameter that a lookup or layer would have in the new format."""
    if is_lookup(unit):
        weight = check_lookup(graph, unit, target)
    elif is_layer(unit):
        weight = check_layer(graph, unit, target)
    else:
        raise op_refusal(
            unit,
            "is neither a lookup in one table, nor a linear layer, nor an exchange between ranks",
        )
    for declaration in graph.tensors:
        tensor = declaration.tensor
        if tensor.buffer == weight.buffer and tensor.rank == 2 and _is_part(unit, tensor, weight):
            _check_own(graph, unit, declaration)
            return declaration
    for declaration in graph.tensors:
        if declaration.tensor.buffer == weight.buffer and declaration.role == "param":
            name = declaration.label or f"%{declaration.tensor.name}"
            allowed = "a table as it is" if is_lookup(unit) else "whole rows of a weight"
            message = f"uses %{weight.name}, a part or another shape of {name}, and takes {allowed}"
            raise op_refusal(unit, message)
    raise op_refusal(unit, f"uses %{weight.name}, which is made in the step and cannot be prepared")


def _is_part(unit: Op, parameter: Tensor, weight: Tensor) -> bool:
    """Return whether a lookup uses a whole table, or a layer some rows of a weight."""
    if is_lookup(unit):
        return (
            weight.extent == parameter.extent
            and weight.shape == parameter.shape
            and weight.contiguous
        )
    return span_of(unit, parameter, weight) is not None


def _check_own(graph: Graph, unit: Op, declaration: Declared) -> None:
    name = declaration.tensor.name
    if declaration.role != "param" or not declaration.tensor.contiguous:
        raise op_refusal(unit, f"uses %{name}, which is no parameter of its own")
    if declaration.tensor.dtype != "f32":
        detail = f"which is in {declaration.tensor.dtype}: parameters in f32 are made narrower"
        raise op_refusal(unit, f"uses %{name}, {detail}")
    for _, leaf in graph.touching.get(declaration.tensor.buffer, ()):
        if any(t.buffer == declaration.tensor.buffer for t in written_by(leaf)):
            reason = f"the step changes %{name}: {leaf.name} writes it"
            raise RefusedError(reason, [(leaf, "")])


def _views_of(graph: Graph, weight: Tensor, units: Iterable[Op]) -> list[Op]:
    """Return views of a parameter that only the units read; refuse if another op reads it."""
    own_leaves = {leaf for unit in units for leaf in unit.leaves()}
    views: dict[str, Op] = {}
    for _, leaf in graph.touching.get(weight.buffer, ()):
        if leaf in own_leaves:
            continue
        if leaf is graph.end:
            raise RefusedError(f"the step returns %{weight.name}")
        if not is_view(leaf):
            name = next(t.name for t in leaf.inputs if t.buffer == weight.buffer)
            trains = "the step trains it: " if leaf.phase == "backward" else ""
            reason = f"{trains}{leaf.name} reads %{name} too, and would still need f32"
            raise RefusedError(reason, [(leaf, "")])
        views.update((tensor.name, leaf) for tensor in leaf.outputs)
    return list(views.values())


def _rewrite(
    graph: Graph, units: Sequence[Op], views: Iterable[Op], quantization: LayerQuantization
) -> QuantizeResult:
    rewrite = QuantizeRewrite(graph)
    unit_set = set(units)
    parameter_units = [unit for unit in units if not is_exchange(unit)]
    parameter_by_unit = {
        unit: parameter_of(graph, unit, quantization.format) for unit in parameter_units
    }
    rounded_rows: dict[str, RoundedRows] = {}
    declared_names = declared(graph)
    for unit in graph.walk():
        if unit not in unit_set:
            _forget(unit, rounded_rows, declared_names)
        elif is_exchange(unit):
            quantize_exchange(rewrite, unit, quantization.format)
        elif is_lookup(unit):
            quantize_lookup(rewrite, unit, parameter_by_unit[unit], quantization.format)
            rewrite.edit.remove(unit)
        else:
            quantize_layer(rewrite, unit, parameter_by_unit[unit], quantization, rounded_rows)
            rewrite.edit.remove(unit)
    for view in views:
        rewrite.edit.remove(view)
    removed = {declaration.tensor.name: declaration for declaration in parameter_by_unit.values()}
    result = _with_parameters(rewrite, removed)
    before, after = (sum(d.tensor.nbytes for d in g.tensors) for g in (graph, result))
    return QuantizeResult(result, tuple(rewrite.new_ops), tuple(units), saved_bytes=before - after)


def _forget(op: Op, rounded_rows: dict[str, RoundedRows], declared_names: frozenset[str]) -> None:
    """Forget rounded rows of tensors that an op writes."""
    if op.body or not rounded_rows:
        return
    if effects(op, declared_names).barrier:
        rounded_rows.clear()
    for written in written_by(op):
        for key in [key for key, rounded in rounded_rows.items() if overlap(rounded.data, written)]:
            del rounded_rows[key]


def _with_parameters(rewrite: QuantizeRewrite, removed: dict[str, Declared]) -> Graph:
    """Return the graph with prepared parameters in the positions of their sources."""
    prepared_by_source: dict[str, list[Declared]] = {}
    for declaration, preparation in rewrite.prepared.values():
        prepared_by_source.setdefault(preparation.source.name, []).append(declaration)
    tensors = [
        declaration
        for source in rewrite.graph.tensors
        for declaration in (
            prepared_by_source.get(source.tensor.name, ())
            if source.tensor.name in removed
            else (source,)
        )
    ]
    tensors += rewrite.constants.values()
    graph = replace(rewrite.edit.commit(), tensors=tuple(tensors))
    return with_prepared(graph, [prepared for _, prepared in rewrite.prepared.values()])
