"""``quantize``: tables in narrow rows, layers of integers and f8, exchanges in short types.

Packed tables and weights are parameters that are prepared before the step; the f32 ones go. A
lookup dequantises inside; a layer's rounding and scaling are ops of their own.
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
    Rounded,
    check_layer,
    is_layer,
    quantize_layer,
    span_of,
)
from irgraph.verbs.quantizing.rewriter import QuantizeRewrite
from irgraph.verbs.refusal import RefusedError, refused


class Quantized(Struct, frozen=True):
    """What was done: the graph, the new ops, the ops that became them, and those left as they are.

    ``saved`` are the bytes that parameters take less.
    """

    graph: Graph
    made: tuple[Op, ...]
    ops: tuple[Op, ...]
    refused: tuple[tuple[Op, RefusedError], ...] = ()
    saved: int = 0


def check_quantize(graph: Graph, op: Op, to: str, range: float = 0.0) -> None:  # noqa: A002
    """Refuse an op that is no lookup, layer or exchange, or whose parameter the step trains."""
    unit = outermost_call(graph, op)
    if is_exchange(unit):
        check_exchange(graph, unit, to)
    else:
        parameter_of(graph, unit, to)
    if range and (to != "i8" or not is_layer(unit)):
        raise refused(unit, f"has no range in {to}: only rows of layers in i8 do")


def quantize(graph: Graph, ops: Sequence[Op], to: str, range: float = 0.0) -> Quantized:  # noqa: A002
    """Let lookups read rows, or layers multiply, in the format ``to``.

    With a ``range`` above zero layers in ``i8`` round their rows in equal steps up to it (static
    quantisation); else each row by its own largest element.
    A parameter goes over wholly or not at all: where an op that is not among ``ops`` uses it too,
    none of those that share it changes. Check each op with ``check_quantize`` first.
    """
    units = list({id(unit): unit for unit in (outermost_call(graph, op) for op in ops)}.values())
    units.sort(key=lambda unit: graph.places[id(next(unit.leaves()))])
    shared: dict[str, list[Op]] = {}
    for unit in (each for each in units if not is_exchange(each)):
        shared.setdefault(parameter_of(graph, unit, to).tensor.name, []).append(unit)
    kept: list[tuple[Op, RefusedError]] = []
    views: list[Op] = []
    for name, sharing in shared.items():
        try:
            views += _views_of(graph, graph.by_name[name], sharing)
        except RefusedError as error:
            kept += [(unit, error) for unit in sharing]
    left = {id(unit) for unit, _ in kept}
    done = [unit for unit in units if id(unit) not in left]
    return replace(
        _rewritten(graph, done, views, LayerQuantization(to, range)), refused=tuple(kept)
    )


def parameter_of(graph: Graph, unit: Op, to: str) -> Declared:
    """Return the parameter that a lookup or layer would have in the new format."""
    if is_lookup(unit):
        used = check_lookup(graph, unit, to)
    elif is_layer(unit):
        used = check_layer(graph, unit, to)
    else:
        raise refused(
            unit,
            "is neither a lookup in one table, nor a linear layer, nor an exchange between ranks",
        )
    for known in graph.tensors:
        whole = known.tensor
        if whole.buffer == used.buffer and whole.rank == 2 and _is_part(unit, whole, used):
            _check_own(graph, unit, known)
            return known
    for known in graph.tensors:
        if known.tensor.buffer == used.buffer and known.role == "param":
            name = known.label or f"%{known.tensor.name}"
            what = "a table as it is" if is_lookup(unit) else "whole rows of a weight"
            message = f"uses %{used.name}, a part or another shape of {name}, and takes {what}"
            raise refused(unit, message)
    raise refused(unit, f"uses %{used.name}, which is made in the step and cannot be prepared")


def _is_part(unit: Op, whole: Tensor, used: Tensor) -> bool:
    """Return whether a lookup uses a whole table, or a layer some rows of a weight."""
    if is_lookup(unit):
        return used.extent == whole.extent and used.shape == whole.shape and used.contiguous
    return span_of(unit, whole, used) is not None


def _check_own(graph: Graph, unit: Op, known: Declared) -> None:
    name = known.tensor.name
    if known.role != "param" or not known.tensor.contiguous:
        raise refused(unit, f"uses %{name}, which is no parameter of its own")
    if known.tensor.dtype != "f32":
        what = f"which is in {known.tensor.dtype}: parameters in f32 are made narrower"
        raise refused(unit, f"uses %{name}, {what}")
    for _, leaf in graph.touching.get(known.tensor.buffer, ()):
        if any(t.buffer == known.tensor.buffer for t in written_by(leaf)):
            reason = f"the step changes %{name}: {leaf.name} writes it"
            raise RefusedError(reason, [(leaf, "")])


def _views_of(graph: Graph, weight: Tensor, units: Iterable[Op]) -> list[Op]:
    """Return views of a parameter that only the units read; refuse if another op reads it."""
    own = {id(leaf) for unit in units for leaf in unit.leaves()}
    views: dict[str, Op] = {}
    for _, leaf in graph.touching.get(weight.buffer, ()):
        if id(leaf) in own:
            continue
        if leaf is graph.end:
            raise RefusedError(f"the step returns %{weight.name}")
        if not is_view(leaf):
            read = next(t.name for t in leaf.inputs if t.buffer == weight.buffer)
            trains = "the step trains it: " if leaf.phase == "backward" else ""
            reason = f"{trains}{leaf.name} reads %{read} too, and would still need f32"
            raise RefusedError(reason, [(leaf, "")])
        views.update((tensor.name, leaf) for tensor in leaf.outputs)
    return list(views.values())


def _rewritten(
    graph: Graph, units: Sequence[Op], views: Iterable[Op], how: LayerQuantization
) -> Quantized:
    work = QuantizeRewrite(graph)
    chosen = {id(unit) for unit in units}
    own = [unit for unit in units if not is_exchange(unit)]
    known = {id(unit): parameter_of(graph, unit, how.to) for unit in own}
    ready: dict[str, Rounded] = {}
    named = declared(graph)
    for unit in graph.walk():
        if id(unit) not in chosen:
            _forget(unit, ready, named)
        elif is_exchange(unit):
            quantize_exchange(work, unit, how.to)
        elif is_lookup(unit):
            quantize_lookup(work, unit, known[id(unit)], how.to)
            work.edit.remove(unit)
        else:
            quantize_layer(work, unit, known[id(unit)], how, ready)
            work.edit.remove(unit)
    for view in views:
        work.edit.remove(view)
    gone = {one.tensor.name: one for one in known.values()}
    done = _with_parameters(work, gone)
    before, after = (sum(d.tensor.nbytes for d in g.tensors) for g in (graph, done))
    return Quantized(done, tuple(work.made), tuple(units), saved=before - after)


def _forget(op: Op, ready: dict[str, Rounded], named: frozenset[str]) -> None:
    """Forget rounded rows of what an op writes."""
    if op.body or not ready:
        return
    if effects(op, named).barrier:
        ready.clear()
    for written in written_by(op):
        for key in [key for key, kept in ready.items() if overlap(kept.data, written)]:
            del ready[key]


def _with_parameters(work: QuantizeRewrite, gone: dict[str, Declared]) -> Graph:
    """Return the graph with prepared parameters where those stood that they are made of."""
    by_source: dict[str, list[Declared]] = {}
    for made, about in work.prepared.values():
        by_source.setdefault(about.source.name, []).append(made)
    tensors = [
        one
        for known in work.graph.tensors
        for one in (by_source.get(known.tensor.name, ()) if known.tensor.name in gone else (known,))
    ]
    tensors += work.constants.values()
    graph = replace(work.edit.commit(), tensors=tuple(tensors))
    return with_prepared(graph, [about for _, about in work.prepared.values()])
