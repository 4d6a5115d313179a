"""Ops on separate streams, with events between streams that depend on each other."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

from msgspec import Struct
from msgspec.structs import replace

from irgraph.ir.dependence import Dependence
from irgraph.ir.edit import Edit
from irgraph.ir.effects import effects, is_view
from irgraph.ir.graph import Graph, Stream
from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor
from irgraph.verbs.launch_order import line

RECORD = "sync.record"
WAIT = "sync.wait"


class Join(Struct, frozen=True):
    """One stream waits for another: recorded after one op, waited for before another."""

    source: Op
    before: Op


def on_streams(graph: Graph, streams: Sequence[tuple[Op, str]]) -> tuple[Graph, tuple[Op, ...]]:
    """Move ops to streams, with an event at each join; return the ops as they are in the new graph.

    A stream that the graph does not have is added to its first device. The launch order is
    unchanged.
    """
    existing = {stream.name for stream in graph.streams}
    names = [name for name in dict.fromkeys(name for _, name in streams) if name]
    new_streams = tuple(Stream(name, graph.device) for name in names if name not in existing)
    edit = Edit(graph)
    moved_ops: list[Op] = []
    for op, name in streams:
        moved_ops.append(move_to(op, name))
        edit.insert(moved_ops[-1], before=op)
        edit.remove(op)
    result = replace(edit.commit(), streams=(*graph.streams, *new_streams))
    return with_events(result, moved_ops), tuple(moved_ops)


def move_to(op: Op, stream: str) -> Op:
    """Return an op, and all below it, on a stream; its measured work is unchanged."""
    body = tuple(move_to(child, stream) for child in op.body)
    return replace(op, stream=stream, body=body)


def with_events(graph: Graph, members: Collection[Op]) -> Graph:
    """Record and wait for events wherever members need other streams, or others need them."""
    sequence = line(graph, members, nodes=True)
    joins = _joins(sequence.ops, sequence.ties, set(sequence.members))
    edit = Edit(graph)
    events, waits = _events(graph), _existing_waits(graph)
    for join in joins:
        if _is_ordered(graph, waits, join):
            continue
        event = next(events)
        record = Op(RECORD, results=(event,))
        edit.insert(_with_context_of(record, join.source), after=join.source)
        edit.insert(_with_context_of(Op(WAIT, (event,)), join.before), before=join.before)
    return edit.commit()


def _existing_waits(graph: Graph) -> dict[tuple[str, str], list[tuple[int, int]]]:
    """Return the positions of each event's record and wait, by the names of their two streams."""
    recorded: dict[str, tuple[str, int]] = {}
    waits: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for position, leaf in enumerate(graph.leaves()):
        if leaf.name == RECORD:
            recorded.update((event.name, (leaf.stream, position)) for event in leaf.outputs)
        elif leaf.name == WAIT:
            for event in leaf.inputs:
                source, start = recorded.get(event.name, (leaf.stream, position))
                waits.setdefault((source, leaf.stream), []).append((start, position))
    return waits


def _is_ordered(
    graph: Graph, waits: Mapping[tuple[str, str], Sequence[tuple[int, int]]], join: Join
) -> bool:
    """Return whether an event that the graph has is recorded and waited for between two ops."""
    first, last = (list(op.leaves()) for op in (join.source, join.before))
    if len({leaf.stream for leaf in (*first, *last)}) != 2:
        return False  # an op that works on several streams
    end, start = graph.places[first[-1]], graph.places[last[0]]
    pair = (first[-1].stream, last[0].stream)
    return any(end < record and wait < start for record, wait in waits.get(pair, ()))


def new_events(before: Graph, after: Graph) -> int:
    """Return the increase in the number of events that a graph records."""
    old, new = (sum(op.name == RECORD for op in graph.walk()) for graph in (before, after))
    return new - old


def _joins(ops: Sequence[Op], ties: Sequence[Dependence], members: set[int]) -> Iterator[Join]:
    """Yield the joins that are needed; one wait serves all work before its event.

    An op with unknown effects forwards its waits, even if it has no device work itself.
    """
    has_work = [works(op) for op in ops]
    is_barrier = [
        not is_working and effects(op).barrier for op, is_working in zip(ops, has_work, strict=True)
    ]
    needs: dict[int, set[int]] = {}
    reached: dict[int, set[int]] = {}
    for tie in ties:
        before = reached.get(tie.before, set()) if is_barrier[tie.before] else {tie.before}
        if is_barrier[tie.after]:
            reached.setdefault(tie.after, set()).update(before)
        if {tie.before, tie.after} & members or any(i in members for i in before):
            needs.setdefault(tie.after, set()).update(before)
    last_waited: dict[tuple[str, str], int] = {}
    for position in sorted(needs):
        if not has_work[position]:
            continue
        stream = stream_of(ops[position])
        for source in sorted(needs[position], reverse=True):
            pair = (stream, stream_of(ops[source]))
            if not has_work[source] or pair[0] == pair[1] or last_waited.get(pair, -1) >= source:
                continue
            last_waited[pair] = source
            yield Join(ops[source], ops[position])


def works(op: Op) -> bool:
    """Return whether an op has device work: no view, no event, not all on the host."""
    for leaf in op.leaves():
        on_device = any(t.device != "cpu" for t in (*leaf.inputs, *leaf.outputs))
        if on_device and not is_view(leaf) and not leaf.name.startswith("sync."):
            return True
    return False


def stream_of(op: Op) -> str:
    """Return the stream on which an op's work runs last."""
    work_leaves = [leaf for leaf in op.leaves() if not is_view(leaf)]
    return work_leaves[-1].stream if work_leaves else op.stream


def _events(graph: Graph) -> Iterator[Tensor]:
    """Yield events whose names no tensor of the graph has, nor a buffer."""
    used_names = graph.by_name.keys() | graph.by_buffer.keys()
    for name in (f"event{i}" for i in count(1)):
        if name not in used_names:
            yield Tensor(name, "u8", (), name, device="cpu")


def _with_context_of(new: Op, op: Op) -> Op:
    return replace(new, thread=op.thread, stream=stream_of(op), module=op.module, phase=op.phase)


@dataclass
class NewStreams:
    """Names for new streams that the graph does not use yet."""

    graph: Graph
    names: list[str] = field(default_factory=list)

    def name(self, base: str) -> str:
        """Return a free name that begins with ``base``."""
        used_names = {stream.name for stream in self.graph.streams} | set(self.names)
        stream = next(f"{base}{i}" for i in range(1, 10**9) if f"{base}{i}" not in used_names)
        self.names.append(stream)
        return stream
