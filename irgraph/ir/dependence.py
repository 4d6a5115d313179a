"""Dependences: pairs of operations whose order must be preserved, with the reason."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from msgspec import Struct

from irgraph.facts import facts_of
from irgraph.ir.effects import Effects, effects
from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor, overlap

EVENTS = frozenset({"sync.record", "sync.wait", "sync.event"})
"""Ops on events, which order the other ops of their stream."""

KINDS = {
    "def": "uses the name it defines",
    "raw": "read after write",
    "war": "write after read",
    "waw": "write after write",
    "random": "order of random numbers",
    "barrier": "an opaque op",
    "event": "order of events on a stream",
}
"""Kinds of dependence, with their descriptions in messages."""


class Dependence(Struct, frozen=True, gc=False):
    """The op at position ``after`` must run after the one at ``before``.

    ``kind`` is a key of ``KINDS``; ``tensor`` is the tensor that the later op accesses (``None``
    for a barrier or random order): its ``buffer`` is the one in conflict.
    """

    before: int
    after: int
    kind: str
    tensor: Tensor | None = None


@dataclass(slots=True)
class _Buffer:
    """Accesses to one buffer that a later op may still depend on."""

    writes: list[tuple[int, Tensor]] = field(default_factory=list)
    reads: list[tuple[int, Tensor]] = field(default_factory=list)


class _ExternalEffects(Struct, frozen=True):
    """The effects of an op on other ops, which are the same in every graph.

    Attributes:
        effect: its reads and writes.
        used: tensors that it uses from outside.
        inside: names that ops inside a scope define and later ops may use, such as a tensor saved
            by a call. The scope's own results come first and are not overwritten.
        streams: streams of its leaves.
        recorded: streams on which it has events.
    """

    effect: Effects
    used: tuple[Tensor, ...]
    inside: tuple[str, ...]
    streams: frozenset[str]
    recorded: frozenset[str]


EFFECTS_SLOT = "irgraph.ir.dependence"
"""Slot of an op that caches its external effects, with the declared names they hold for."""


def _external_effects(op: Op, declared: frozenset[str]) -> _ExternalEffects:
    """Return the external effects of an op, which are cached: an op never changes."""
    cached: tuple[frozenset[str], _ExternalEffects] | None = facts_of(op).get(EFFECTS_SLOT)
    if cached is not None and cached[0] == declared:
        return cached[1]
    inner = tuple(op.walk()) if op.body else ()
    leaves = [op] if not op.body else [leaf for leaf in inner if not leaf.body]
    touch = _ExternalEffects(
        effects(op, declared),
        tuple(_external_inputs(op)),
        tuple(tensor.name for inner_op in inner for tensor in inner_op.outputs),
        frozenset(leaf.stream for leaf in leaves),
        frozenset(leaf.stream for leaf in leaves if leaf.name in EVENTS),
    )
    facts_of(op)[EFFECTS_SLOT] = declared, touch
    return touch


class _Scan:
    """One pass over a sequence of ops that collects direct dependences."""

    def __init__(self) -> None:
        self.edges: list[Dependence] = []
        self.buffers: dict[str, _Buffer] = {}
        self.names: dict[str, int] = {}
        self.random = -1
        self.barrier = -1
        self.count = 0
        self.syncs: dict[str, int] = {}
        self.since: dict[str, list[int]] = {}

    def add(self, op: Op, touch: _ExternalEffects) -> None:
        """Add dependences of the next op on earlier ones, then record its accesses."""
        position, effect = self.count, touch.effect
        self.count += 1
        if effect.barrier or effect.random or self.barrier >= 0:
            self._order(position, effect)
        self._events(position, touch)
        for used in touch.used:
            if used.name in self.names:
                self.edges.append(Dependence(self.names[used.name], position, "def", used))
        for tensor in effect.reads:
            self._read(position, tensor)
        for tensor in effect.writes:
            self._write(position, tensor)
        for tensor in op.outputs:
            self.names[tensor.name] = position
        for name in touch.inside:
            self.names.setdefault(name, position)

    def _order(self, position: int, effect: Effects) -> None:
        if effect.barrier:
            # Ops before the last barrier already precede it.
            earlier = range(max(self.barrier, 0), position)
            self.edges.extend(Dependence(i, position, "barrier") for i in earlier)
            self.barrier = position
        elif self.barrier >= 0:
            self.edges.append(Dependence(self.barrier, position, "barrier"))
        if effect.random:
            if self.random >= 0:
                self.edges.append(Dependence(self.random, position, "random"))
            self.random = position

    def _events(self, position: int, touch: _ExternalEffects) -> None:
        """Add dependences that preserve the order of a stream's ops and events."""
        for stream in touch.streams:
            earlier = self.since.setdefault(stream, [])
            if stream in self.syncs:
                self.edges.append(Dependence(self.syncs[stream], position, "event"))
            if stream in touch.recorded:
                self.edges.extend(Dependence(i, position, "event") for i in earlier)
                self.syncs[stream] = position
                earlier.clear()
            else:
                earlier.append(position)

    def _read(self, position: int, tensor: Tensor) -> None:
        buffer = self.buffers.setdefault(tensor.buffer, _Buffer())
        for i, other in buffer.writes:
            if i != position and overlap(tensor, other):
                self.edges.append(Dependence(i, position, "raw", tensor))
        buffer.reads.append((position, tensor))

    def _write(self, position: int, tensor: Tensor) -> None:
        buffer = self.buffers.setdefault(tensor.buffer, _Buffer())
        for kind, accesses in (("waw", buffer.writes), ("war", buffer.reads)):
            for i, other in accesses:
                if i != position and overlap(tensor, other):
                    self.edges.append(Dependence(i, position, kind, tensor))
        # Only a tensor without gaps covers its whole extent.
        if tensor.contiguous:
            # later ops depend on the covered accesses only through this write
            start, end = tensor.extent
            buffer.writes = [(i, t) for i, t in buffer.writes if not _inside(t, start, end)]
            buffer.reads = [(i, t) for i, t in buffer.reads if not _inside(t, start, end)]
        buffer.writes.append((position, tensor))


def _inside(tensor: Tensor, start: int, end: int) -> bool:
    first, last = tensor.extent
    return start <= first and last <= end


def _external_inputs(op: Op) -> Iterable[Tensor]:
    if not op.body:
        yield from op.inputs
        return
    defined: set[str] = set()
    for inner in op.walk():
        for tensor in inner.inputs:
            if tensor.name not in defined:
                yield tensor
        defined.update(t.name for t in inner.outputs)


def dependences(ops: Sequence[Op], declared: frozenset[str] = frozenset()) -> list[Dependence]:
    """Return the direct dependences among ops in launch order, by position.

    A later op depends on an earlier one if it uses a name that the earlier one defines, if one
    writes a byte range that the other reads or writes, if both draw random numbers, or if one is
    opaque. Dependences that follow from others through a covering write are omitted.
    """
    scan = _Scan()
    for op in ops:
        scan.add(op, _external_effects(op, declared))
    return scan.edges


def shortest_chain(
    edges: Iterable[Dependence], start: int | Iterable[int], end: int
) -> list[Dependence]:
    """Return a shortest chain of dependences from ``start`` to ``end``, empty if none exists."""
    after: dict[int, list[Dependence]] = {}
    for dependence in edges:
        after.setdefault(dependence.before, []).append(dependence)
    starts = [start] if isinstance(start, int) else list(start)
    reached: dict[int, Dependence | None] = dict.fromkeys(starts)
    queue = deque(starts)
    while queue and end not in reached:
        for dependence in after.get(queue.popleft(), ()):
            if dependence.after not in reached:
                reached[dependence.after] = dependence
                queue.append(dependence.after)
    chain: list[Dependence] = []
    step = reached.get(end)
    while step is not None:
        chain.append(step)
        step = reached[step.before]
    return chain[::-1]
