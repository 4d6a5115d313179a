"""``bucket``: sums over ranks that follow one another become one, of at most so many bytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec import Struct
from msgspec.structs import replace

from irgraph.ir.edit import Edit
from irgraph.ir.effects import effects
from irgraph.ir.graph import Graph, cached_per_graph
from irgraph.ir.live_out import HOST_READS
from irgraph.ir.op import Op, tensors_in
from irgraph.ir.tensor import Tensor, overlap
from irgraph.verbs.launch_order import declared
from irgraph.verbs.refusal import refused
from irgraph.verbs.streams import RECORD, WAIT

TOGETHER = {
    "c10d.allreduce_": "c10d.allreduce_coalesced_",
    "_c10d_functional.all_reduce_": "_c10d_functional.all_reduce_coalesced_",
}
"""Sums over ranks, and the ops that make several of them at once."""


class Bucket(Struct, frozen=True):
    """Sums that become one.

    Attributes:
        members: in launch order.
        later: what must come after the one: events of its stream, waits for them, and what uses
            the sums.
    """

    members: tuple[Op, ...]
    later: tuple[Op, ...] = ()


def buckets(graph: Graph, ops: Iterable[Op], limit: int) -> list[Bucket]:
    """Return how sums over ranks fall into buckets of at most ``limit`` bytes, in launch order.

    One bucket holds sums of one element type over one process group and on one stream; a bucket
    ends where an op in between could not come before all of it or after all of it. Check each op
    with ``check_bucket`` first.
    """
    places = graph.places
    found: list[_Filling] = []
    elsewhere: set[int] = set()
    open_: dict[tuple[object, ...], _Filling] = {}
    for op in sorted(ops, key=lambda op: places[id(op)]):
        kind = _kind(op)
        # One bucket of each kind is open at a time: ranks must make their sums in the same order,
        # so a sum that does not fit closes the bucket for good, even if a smaller one would fit
        # later.
        filling = open_.get(kind)
        if filling is None or not filling.add(op, limit):
            filling = open_[kind] = _Filling(graph, op, elsewhere)
            found.append(filling)
    return [Bucket(tuple(one.members), tuple(one.later)) for one in found]


def check_bucket(op: Op) -> None:
    """Raise ``RefusedError`` where an op is no sum over ranks that can be made with others."""
    if op.name not in TOGETHER:
        known = " and ".join(TOGETHER)
        raise refused(op, f"is not an in-place sum over ranks, such as {known}")
    if op.attributes.get("sparse_indices") is not None or len(_tensors(op)) != 1:
        raise refused(op, "does not sum one dense tensor")


def bucket(graph: Graph, found: Sequence[Bucket], *, by: str = "bucket") -> tuple[Graph, list[Op]]:
    """Make one op of each bucket, where its last member stands; return those as well."""
    edit = Edit(graph)
    made = []
    for one in found:
        last, spare = one.members[-1], _spare_events(graph, one)
        new = _together(one.members, by)
        made.append(new)
        ends = [] if spare.end is None else [spare.end]
        for op in [new, *ends, *(op for op in one.later if op not in spare.ops)]:
            edit.insert(_of_call(op, last, new), before=last)
        for op in (*one.members, *one.later, *spare.ops, *ends):
            edit.remove(op)
        for op in spare.heads:
            edit.insert(_of_call(op, last, new), before=op)
            edit.remove(op)
        # The sums that are no longer recorded one by one end together: who waited for one waits for
        # all.
        for event in spare.names:
            edit.rename(event, spare.names[event])
    return edit.commit(), made


@cached_per_graph
def _leaves(graph: Graph) -> Sequence[Op]:
    return list(graph.leaves())


def _of_call(op: Op, last: Op, new: Op) -> Op:
    """Return an event of a collective's call as one of the call that takes its place."""
    mine = _is_event(op) and op.origin and op.origin == last.origin
    return replace(op, origin=new.origin) if mine else op


class _UnneededEvents(Struct, frozen=True):
    """Events that a bucket does not need: one before it, and one after it, serve all its sums.

    Attributes:
        ops: that go: records of them, and waits for them.
        heads: the event that is recorded and waited for before the last sum.
        end: what records the event after the last sum, if it is recorded.
        names: events, and those for which one waits instead.
    """

    ops: tuple[Op, ...] = ()
    heads: tuple[Op, ...] = ()
    end: Op | None = None
    names: Mapping[Tensor, Tensor] = {}


def _spare_events(graph: Graph, one: Bucket) -> _UnneededEvents:
    places, leaves = graph.places, _leaves(graph)
    stream = one.members[0].stream

    def beside(op: Op, step: int, name: str) -> Op | None:
        at = places[id(op)] + step
        found = leaves[at] if 0 <= at < len(leaves) else None
        mine = found is not None and (found.name, found.stream) == (name, stream)
        return found if mine else None

    heads = [beside(op, -1, WAIT) for op in one.members]
    spare = [*_heads(graph, one, [head for head in heads if head is not None])]
    last = heads[-1]
    record = _records(graph).get(last.inputs[0].name) if last is not None else None
    # A record that others wait for as well stays where it is: moving it down would make them wait
    # longer.
    alone = record is not None and len(_waits(graph).get(record.outputs[0].name, ())) == 1
    kept = tuple(op for op in (last, record if alone else None) if op is not None)
    tails = [beside(op, 1, RECORD) for op in one.members]
    end, others = tails[-1], [tail for tail in tails[:-1] if tail is not None]
    if end is None:
        return _UnneededEvents(tuple(spare), kept)
    (event,) = end.outputs
    names = {tail.outputs[0]: event for tail in others}
    waits = [op for t in (event, *names) for op in _waits(graph).get(t.name, ())]
    # The first wait of each stream is kept. Those that move behind the bucket come first in this
    # order, as the others stand before its sum and would wait for an event not yet recorded.
    waits.sort(key=lambda op: (op not in one.later, places[id(op)]))
    waiting = [op.stream for op in waits]
    spare += [op for i, op in enumerate(waits) if op.stream in waiting[:i]]
    return _UnneededEvents((*spare, *others), kept, end, names)


def _heads(graph: Graph, one: Bucket, waits: Sequence[Op]) -> Iterable[Op]:
    """Yield the events before a bucket, recorded and waited for, that the last of them stands for.

    None are spare where the stream has other work in between.
    """
    places, leaves, makers = graph.places, _leaves(graph), _records(graph)
    stream, members = one.members[0].stream, set(map(id, one.members))
    start, end = places[id(one.members[0])], places[id(one.members[-1])]
    others = (op for op in leaves[start:end] if op.stream == stream and id(op) not in members)
    if len(waits) < len(one.members) or not all(map(_is_event, others)):
        return
    records = [makers.get(op.inputs[0].name) for op in waits]
    for wait, record in zip(waits[:-1], records, strict=False):
        last = records[-1]
        if record is None or last is None or record.stream != last.stream:
            continue
        if record is not last and len(_waits(graph).get(record.outputs[0].name, ())) == 1:
            yield from (wait, record)


@cached_per_graph
def _waits(graph: Graph) -> Mapping[str, Sequence[Op]]:
    """Return what uses events, by their names."""
    found: dict[str, list[Op]] = {}
    for leaf in _leaves(graph):
        for tensor in leaf.inputs if leaf.name.startswith("sync.") else ():
            found.setdefault(tensor.name, []).append(leaf)
    return found


@cached_per_graph
def _records(graph: Graph) -> Mapping[str, Op]:
    """Return what records events, by their names."""
    return {leaf.outputs[0].name: leaf for leaf in _leaves(graph) if leaf.name == RECORD}


def _together(members: Sequence[Op], by: str) -> Op:
    last = members[-1]
    tensors = tuple(t for op in members for t in _tensors(op))
    attributes = {k: v for k, v in last.attributes.items() if k != "sparse_indices"}
    modules = {op.module for op in members}
    return replace(
        last,
        name=TOGETHER[last.name],
        operands=(tensors,),
        results=(),
        attributes=attributes,
        written=frozenset(t.name for t in tensors),
        module=last.module if len(modules) == 1 else "",
        origin=f"{by}: {len(members)} x {last.name}",
        notes={},
    )


def _tensors(op: Op) -> list[Tensor]:
    return list(tensors_in(op.operands[:1]))


def _kind(op: Op) -> tuple[object, ...]:
    (tensor,) = _tensors(op)
    how = tuple(sorted((key, str(value)) for key, value in op.attributes.items()))
    return op.name, how, tensor.dtype, tensor.device, op.stream, op.thread


BLOCKING = ("sync.event", "sync.stream", "sync.device", "c10d.barrier", *HOST_READS)
"""Ops by which the host waits: what they wait for does not change."""


@dataclass
class _Filling:
    """A bucket that is being filled.

    Attributes:
        graph: where the sums stand.
        first: the first of them.
        elsewhere: by ``id``, what comes later already, after this bucket or another.
        members: those that are in it.
        later: what must come after all of them.
    """

    graph: Graph
    first: Op
    elsewhere: set[int]
    members: list[Op] = field(default_factory=list)
    later: list[Op] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.declared = declared(self.graph)
        self.summed: dict[str, list[Tensor]] = {}
        self.read: dict[str, list[Tensor]] = {}
        self.names: set[str] = set()
        self.nbytes = 0
        self._take(self.first)

    def _take(self, op: Op) -> None:
        self.members.append(op)
        for tensor in _tensors(op):
            self.summed.setdefault(tensor.buffer, []).append(tensor)
            self.nbytes += tensor.nbytes

    def add(self, op: Op, limit: int) -> bool:
        """Take one more sum in, if there is room and everything in between can make way."""
        (tensor,) = _tensors(op)
        # ``_passes`` puts ops off as it goes; all of that is undone if it ends at one that cannot
        # move.
        kept = [*self.later], {**self.summed}, {**self.read}, {*self.names}
        room = self.nbytes + tensor.nbytes <= limit
        if not room or not self._passes(op) or _meets([tensor], self.summed, self.read):
            self.later, self.summed, self.read, self.names = kept
            return False
        self._take(op)
        self.elsewhere.update(map(id, self.later))
        return True

    def _passes(self, op: Op) -> bool:
        """Sort what lies before a sum and behind the last one: it stays, or comes later."""
        places, paths = self.graph.places, self.graph.paths
        for leaf in _leaves(self.graph)[places[id(self.members[-1])] + 1 : places[id(op)]]:
            if self._stays(leaf):
                continue
            # An op inside of a module's label or an autograd node would leave it by being put off.
            nested = len(paths[id(leaf)]) > 1 and not _is_event(leaf)
            held = id(leaf) in self.elsewhere or effects(leaf, self.declared).barrier
            if leaf.name in BLOCKING or nested or held:
                return False
            self._put_off(leaf)
        return len(paths[id(op)]) == 1 or all(map(_is_event, self.later))

    def _stays(self, leaf: Op) -> bool:
        """Return whether an op may run before the sums, as it does not see them."""
        if leaf.name == RECORD:
            return leaf.stream != self.first.stream
        if leaf.name in BLOCKING or any(t.name in self.names for t in leaf.inputs):
            return False
        touched = effects(leaf, self.declared)
        if touched.barrier:
            return False
        both = (*touched.reads, *touched.writes)
        return not (_meets(both, self.summed) or _meets(touched.writes, self.read))

    def _put_off(self, leaf: Op) -> None:
        """Let an op come after the sums, with what depends on it."""
        self.later.append(leaf)
        self.names.update(t.name for t in leaf.outputs)
        touched = effects(leaf, self.declared)
        for side, held in ((touched.writes, self.summed), (touched.reads, self.read)):
            for tensor in side:
                held[tensor.buffer] = [*held.get(tensor.buffer, ()), tensor]


def _is_event(op: Op) -> bool:
    return op.name in (RECORD, WAIT)


def _meets(tensors: Iterable[Tensor], *held: Mapping[str, Sequence[Tensor]]) -> bool:
    """Return whether some tensors share bytes with others."""
    return any(
        overlap(t, other) for t in tensors for side in held for other in side.get(t.buffer, ())
    )
