"""The host's outermost calls of each step in order, with the launches and waits in each call."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache

import numpy as np
from msgspec import Struct

from irgraph.capture.kineto.events.launch_queues import LaunchQueues, Release, launch_queues
from irgraph.capture.kineto.events.steps import TraceStep
from irgraph.capture.kineto.events.syncs import recorded_syncs
from irgraph.capture.kineto.events.tree import Tree
from irgraph.capture.kineto.reading.trace import HOST_KINDS, EventKind, Integers, operands
from irgraph.ir.dtypes import FROM_CPP

LOADER = "enumerate(DataLoader)"
_MIN_BLOCKING_NS = 50_000
"""Minimum nanoseconds of a launch that ends after half of its own work for which it is assumed to
have waited for that work, as copies of pageable memory do; other launches are shorter."""

_MIN_POLLED_GAP, _MAX_POLL_DELAY = 1_000_000, 100_000
"""Nanoseconds: the minimum gap between calls that may hide a wait, and the maximum time from the
end of the awaited work to the end of the gap."""


class RuntimeCall(Struct, frozen=True):
    """A runtime call that starts device work or waits for it.

    Attributes:
        row: row of the call.
        function: name of the runtime function.
        start, end: nanoseconds.
        work: rows of the device events it started, or its own row if the host does the work.
        awaits: row of the device event whose end it waited for, -1 if it did not wait.
        syncs: whether it waits for the device unconditionally.
        release: the work that made room in a full launch queue, ``None`` if the queue had room.
        events: number of host events recorded inside, itself included.
    """

    row: int
    function: str
    start: int
    end: int
    work: tuple[int, ...] = ()
    awaits: int = -1
    syncs: bool = False
    release: Release | None = None
    events: int = 1

    @property
    def is_work(self) -> bool:
        """Whether the call is the work itself: a CPU's."""
        return self.work == (self.row,)


class HostItem(Struct, frozen=True):
    """An outermost call of the host, or a mark between calls.

    Attributes:
        row: row of the event, -1 for a mark.
        name: name of the operator, runtime function or mark.
        key: name and operand shapes.
        thread: number of the host thread.
        start, end: nanoseconds.
        calls: launches and waits in order.
        kind: ``op``, ``call`` (outside operators), ``loader`` (not divided into calls) or ``mark``.
        events: number of host events recorded inside, itself included; each cost profiling time.
    """

    row: int
    name: str
    key: tuple[str, str]
    thread: int
    start: int
    end: int
    calls: tuple[RuntimeCall, ...] = ()
    kind: str = "op"
    events: int = 1


@dataclass(slots=True)
class HostView:
    """Outermost calls of a trace and its launch queues, shared by all its steps."""

    tree: Tree
    queues: LaunchQueues
    items: list[HostItem] = field(default_factory=list)
    _starts: list[int] = field(default_factory=list)
    _waits: Waits | None = None
    _event_starts: dict[int, list[int]] = field(default_factory=dict)

    def events_between(self, thread: int, begin: int, end: int) -> int:
        """Return the number of torch's records of a thread that start in an interval."""
        if thread not in self._event_starts:
            self._event_starts[thread] = _record_starts(self.tree, thread)
        starts = self._event_starts[thread]
        return bisect_left(starts, end) - bisect_left(starts, begin)

    def step_items(self, step: TraceStep) -> list[HostItem]:
        """Return the calls of a step in order of time, between marks for its start and end."""
        first = bisect_right(self._starts, step.start - 1)
        last = bisect_right(self._starts, step.end - 1)
        main = self.tree.main
        begin = HostItem(-1, "step", ("step", ""), main, step.start, step.start, kind="mark")
        end = HostItem(-1, "step end", ("step end", ""), main, step.end, step.end, kind="mark")
        return [begin, *self.items[first:last], end]

    def name(self, row: int) -> str:
        """Return the name of an event."""
        trace = self.tree.trace
        return trace.names[int(trace.columns["name"][row])]

    def polled_event(self, begin: int, end: int) -> int:
        """Return the device event that the host waited for between two calls, -1 for none.

        Some libraries wait without a runtime call, by polling. A long gap is such a wait if it ends
        right after work that was launched before the gap.
        """
        if end - begin < _MIN_POLLED_GAP or self._waits is None:
            return -1
        row = self._waits.awaited_by_sync(begin, end)
        return row if row >= 0 and end - int(self.tree.trace.end[row]) <= _MAX_POLL_DELAY else -1


def host_view(tree: Tree) -> HostView:
    """Return the outermost calls of the program's thread and of autograd's threads."""
    trace = tree.trace
    work_by_call = _work_by_call(tree)
    waits = Waits(tree)
    queues = launch_queues(tree)
    calls = _calls(tree, work_by_call, waits, queues)
    thread, kind = trace.columns["thread"], trace.columns["kind"]
    loaders = _loaders(tree, calls)
    hidden = _rows_below(tree, loaders)
    is_top = (tree.top == np.arange(len(trace))) & (kind == EventKind.OP)
    outside_ops = (kind == EventKind.RUNTIME) & (tree.op < 0)
    outermost = is_top | outside_ops
    outermost[list(loaders)] = True
    outermost[list(hidden)] = False
    rows = np.flatnonzero(outermost & np.isin(thread, [tree.main, *tree.backward]))
    rows = rows[np.argsort(trace.columns["start"][rows], kind="stable")]
    items = list(_items(tree, rows, calls, loaders))
    return HostView(tree, queues, items, [item.start for item in items], waits)


def _items(
    tree: Tree, rows: Integers, calls: Mapping[int, list[RuntimeCall]], loaders: Container[int]
) -> Iterator[HostItem]:
    trace = tree.trace
    is_op = trace.columns["kind"] == EventKind.OP
    names, shapes, threads, starts = (
        trace.columns[column] for column in ("name", "shape", "thread", "start")
    )
    columns = (names, shapes, threads, starts, tree.end, is_op, _events_below(tree))
    selected = (column[rows].tolist() for column in columns)
    for row, name, shape, thread, start, end, op, events in zip(
        rows.tolist(), *selected, strict=True
    ):
        text = trace.names[name]
        key = (text, operand_shapes(*trace.shapes[shape]))
        kind = "loader" if row in loaders else "op" if op else "call"
        yield HostItem(row, text, key, thread, start, end, tuple(calls.get(row, ())), kind, events)


@cache
def operand_shapes(dims: bytes, types: bytes) -> str:
    """Return operand shapes as spelled in host tables: ``f32[2048,512] f32[512,512]``."""
    arguments = operands(dims, types)
    if arguments is None:
        return dims.decode("utf-8", "replace")
    texts = []
    for shape, kind in zip(*arguments, strict=False):
        if kind in FROM_CPP and isinstance(shape, list):
            texts.append(f"{FROM_CPP[kind]}[{','.join(map(str, shape))}]")
        elif kind == "TensorList" and isinstance(shape, list):
            texts.append("list" + "".join(str(part).replace(" ", "") for part in shape))
    return " ".join(texts)


def _work_by_call(tree: Tree) -> dict[int, list[int]]:
    """Return the device events by the row of the call that started them."""
    rows_by_launch: dict[int, list[int]] = defaultdict(list)
    rows = np.flatnonzero(tree.trace.on_device & (tree.launch >= 0))
    for row, launch in zip(rows.tolist(), tree.launch[rows].tolist(), strict=True):
        rows_by_launch[launch].append(row)
    return rows_by_launch


def _calls(
    tree: Tree, work_by_call: Mapping[int, list[int]], waits: Waits, queues: LaunchQueues
) -> dict[int, list[RuntimeCall]]:
    """Return launches and waits by the row of the outermost operator around them, or their own."""
    trace = tree.trace
    calls_by_row: dict[int, list[RuntimeCall]] = defaultdict(list)
    names = trace.columns["name"]
    waiting = np.fromiter(map(is_sync, trace.names), bool, len(trace.names))[names]
    chosen = waiting.copy()
    chosen[list(work_by_call)] = True
    rows = np.flatnonzero(chosen & (trace.columns["kind"] == EventKind.RUNTIME))
    columns = (names, trace.columns["start"], tree.end, waiting, tree.top)
    selected = (column[rows].tolist() for column in columns)
    for row, name, start, end, syncs, top in zip(rows.tolist(), *selected, strict=True):
        work = tuple(work_by_call.get(row, ()))
        awaits = (
            waits.awaited_by_call(row, start, end)
            if syncs
            else _awaited_own_work(tree, work, start, end)
        )
        release = queues.releases.get(row) if awaits < 0 else None
        call = RuntimeCall(row, trace.names[name], start, end, work, awaits, syncs, release)
        calls_by_row[top if top >= 0 else row].append(call)
    return calls_by_row


def is_sync(function: str) -> bool:
    """Return whether a runtime function waits for the device: all vendors name it Synchronize."""
    return "ynchronize" in function


def _awaited_own_work(tree: Tree, work: tuple[int, ...], start: int, end: int) -> int:
    """Return the last own work that a launch waited for, -1 if it returned earlier."""
    columns = tree.trace.columns
    halves = ((row, int(columns["start"][row] + columns["duration"][row] // 2)) for row in work)
    blocking = [row for row, half in halves if end >= half]
    return blocking[-1] if blocking and end - start > _MIN_BLOCKING_NS else -1


class Waits:
    """Finds the device event that a call waited for: the last to end before the call returned."""

    def __init__(self, tree: Tree) -> None:
        trace = tree.trace
        rows = np.flatnonzero(trace.on_device)
        self.rows = rows[np.argsort(trace.end[rows], kind="stable")]
        self.ends = trace.end[self.rows]
        launch = tree.launch[self.rows]
        launch_starts = np.where(launch >= 0, trace.columns["start"][launch], -1)
        self.launched = launch_starts
        self.recorded = recorded_syncs(tree).host

    def awaited_by_call(self, row: int, start: int, end: int) -> int:
        """Return the device event awaited by a runtime call: as recorded, else as inferred."""
        recorded = self.recorded.get(row)
        return self.awaited_by_sync(start, end) if recorded is None else recorded

    def awaited_by_sync(self, start: int, end: int) -> int:
        """Return the device event awaited by a call, -1 if none ran while it waited."""
        position = int(np.searchsorted(self.ends, end, side="right")) - 1
        while position >= 0 and self.ends[position] > start:
            if self.launched[position] <= start:
                return int(self.rows[position])
            position -= 1
        return -1


def _events_below(tree: Tree) -> Integers:
    """Return the number of host events at or below each event."""
    counts = [1] * len(tree.trace)
    rows = np.flatnonzero(tree.parent >= 0)[::-1]
    for row, parent in zip(rows.tolist(), tree.parent[rows].tolist(), strict=True):
        counts[parent] += counts[row]
    return np.array(counts, "i8")


def _record_starts(tree: Tree, thread: int) -> list[int]:
    """Return the starts of a thread's host events in order, without calls of the driver."""
    columns = tree.trace.columns
    is_record = np.isin(columns["kind"], HOST_KINDS) & (columns["kind"] != EventKind.RUNTIME)
    starts: list[int] = np.sort(
        columns["start"][is_record & (columns["thread"] == thread)]
    ).tolist()
    return starts


def _loaders(tree: Tree, calls: Mapping[int, list[RuntimeCall]]) -> set[int]:
    """Return the outermost ranges of the data loader that touch no device."""
    trace = tree.trace
    names = {i for i, name in enumerate(trace.names) if name.startswith(LOADER)}
    rows = [r for r in trace.rows(EventKind.ANNOTATION) if int(trace.columns["name"][r]) in names]
    busy = {ancestor for row in calls for ancestor in ancestors(tree, row)}
    return {row for row in rows if row not in busy}


def ancestors(tree: Tree, row: int) -> Iterator[int]:
    """Yield the rows around a host event, innermost first."""
    row = int(tree.parent[row])
    while row >= 0:
        yield row
        row = int(tree.parent[row])


def _rows_below(tree: Tree, outer: set[int]) -> set[int]:
    """Return all rows below some host events."""
    below: set[int] = set()
    if outer:
        for row in np.flatnonzero(tree.parent >= 0).tolist():
            parent = int(tree.parent[row])
            if parent in outer or parent in below:
                below.add(row)
    return below
