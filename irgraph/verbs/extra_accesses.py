"""Whether new ops touch bytes that the ops which they replace left alone, and who would see it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from irgraph.ir.effects import effects
from irgraph.ir.graph import Graph
from irgraph.ir.live_out import live_out
from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor, overlap
from irgraph.verbs.launch_order import barriers, declared
from irgraph.verbs.refusal import RefusedError

Touch = tuple[Op, Tensor]

KEPT = {
    "returned": "is returned",
    "output": "may be returned",
    "gradient": "is a parameter's gradient",
}
"""What keeps a tensor that the step itself makes, as ``leaving`` calls it, and as messages do."""


@dataclass
class Gains:
    """What new ops read and write beside what the ops that they replace did, if any."""

    graph: Graph
    new: Sequence[Op]
    members: Sequence[Op] = ()
    reads: list[Touch] = field(default_factory=list)
    writes: list[Touch] = field(default_factory=list)

    def __post_init__(self) -> None:
        brings = declared(self.graph)
        had = [effects(member, brings) for member in self.members]
        written = _by_buffer(t for effect in had for t in effect.writes)
        read = _by_buffer(t for effect in had for t in (*effect.reads, *effect.writes))
        self.gone = {id(leaf) for member in self.members for leaf in member.leaves()}
        own: set[str] = set()
        for op in self.new:
            effect = effects(op, brings)
            own.update({t.buffer for t in op.outputs} - {t.buffer for t in op.inputs})
            for known, touched, gained in (
                (read, effect.reads, self.reads),
                (written, effect.writes, self.writes),
            ):
                outer = (t for t in touched if t.buffer not in own)
                gained += [(op, t) for t in outer if not _covers(known, t)]

    def check(self, first: int, last: int) -> None:
        """Refuse what others could tell, of new ops that stand among the leaves at these places.

        Nobody may touch what is written anew, from the first place on or after the step; what is
        read anew must not be written in between. Streams are checked where a script ends.
        """
        for _, tensor in self.writes:
            self._check_kept(tensor)
        for _, tensor in self.writes:
            for place, leaf in (*self._others(tensor), *barriers(self.graph)):
                if place >= first and id(leaf) not in self.gone:
                    reason = f"%{tensor.name} would be written, and is used elsewhere"
                    raise RefusedError(reason, [(leaf, f"{leaf.name} uses it")])
        brings = declared(self.graph)
        for _, tensor in self.reads:
            for place, leaf in self._others(tensor):
                effect = effects(leaf, brings)
                writes = effect.barrier or any(overlap(t, tensor) for t in effect.writes)
                if writes and first <= place <= last:
                    reason = f"%{tensor.name} would be read, and is written in between"
                    raise RefusedError(reason, [(leaf, f"{leaf.name} writes it")])

    def _others(self, tensor: Tensor) -> Iterator[tuple[int, Op]]:
        """Yield the leaves of the graph that stay and touch bytes of a tensor."""
        for place, leaf in self.graph.touching.get(tensor.buffer, ()):
            touched = (*leaf.inputs, *leaf.outputs)
            if id(leaf) not in self.gone and any(overlap(t, tensor) for t in touched):
                yield place, leaf

    def _check_kept(self, tensor: Tensor) -> None:
        graph, kinds = self.graph, live_out(self.graph)
        near = graph.touching.get(tensor.buffer, ())
        touched = (t for _, leaf in near for t in (*leaf.inputs, *leaf.outputs))
        names = {t.name for t in touched if overlap(t, tensor)}
        kept = {kinds[name] for name in names & kinds.keys()} & KEPT.keys()
        if kept or tensor.buffer in graph.lasting:
            what = KEPT[min(kept)] if kept else "outlives the step"
            raise RefusedError(f"%{tensor.name} would be written, and {what}")


def check_gains(graph: Graph, members: Sequence[Op], new: Sequence[Op]) -> None:
    """Refuse new ops that read or write more than ``members`` where somebody could tell."""
    gains = Gains(graph, new, members)
    if gains.reads or gains.writes:
        places = [graph.places[id(leaf)] for member in members for leaf in member.leaves()]
        gains.check(min(places), max(places))


def _by_buffer(tensors: Iterable[Tensor]) -> Mapping[str, Mapping[str, Tensor]]:
    found: dict[str, dict[str, Tensor]] = {}
    for tensor in tensors:
        found.setdefault(tensor.buffer, {})[tensor.name] = tensor
    return found


def _covers(known: Mapping[str, Mapping[str, Tensor]], tensor: Tensor) -> bool:
    """Return whether a tensor is one of these, or lies within one that has no gaps."""
    near = known.get(tensor.buffer, {})
    start, end = tensor.extent
    extents = (other.extent for other in near.values() if other.contiguous)
    return tensor.name in near or any(a <= start and end <= b for a, b in extents)
