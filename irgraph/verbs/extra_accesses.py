"""Accesses of new ops to bytes that the replaced ops did not access, and their observers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from irgraph.ir.effects import effects
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor, overlap
from irgraph.ops.live_out import live_out
from irgraph.verbs.launch_order import barriers, declared
from irgraph.verbs.refusal import RefusedError

Access = tuple[Op, Tensor]

LIVE_OUT_TEXT = {
    "returned": "is returned",
    "output": "may be returned",
    "gradient": "is a parameter's gradient",
}
"""Kinds of live-out tensors that a step itself makes, with their text in messages."""


@dataclass
class ExtraAccesses:
    """Reads and writes of new ops in addition to those of the ops that they replace."""

    graph: Graph
    new: Sequence[Op]
    members: Sequence[Op] = ()
    reads: list[Access] = field(default_factory=list)
    writes: list[Access] = field(default_factory=list)

    def __post_init__(self) -> None:
        declared_names = declared(self.graph)
        member_effects = [effects(member, declared_names) for member in self.members]
        member_writes = _by_buffer(t for effect in member_effects for t in effect.writes)
        member_accesses = _by_buffer(
            t for effect in member_effects for t in (*effect.reads, *effect.writes)
        )
        self.removed_ops = {leaf for member in self.members for leaf in member.leaves()}
        own_buffers: set[str] = set()
        for op in self.new:
            effect = effects(op, declared_names)
            own_buffers.update({t.buffer for t in op.outputs} - {t.buffer for t in op.inputs})
            for covered, tensors, extra in (
                (member_accesses, effect.reads, self.reads),
                (member_writes, effect.writes, self.writes),
            ):
                outside_tensors = (t for t in tensors if t.buffer not in own_buffers)
                extra += [(op, t) for t in outside_tensors if not _covers(covered, t)]

    def check(self, first: int, last: int) -> None:
        """Refuse accesses that others could observe, of new ops between two positions of leaves.

        No op may access newly written bytes, from the first position on or after the step; newly
        read bytes must not be written in between. Streams are checked at the end of a script.
        """
        for _, tensor in self.writes:
            self._check_live_out(tensor)
        for _, tensor in self.writes:
            for position, leaf in (*self._remaining_leaves(tensor), *barriers(self.graph)):
                if position >= first and leaf not in self.removed_ops:
                    reason = f"%{tensor.name} would be written, and is used elsewhere"
                    raise RefusedError(reason, [(leaf, f"{leaf.name} uses it")])
        declared_names = declared(self.graph)
        for _, tensor in self.reads:
            for position, leaf in self._remaining_leaves(tensor):
                effect = effects(leaf, declared_names)
                writes = effect.barrier or any(overlap(t, tensor) for t in effect.writes)
                if writes and first <= position <= last:
                    reason = f"%{tensor.name} would be read, and is written in between"
                    raise RefusedError(reason, [(leaf, f"{leaf.name} writes it")])

    def _remaining_leaves(self, tensor: Tensor) -> Iterator[tuple[int, Op]]:
        """Yield the remaining leaves of the graph that access bytes of a tensor."""
        for position, leaf in self.graph.touching.get(tensor.buffer, ()):
            tensors = (*leaf.inputs, *leaf.outputs)
            if leaf not in self.removed_ops and any(overlap(t, tensor) for t in tensors):
                yield position, leaf

    def _check_live_out(self, tensor: Tensor) -> None:
        graph, kinds = self.graph, live_out(self.graph)
        accesses = graph.touching.get(tensor.buffer, ())
        tensors = (t for _, leaf in accesses for t in (*leaf.inputs, *leaf.outputs))
        names = {t.name for t in tensors if overlap(t, tensor)}
        live_kinds = {kinds[name] for name in names & kinds.keys()} & LIVE_OUT_TEXT.keys()
        if live_kinds or tensor.buffer in graph.lasting:
            text = LIVE_OUT_TEXT[min(live_kinds)] if live_kinds else "outlives the step"
            raise RefusedError(f"%{tensor.name} would be written, and {text}")


def check_extra_accesses(graph: Graph, members: Sequence[Op], new: Sequence[Op]) -> None:
    """Refuse new ops that read or write more than ``members`` if other ops could observe it."""
    extra = ExtraAccesses(graph, new, members)
    if extra.reads or extra.writes:
        positions = [graph.places[leaf] for member in members for leaf in member.leaves()]
        extra.check(min(positions), max(positions))


def _by_buffer(tensors: Iterable[Tensor]) -> Mapping[str, Mapping[str, Tensor]]:
    tensors_by_buffer: dict[str, dict[str, Tensor]] = {}
    for tensor in tensors:
        tensors_by_buffer.setdefault(tensor.buffer, {})[tensor.name] = tensor
    return tensors_by_buffer


def _covers(tensors_by_buffer: Mapping[str, Mapping[str, Tensor]], tensor: Tensor) -> bool:
    """Return whether a tensor is one of these, or is within one that has no gaps."""
    candidates = tensors_by_buffer.get(tensor.buffer, {})
    start, end = tensor.extent
    extents = (other.extent for other in candidates.values() if other.contiguous)
    return tensor.name in candidates or any(a <= start and end <= b for a, b in extents)
