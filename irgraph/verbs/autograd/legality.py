"""Legality of a regenerated backward: no other op may observe the change."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from irgraph.ir.effects import effects, written_by
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor, overlap
from irgraph.verbs.launch_order import declared
from irgraph.verbs.refusal import RefusedError
from irgraph.verbs.remove import check_type


def check_swap(graph: Graph, removed: Collection[Op], swap: tuple[Tensor, Tensor]) -> None:
    """Refuse a gradient that would share bytes with other tensors if the sharing is observable."""
    old, new = swap
    check_type(old, new, [])
    if any(t.buffer == old.buffer for t in graph.returned or ()):
        raise RefusedError(f"%{old.name} is returned, and would share its bytes with others")
    for buffer in (old.buffer, new.buffer):
        for _, leaf in graph.touching.get(buffer, ()):
            if leaf not in removed and any(t.buffer == buffer for t in written_by(leaf)):
                reason = f"%{old.name} would share its bytes with others, and is written in place"
                raise RefusedError(reason, [(leaf, f"{leaf.name} writes it")])


def check_unwritten(
    graph: Graph,
    removed: Collection[Op],
    span: range,
    saved: Collection[str],
    readers: Sequence[Op],
) -> None:
    """Refuse if other ops write, within a span, tensors of ``saved`` buffers that readers read."""
    read = {t.name: t for op in readers for leaf in op.leaves() for t in leaf.inputs}
    for tensor in (t for t in read.values() if t.buffer in saved):
        first_position = _first_position(graph, removed, tensor)
        for position, leaf, _ in _writes(graph, removed, tensor.buffer, [tensor]):
            if position in span and position > first_position:
                raise _write_refusal(graph, tensor, leaf)


def _first_position(graph: Graph, removed: Collection[Op], tensor: Tensor) -> int:
    """Return the position at which a tensor is defined or a removed op first uses it; else -1."""
    for position, leaf in graph.touching.get(tensor.buffer, ()):
        if any(t.name == tensor.name for t in leaf.outputs):
            return position
        if leaf in removed and any(overlap(t, tensor) for t in (*leaf.inputs, *leaf.outputs)):
            return position
    return -1


def check_passed_tensors(graph: Graph, leaves: Sequence[Op]) -> None:
    """Refuse if other ops write tensors that leaves pass to each other, or read repeatedly."""
    leaf_set = set(leaves)
    accesses_by_buffer: dict[str, list[tuple[int, Tensor, bool]]] = {}
    for leaf in leaves:
        for tensors, reads in ((leaf.inputs, True), (leaf.outputs, False)):
            for tensor in tensors:
                accesses = accesses_by_buffer.setdefault(tensor.buffer, [])
                accesses.append((graph.places[leaf], tensor, reads))
    for buffer, accesses in accesses_by_buffer.items():
        for position, leaf, written in _writes(
            graph, leaf_set, buffer, [tensor for _, tensor, _ in accesses]
        ):
            overlapping = [access for access in accesses if overlap(access[1], written)]
            later_read = next((t for i, t, reads in overlapping if i > position and reads), None)
            if later_read is not None and any(i < position for i, _, _ in overlapping):
                raise _write_refusal(graph, later_read, leaf)


def _writes(
    graph: Graph, removed: Collection[Op], buffer: str, tensors: Sequence[Tensor]
) -> Iterator[tuple[int, Op, Tensor]]:
    """Yield position, leaf and tensor of each write of remaining leaves to bytes of ``tensors``.

    An allocation also counts as a write: in a trace several tensors share one buffer.
    """
    schema_names = declared(graph)
    for position, leaf in graph.touching.get(buffer, ()):
        if leaf in removed or leaf is graph.end:
            continue
        effect = effects(leaf, schema_names)
        for tensor in (*effect.writes, *(effect.reads if effect.barrier else ())):
            if tensor.buffer == buffer and any(overlap(tensor, t) for t in tensors):
                yield position, leaf, tensor


def _write_refusal(graph: Graph, tensor: Tensor, leaf: Op) -> RefusedError:
    unsure = effects(leaf, declared(graph)).barrier
    is_, writes = ("may be", "may write") if unsure else ("is", "writes")
    reason = f"%{tensor.name} {is_} written before the backward pass reads it"
    return RefusedError(reason, [(leaf, f"{leaf.name} {writes} it")])
