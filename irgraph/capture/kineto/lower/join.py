"""Joins an execution trace with a Kineto trace: matches recorded calls with timed events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher

import numpy as np

from irgraph.capture.common.forest import BOOKKEEPING, main_thread
from irgraph.capture.common.interrupted import EVALUATE
from irgraph.capture.common.nodes import RecordedNode
from irgraph.capture.execution_trace import Trace
from irgraph.capture.kineto.events.steps import TraceStep
from irgraph.capture.kineto.events.tree import Tree
from irgraph.capture.kineto.reading.trace import EventKind
from irgraph.diagnostics import SourceSpan, fail

CLASSES = ("aten", "autograd", "annotations", "others")
MIN_JOIN_RATE = 0.8
"""Minimum share of the execution trace's calls that must be joined with the Kineto trace."""

_GRAM_LENGTH = 6
"""Number of consecutive names that identify a position in a sequence of calls."""

_MARGIN = 1_000_000
"""Nanoseconds before the first joined call in which its annotations may begin."""


@dataclass(slots=True)
class Join:
    """Match between an execution trace and a Kineto trace.

    Attributes:
        rows: row of the event of each node of the execution trace, by the node's id.
        iteration_rows: rows of a node's events in all matching iterations, by its id.
        rates: numbers of joined calls and of all calls, by class of calls.
        method: ``ids`` or ``order``.
        window: start and end of the joined calls in nanoseconds.
        warnings: reasons to doubt that the traces belong together.
    """

    rows: dict[int, int] = field(default_factory=dict)
    iteration_rows: dict[int, list[int]] = field(default_factory=dict)
    rates: dict[str, tuple[int, int]] = field(default_factory=dict)
    method: str = "order"
    window: tuple[int, int] = (0, 0)
    warnings: list[str] = field(default_factory=list)

    def rate(self, kind: str = "") -> float:
        """Return the share of calls that were joined, of one class or of all."""
        pairs = [self.rates[kind]] if kind else list(self.rates.values())
        total = sum(count for _, count in pairs)
        return sum(count for count, _ in pairs) / total if total else 1.0

    def lines(self) -> list[str]:
        """Return the rates as text, one class a line."""
        rates = [
            f"joined {count} of {total} {kind} calls ({count / total:.1%}) by {self.method}"
            for kind, (count, total) in self.rates.items()
            if total
        ]
        return [*rates, *self.warnings]


def join(recording: Trace, tree: Tree, *, min_rate: float = MIN_JOIN_RATE) -> Join:
    """Match the calls of an execution trace with the events of a Kineto trace.

    Ids are used if they agree with the names; else each thread's calls are aligned in order,
    outermost calls first, then the calls inside each pair. The calls are matched with every
    iteration of the Kineto trace that they fit; ``rows`` are of the last.

    Raises:
        IrgraphError: fewer than ``min_rate`` of the calls can be joined: the traces are of
            different models or steps (exit code 4).
    """
    nodes = [n for n in recording.nodes if not n.name.startswith(BOOKKEEPING)]
    match = _by_ids(nodes, tree) or _by_order(nodes, tree)
    labels = _annotations(tree)
    if match.method == "order":
        _align_labels(nodes, tree, match, labels)
    match.rates = _rates(nodes, match.rows, labels)
    match.warnings += _process_warnings(recording, tree)
    if match.rate() < min_rate:
        raise fail(
            f"this Kineto trace does not belong to the execution trace: only "
            f"{match.rate():.0%} of the calls could be joined",
            SourceSpan(tree.trace.source),
            hint=_reason(nodes, tree, match),
        )
    return match


def kind_of(name: str, labels: frozenset[str] = frozenset()) -> str:
    """Return the class of a call by its recorded name; ``labels`` are the names of annotations."""
    if name in labels or name.startswith(("## ", "Optimizer.", "nccl:")):
        return "annotations"
    if name.startswith("aten::"):
        return "aten"
    if name.startswith((EVALUATE, "torch::autograd::")) or name.rstrip("0123456789").endswith(
        "Backward"
    ):
        return "autograd"
    return "others"


def _rates(
    nodes: Sequence[RecordedNode], rows: Mapping[int, int], labels: frozenset[str]
) -> dict[str, tuple[int, int]]:
    totals = Counter(kind_of(node.name, labels) for node in nodes)
    counts = Counter(kind_of(node.name, labels) for node in nodes if node.id in rows)
    return {kind: (counts[kind], totals[kind]) for kind in CLASSES}


def _by_ids(nodes: Sequence[RecordedNode], tree: Tree) -> Join | None:
    """Join by record function ids if nearly all of them have the same name in both traces.

    Returns ``None`` otherwise.
    """
    trace = tree.trace
    for key in ("record", "external"):
        ids = trace.columns[key]
        rows = {
            int(ids[row]): row
            for row in trace.rows(EventKind.OP, EventKind.ANNOTATION)
            if ids[row] > 0
        }
        pairs = {
            node.id: rows[node.record]
            for node in nodes
            if node.record in rows and trace.text(rows[node.record]) == node.name
        }
        if nodes and len(pairs) >= 0.95 * len(nodes):
            starts = [int(trace.columns["start"][row]) for row in pairs.values()]
            window = (min(starts), max(int(tree.end[row]) for row in pairs.values()))
            return Join(pairs, {k: [row] for k, row in pairs.items()}, {}, "ids", window)
    return None


def _by_order(nodes: Sequence[RecordedNode], tree: Tree) -> Join:
    """Join each thread's calls in order, in every iteration that they fit."""
    threads = _threads(nodes)
    below = _operators_below(tree)
    labels = _annotations(tree)
    match = Join()
    if not threads:
        return match
    main, rest = threads[0], threads[1:]
    tops = _outermost_rows(tree, {tree.main})
    calls = list(_operators(main, labels))
    for first, last in _windows([n.name for n in calls], [tree.trace.text(r) for r in tops]):
        rows: dict[int, int] = {}
        _align(calls, tops[first:last], tree, below, labels, rows)
        if not rows:
            continue
        window = _extent(tree, rows)
        others = _outermost_rows(tree, set(tree.backward), window)
        for thread in rest:
            _align(list(_operators(thread, labels)), others, tree, below, labels, rows)
        for node, row in rows.items():
            match.iteration_rows.setdefault(node, []).append(row)
        # later iterations are preferred: the first ones warm up
        if len(rows) >= len(match.rows):
            match.rows, match.window = rows, window
    return match


def _threads(nodes: Sequence[RecordedNode]) -> list[list[RecordedNode]]:
    """Return the outermost nodes of each thread, the program's thread first."""
    inside = {child for node in nodes for child in node.children}
    roots = [node for node in nodes if node not in inside]
    main = main_thread(nodes)
    sizes = Counter(n.thread for root in roots for n in root.walk())
    order = sorted(sizes, key=lambda thread: (thread != main, -sizes[thread]))
    return [[root for root in roots if root.thread == thread] for thread in order]


def _annotations(tree: Tree) -> frozenset[str]:
    trace = tree.trace
    return frozenset(trace.text(row) for row in trace.rows(EventKind.ANNOTATION))


def _operators(nodes: Sequence[RecordedNode], labels: frozenset[str]) -> Iterator[RecordedNode]:
    """Yield the outermost operators among nodes and inside annotations."""
    for node in nodes:
        if node.name in labels or node.name.startswith(BOOKKEEPING):
            yield from _operators(node.children, labels)
        else:
            yield node


def _operators_below(tree: Tree) -> dict[int, list[int]]:
    """Return the operators directly below each operator, ignoring annotations in between."""
    kind = tree.trace.columns["kind"]
    rows_by_parent: dict[int, list[int]] = {}
    for row in np.flatnonzero((kind == EventKind.OP) & (tree.parent >= 0)).tolist():
        above = int(tree.op[tree.parent[row]])
        if above >= 0:
            rows_by_parent.setdefault(above, []).append(row)
    return rows_by_parent


def _outermost_rows(
    tree: Tree, threads: set[int], window: tuple[int, int] | None = None
) -> list[int]:
    rows = tree.top_ops()
    rows = rows[np.isin(tree.trace.columns["thread"][rows], list(threads))]
    if window is not None:
        start = tree.trace.columns["start"][rows]
        rows = rows[(start >= window[0]) & (start < window[1])]
    result: list[int] = rows.tolist()
    return result


def _windows(calls: Sequence[str], events: Sequence[str]) -> list[tuple[int, int]]:
    """Return the ranges of a long sequence of names that match a short one, in order.

    Runs of equal names vote for the offset between the sequences.
    """
    if len(events) <= 1.5 * len(calls) or len(calls) < _GRAM_LENGTH:
        return [(0, len(events))]
    positions_by_gram: dict[tuple[str, ...], list[int]] = {}
    for position in range(len(events) - _GRAM_LENGTH + 1):
        positions_by_gram.setdefault(tuple(events[position : position + _GRAM_LENGTH]), []).append(
            position
        )
    votes: Counter[int] = Counter()
    for position in range(len(calls) - _GRAM_LENGTH + 1):
        votes.update(
            index - position
            for index in positions_by_gram.get(tuple(calls[position : position + _GRAM_LENGTH]), ())
        )
    best = max(votes.values(), default=0)
    offsets = sorted(offset for offset, count in votes.items() if count >= 0.5 * best)
    return [
        (max(0, offset), min(len(events), offset + len(calls)))
        for offset in _strongest_offsets(offsets, votes, len(calls) // 2)
    ]


def _strongest_offsets(
    offsets: Sequence[int], votes: Mapping[int, int], min_distance: int
) -> list[int]:
    """Return the offsets with most votes among those closer than ``min_distance``."""
    peaks: list[int] = []
    for offset in offsets:
        if peaks and offset - peaks[-1] < min_distance:
            if votes[offset] > votes[peaks[-1]]:
                peaks[-1] = offset
        else:
            peaks.append(offset)
    return peaks


def _align(
    nodes: Sequence[RecordedNode],
    rows: Sequence[int],
    tree: Tree,
    below: Mapping[int, list[int]],
    labels: frozenset[str],
    row_by_id: dict[int, int],
) -> None:
    """Pair calls with events of the same name in order, then the calls inside each pair."""
    names = [node.name for node in nodes]
    texts = [tree.trace.text(row) for row in rows]
    if names == texts:
        pairs = list(zip(nodes, rows, strict=True))
    else:
        matcher = SequenceMatcher(None, names, texts, autojunk=False)
        pairs = [
            (nodes[block.a + i], rows[block.b + i])
            for block in matcher.get_matching_blocks()
            for i in range(block.size)
        ]
    for node, row in pairs:
        row_by_id[node.id] = row
        if node.children:
            inner = list(_operators(node.children, labels))
            _align(inner, below.get(row, ()), tree, below, labels, row_by_id)


def _align_labels(
    nodes: Sequence[RecordedNode], tree: Tree, match: Join, labels: frozenset[str]
) -> None:
    """Pair annotations by name and order within the joined window."""
    trace = tree.trace
    begin, end = match.window
    marks = [node for node in nodes if node.name in labels]
    rows = [
        row
        for row in trace.rows(EventKind.ANNOTATION)
        if begin - _MARGIN <= trace.columns["start"][row] < end
    ]
    names, texts = [node.name for node in marks], [trace.text(row) for row in rows]
    for block in SequenceMatcher(None, names, texts, autojunk=False).get_matching_blocks():
        for i in range(block.size):
            match.rows[marks[block.a + i].id] = rows[block.b + i]


def _extent(tree: Tree, rows: Mapping[int, int]) -> tuple[int, int]:
    starts = [int(tree.trace.columns["start"][row]) for row in rows.values()]
    ends = [int(tree.end[row]) for row in rows.values()]
    return min(starts), max(ends)


def _process_warnings(recording: Trace, tree: Tree) -> list[str]:
    """Return a warning if the metadata name different processes."""
    host = {tree.main, *tree.backward} - {-1}
    processes = {tree.trace.threads[thread][0] for thread in host}
    if recording.process and processes and recording.process not in processes:
        names = ", ".join(sorted(map(str, processes)))
        return [
            f"warning: the execution trace is of process {recording.process}, the Kineto trace of "
            f"{names}: another rank or run?"
        ]
    return []


def _reason(nodes: Sequence[RecordedNode], tree: Tree, match: Join) -> str:
    """Return the likeliest cause of a failed join."""
    names = Counter(node.name for node in nodes)
    events = {tree.trace.text(row) for row in tree.trace.rows(EventKind.OP, EventKind.ANNOTATION)}
    missing = [name for name, _ in names.most_common() if name not in events]
    best = f"best candidate: {_step_name(tree.steps, match.window)} with {match.rate():.0%}"
    if len(missing) > 0.2 * len(names) or match.rate() < 0.5:
        examples = f": the Kineto trace never calls {', '.join(missing[:3])}" if missing else ""
        return f"another model or version{examples}; {best}"
    return f"the same operators in another order or number, so perhaps another step; {best}"


def _step_name(steps: Sequence[TraceStep], window: tuple[int, int]) -> str:
    for step in steps:
        if step.start <= window[0] < step.end:
            return f"step {step.number}"
    return "the whole trace"
