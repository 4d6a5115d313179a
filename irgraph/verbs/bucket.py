"""``bucket``: consecutive sums over ranks become one sum, of at most a given number of bytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec import Struct
from msgspec.structs import replace

from irgraph.ir.edit import Edit
from irgraph.ir.effects import effects
from irgraph.ir.graph import Graph, cached_per_graph
from irgraph.ir.op import Op, tensors_in
from irgraph.ir.tensor import Tensor, overlap
from irgraph.ops.book import collectives
from irgraph.ops.live_out import blocks_host
from irgraph.ops.operator import CollectiveKind
from irgraph.verbs.launch_order import declared
from irgraph.verbs.refusal import op_refusal
from irgraph.verbs.streams import RECORD, WAIT

COALESCED = "_coalesced_"
"""End of the names of ops that compute several sums over ranks in place."""


def coalesced_name(name: str) -> str:
    """Return the op that computes several of an op's sums in place, ``""`` if there is none."""
    coalesced = f"{name.removesuffix('_')}{COALESCED}"
    names = collectives(CollectiveKind.ALL_REDUCE)
    return coalesced if name in names and name.endswith("_") and coalesced in names else ""


class Bucket(Struct, frozen=True):
    """Sums that become one.

    Attributes:
        members: in launch order.
        later: ops that must run after the merged sum: events of its stream, waits for them, and
            ops that use the sums.
    """

    members: tuple[Op, ...]
    later: tuple[Op, ...] = ()


def buckets(graph: Graph, ops: Iterable[Op], limit: int) -> list[Bucket]:
    """Return buckets of sums over ranks of at most ``limit`` bytes each, in launch order.

    One bucket holds sums of one element type over one process group and on one stream; a bucket
    ends if an op in between could run neither before all of it nor after all of it. Check each op
    with ``check_bucket`` first.
    """
    places = graph.places
    fillings: list[_OpenBucket] = []
    deferred_ops: set[Op] = set()
    filling_by_kind: dict[tuple[object, ...], _OpenBucket] = {}
    for op in sorted(ops, key=lambda op: places[op]):
        kind = _kind(op)
        # One bucket of each kind is open at a time: ranks must make their sums in the same order,
        # so a sum that does not fit closes the bucket for good, even if a smaller one would fit
        # later.
        filling = filling_by_kind.get(kind)
        if filling is None or not filling.add(op, limit):
            filling = filling_by_kind[kind] = _OpenBucket(graph, op, deferred_ops)
            fillings.append(filling)
    return [Bucket(tuple(filling.members), tuple(filling.later)) for filling in fillings]


def check_bucket(op: Op) -> None:
    """Raise ``RefusedError`` unless an op is a sum over ranks that can be merged with others."""
    if not coalesced_name(op.name):
        sums = filter(coalesced_name, collectives(CollectiveKind.ALL_REDUCE))
        names = " and ".join(sums)
        raise op_refusal(op, f"is not an in-place sum over ranks, such as {names}")
    if op.attributes.get("sparse_indices") is not None or len(_tensors(op)) != 1:
        raise op_refusal(op, "does not sum one dense tensor")


def bucket(
    graph: Graph, groups: Sequence[Bucket], *, caller: str = "bucket"
) -> tuple[Graph, list[Op]]:
    """Merge each bucket into one op, at its last member; return these ops as well."""
    edit = Edit(graph)
    new_ops = []
    for group in groups:
        last, unneeded = group.members[-1], _unneeded_events(graph, group)
        new = _coalesced_sum(group.members, caller)
        new_ops.append(new)
        records = [] if unneeded.end is None else [unneeded.end]
        for op in [new, *records, *(op for op in group.later if op not in unneeded.ops)]:
            edit.insert(_of_call(op, last, new), before=last)
        for op in (*group.members, *group.later, *unneeded.ops, *records):
            edit.remove(op)
        for op in unneeded.heads:
            edit.insert(_of_call(op, last, new), before=op)
            edit.remove(op)
        # The sums that are no longer recorded separately end together: ops that waited for one
        # wait for all.
        for event in unneeded.names:
            edit.rename(event, unneeded.names[event])
    return edit.commit(), new_ops


@cached_per_graph
def _leaves(graph: Graph) -> Sequence[Op]:
    return list(graph.leaves())


def _of_call(op: Op, last: Op, new: Op) -> Op:
    """Return an event of a collective's call as an event of the call that replaces it."""
    is_own_event = _is_event(op) and op.origin and op.origin == last.origin
    return replace(op, origin=new.origin) if is_own_event else op


class _UnneededEvents(Struct, frozen=True):
    """Events that a bucket does not need: one before it, and one after it, serve all its sums.

    Attributes:
        ops: records and waits to remove.
        heads: the event that is recorded and waited for before the last sum.
        end: the record of the event after the last sum, if it is recorded.
        names: removed events, each with the event to wait for instead.
    """

    ops: tuple[Op, ...] = ()
    heads: tuple[Op, ...] = ()
    end: Op | None = None
    names: Mapping[Tensor, Tensor] = {}


def _unneeded_events(graph: Graph, group: Bucket) -> _UnneededEvents:
    places, leaves = graph.places, _leaves(graph)
    stream = group.members[0].stream

    def neighbour(op: Op, step: int, name: str) -> Op | None:
        position = places[op] + step
        leaf = leaves[position] if 0 <= position < len(leaves) else None
        is_event = leaf is not None and (leaf.name, leaf.stream) == (name, stream)
        return leaf if is_event else None

    heads = [neighbour(op, -1, WAIT) for op in group.members]
    unneeded = [*_heads(graph, group, [head for head in heads if head is not None])]
    last = heads[-1]
    record = _records(graph).get(last.inputs[0].name) if last is not None else None
    # A record that others wait for as well is not moved: moving it down would make them wait
    # longer.
    is_only_wait = record is not None and len(_waits(graph).get(record.outputs[0].name, ())) == 1
    head_ops = tuple(op for op in (last, record if is_only_wait else None) if op is not None)
    tails = [neighbour(op, 1, RECORD) for op in group.members]
    end, other_tails = tails[-1], [tail for tail in tails[:-1] if tail is not None]
    if end is None:
        return _UnneededEvents(tuple(unneeded), head_ops)
    (event,) = end.outputs
    names = {tail.outputs[0]: event for tail in other_tails}
    waits = [op for t in (event, *names) for op in _waits(graph).get(t.name, ())]
    # The first wait of each stream is preserved. Waits that move after the bucket come first in
    # this order, as the others precede its sum and would wait for an event not yet recorded.
    waits.sort(key=lambda op: (op not in group.later, places[op]))
    waiting_streams = [op.stream for op in waits]
    unneeded += [op for i, op in enumerate(waits) if op.stream in waiting_streams[:i]]
    return _UnneededEvents((*unneeded, *other_tails), head_ops, end, names)


def _heads(graph: Graph, group: Bucket, waits: Sequence[Op]) -> Iterable[Op]:
    """Yield the records and waits before a bucket that its last record and wait replace.

    None can be removed if the stream has other work in between.
    """
    places, leaves, record_by_event = graph.places, _leaves(graph), _records(graph)
    stream, members = group.members[0].stream, set(group.members)
    start, end = places[group.members[0]], places[group.members[-1]]
    work_between = (op for op in leaves[start:end] if op.stream == stream and op not in members)
    if len(waits) < len(group.members) or not all(map(_is_event, work_between)):
        return
    records = [record_by_event.get(op.inputs[0].name) for op in waits]
    for wait, record in zip(waits[:-1], records, strict=False):
        last = records[-1]
        if record is None or last is None or record.stream != last.stream:
            continue
        if record is not last and len(_waits(graph).get(record.outputs[0].name, ())) == 1:
            yield from (wait, record)


@cached_per_graph
def _waits(graph: Graph) -> Mapping[str, Sequence[Op]]:
    """Return the ops that use events, by the events' names."""
    users_by_event: dict[str, list[Op]] = {}
    for leaf in _leaves(graph):
        for tensor in leaf.inputs if leaf.name.startswith("sync.") else ():
            users_by_event.setdefault(tensor.name, []).append(leaf)
    return users_by_event


@cached_per_graph
def _records(graph: Graph) -> Mapping[str, Op]:
    """Return the ops that record events, by the events' names."""
    return {leaf.outputs[0].name: leaf for leaf in _leaves(graph) if leaf.name == RECORD}


def _coalesced_sum(members: Sequence[Op], caller: str) -> Op:
    last = members[-1]
    tensors = tuple(t for op in members for t in _tensors(op))
    attributes = {k: v for k, v in last.attributes.items() if k != "sparse_indices"}
    modules = {op.module for op in members}
    return replace(
        last,
        name=coalesced_name(last.name),
        operands=(tensors,),
        results=(),
        attributes=attributes,
        written=frozenset(t.name for t in tensors),
        module=last.module if len(modules) == 1 else "",
        origin=f"{caller}: {len(members)} x {last.name}",
        notes={},
    )


def _tensors(op: Op) -> list[Tensor]:
    return list(tensors_in(op.operands[:1]))


def _kind(op: Op) -> tuple[object, ...]:
    (tensor,) = _tensors(op)
    attributes = tuple(sorted((key, str(value)) for key, value in op.attributes.items()))
    return op.name, attributes, tensor.dtype, tensor.device, op.stream, op.thread


@dataclass
class _OpenBucket:
    """A bucket that is being filled.

    Attributes:
        graph: the graph of the sums.
        first: the first of them.
        deferred_ops: the ops that are deferred already, after this bucket or another.
        members: the sums in it.
        later: ops that must run after all of them.
    """

    graph: Graph
    first: Op
    deferred_ops: set[Op]
    members: list[Op] = field(default_factory=list)
    later: list[Op] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.declared = declared(self.graph)
        self.summed: dict[str, list[Tensor]] = {}
        self.read: dict[str, list[Tensor]] = {}
        self.names: set[str] = set()
        self.nbytes = 0
        self._add_member(self.first)

    def _add_member(self, op: Op) -> None:
        self.members.append(op)
        for tensor in _tensors(op):
            self.summed.setdefault(tensor.buffer, []).append(tensor)
            self.nbytes += tensor.nbytes

    def add(self, op: Op, limit: int) -> bool:
        """Add a sum if it fits and all ops in between can be moved; return whether it was added."""
        (tensor,) = _tensors(op)
        # ``_can_follow`` defers ops one after the other; all of that is undone if it finds one that
        # cannot move.
        snapshot = [*self.later], {**self.summed}, {**self.read}, {*self.names}
        fits = self.nbytes + tensor.nbytes <= limit
        if not fits or not self._can_follow(op) or _overlaps([tensor], self.summed, self.read):
            self.later, self.summed, self.read, self.names = snapshot
            return False
        self._add_member(op)
        self.deferred_ops.update(self.later)
        return True

    def _can_follow(self, op: Op) -> bool:
        """Defer the ops between the last member and a new sum that must follow it, if all can."""
        places, paths = self.graph.places, self.graph.paths
        for leaf in _leaves(self.graph)[places[self.members[-1]] + 1 : places[op]]:
            if self._may_precede(leaf):
                continue
            # An op inside of a module's label or an autograd node would leave it if deferred.
            nested = len(paths[leaf]) > 1 and not _is_event(leaf)
            is_fixed = leaf in self.deferred_ops or effects(leaf, self.declared).barrier
            if blocks_host(leaf) or nested or is_fixed:
                return False
            self._defer(leaf)
        return len(paths[op]) == 1 or all(map(_is_event, self.later))

    def _may_precede(self, leaf: Op) -> bool:
        """Return whether an op may run before the sums, as it does not access them."""
        if leaf.name == RECORD:
            return leaf.stream != self.first.stream
        if blocks_host(leaf) or any(t.name in self.names for t in leaf.inputs):
            return False
        access = effects(leaf, self.declared)
        if access.barrier:
            return False
        tensors = (*access.reads, *access.writes)
        return not (_overlaps(tensors, self.summed) or _overlaps(access.writes, self.read))

    def _defer(self, leaf: Op) -> None:
        """Defer an op, and so the ops that depend on it, until after the sums."""
        self.later.append(leaf)
        self.names.update(t.name for t in leaf.outputs)
        access = effects(leaf, self.declared)
        for tensors, tensors_by_buffer in ((access.writes, self.summed), (access.reads, self.read)):
            for tensor in tensors:
                tensors_by_buffer[tensor.buffer] = [
                    *tensors_by_buffer.get(tensor.buffer, ()),
                    tensor,
                ]


def _is_event(op: Op) -> bool:
    return op.name in (RECORD, WAIT)


def _overlaps(tensors: Iterable[Tensor], *sides: Mapping[str, Sequence[Tensor]]) -> bool:
    """Return whether some tensors share bytes with others."""
    return any(
        overlap(t, other) for t in tensors for side in sides for other in side.get(t.buffer, ())
    )
