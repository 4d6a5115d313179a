"""The event tree: parents, top-level operators, phases, steps, and the launch of each kernel."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from irgraph.capture.kineto.events.links import forward_operators, linked_operators
from irgraph.capture.kineto.events.steps import TraceStep, find_steps
from irgraph.capture.kineto.reading.missing_records import report_silence
from irgraph.capture.kineto.reading.repair import MICROSECOND, launch_rows
from irgraph.capture.kineto.reading.selection import PROFILER, Marks
from irgraph.capture.kineto.reading.trace import HOST_KINDS, Array, EventKind, Integers, KinetoTrace

PHASES = ("forward", "backward", "optimizer")
EVALUATE = "autograd::engine::evaluate_function: "
_OPTIMIZER = "Optimizer."
_MODULE = re.compile(r"(?:nn\.Module: |module::|irgraph\.module#)(.+)")
_BATCH = 1 << 17
"""Number of events converted to Python objects in one batch; columns are a tenth of the size."""

MIN_COVERAGE = 0.95
"""Minimum share of the device time within the steps; below it the rest is reported."""


@dataclass(slots=True)
class Tree:
    """The event tree of a trace; every array has one element for each event, -1 for none.

    Attributes:
        trace: the trace.
        parent: row of the innermost host event around each host event.
        end: nanoseconds; children are cut at the end of their parent.
        op: row of the innermost operator at or around it; for device events, around its launch.
        top: row of the outermost operator, likewise: host overheads are charged to it.
        launch: row of the runtime call that started a device event.
        phase: position in ``PHASES``.
        step: position in ``steps``.
        module: position in ``modules``.
        steps: the steps, in order of time.
        modules: module paths.
        main, backward: numbers of the threads that run the program and autograd's engine.
        forward_of: by row of a backward operator, the forward operator it belongs to.
    """

    trace: KinetoTrace
    parent: Integers
    end: Integers
    op: Integers
    top: Integers
    launch: Integers
    phase: Array
    step: Integers
    module: Array
    steps: list[TraceStep]
    modules: list[str]
    main: int
    backward: frozenset[int]
    forward_of: dict[int, int] = field(default_factory=dict)

    def top_ops(self) -> Integers:
        """Return the rows of top-level operators in order of time."""
        rows: Integers = np.flatnonzero(self.top == np.arange(len(self.top)))
        operators: Integers = rows[self.trace.columns["kind"][rows] == EventKind.OP]
        return operators

    def children(self) -> dict[int, list[int]]:
        """Return the rows directly below each host event, in order of time."""
        children: dict[int, list[int]] = defaultdict(list)
        for row in np.flatnonzero(self.parent >= 0).tolist():
            children[int(self.parent[row])].append(row)
        return children

    def is_backward_thread(self, row: int) -> bool:
        """Return whether a host event ran on a thread of autograd's engine."""
        return int(self.trace.columns["thread"][row]) in self.backward


def build_tree(trace: KinetoTrace, marks: Marks = PROFILER) -> Tree:
    """Return the event tree of a trace, its steps by ``marks``; findings are added to its health.

    Raises ``IrgraphError`` if the mark that the user named is not in the trace (exit code 2).
    """
    count = len(trace)
    parent = np.full(count, -1, "i4")
    end = trace.end
    kind = trace.columns["kind"]
    host = np.flatnonzero(np.isin(kind, HOST_KINDS))
    threads = trace.columns["thread"][host]
    overlaps = 0
    for thread in np.unique(threads).tolist():
        overlaps += _nest(trace, host[threads == thread], parent, end)
    trace.health.add("K11", overlaps, "taken as neighbours")
    main, backward = _threads(trace)
    others = len(np.unique(threads)) - 1 - len(backward)
    trace.health.add("K24", others)
    op, top = _operators(trace, parent)
    launch = launch_rows(trace)
    launched = launch >= 0
    op[launched], top[launched] = op[launch[launched]], top[launch[launched]]
    linked = linked_operators(trace, launch)
    op[linked >= 0], top[linked >= 0] = linked[linked >= 0], top[linked[linked >= 0]]
    tree = Tree(
        trace,
        parent,
        end,
        op,
        top,
        launch,
        np.zeros(count, "i1"),
        np.full(count, -1, "i4"),
        np.zeros(count, "i4"),
        find_steps(trace, main, launch, op, marks),
        [""],
        main,
        backward,
    )
    tree.forward_of = forward_operators(trace, backward)
    _fill_scopes(tree, host)
    _assign_steps(tree)
    return tree


def _nest(trace: KinetoTrace, rows: Integers, parent: Integers, end: Integers) -> int:
    """Fill in the parents on one thread; return the number of events that overlap in part."""
    stack: list[tuple[int, int]] = []
    overlaps = 0
    for offset in range(0, len(rows), _BATCH):
        batch = rows[offset : offset + _BATCH]
        runtime = trace.columns["kind"][batch] == EventKind.RUNTIME
        parents, cut_ends, count = _batch_parents(
            batch.tolist(),
            trace.columns["start"][batch].tolist(),
            end[batch].tolist(),
            runtime.tolist(),
            stack,
            trace.columns["kind"],
        )
        parent[batch], end[batch] = parents, cut_ends
        overlaps += count
    return overlaps


def _batch_parents(
    rows: list[int],
    starts: list[int],
    ends: list[int],
    runtime: list[bool],
    stack: list[tuple[int, int]],
    kinds: Array,
) -> tuple[list[int], list[int], int]:
    """Return parents, ends cut at the parent's end, and the number of partly overlapping events.

    ``stack`` has the open events, row and end, and is updated for the next batch. Ranges overlap
    with the Python calls that open or close them, which is not counted.
    """
    parents, overlaps = [-1] * len(rows), 0
    for i, start in enumerate(starts):
        end = ends[i]
        min_length = MICROSECOND if runtime[i] else 0
        while stack and (
            stack[-1][1] < start or (stack[-1][1] == start and end - start > min_length)
        ):
            stack.pop()
        while stack and not runtime[i] and end > stack[-1][1] + MICROSECOND:
            last = stack.pop()
            if last[1] > start:
                overlaps += EventKind.PYTHON not in (kinds[last[0]], kinds[rows[i]])
        if stack:
            parents[i], outer = stack[-1]
            # runtime calls are timed by another clock: their start determines the parent
            overlaps += end > outer + MICROSECOND
            ends[i] = min(end, outer)
        stack.append((rows[i], ends[i]))
    return parents, ends, overlaps


def _threads(trace: KinetoTrace) -> tuple[int, frozenset[int]]:
    """Return the program's thread and the threads of autograd's engine."""
    kind, thread = trace.columns["kind"], trace.columns["thread"]
    engine = [i for i, name in enumerate(trace.names) if name.startswith(EVALUATE)]
    nodes = np.isin(trace.columns["name"], engine) & (kind == EventKind.OP)
    old = (kind == EventKind.OP) & (trace.columns["forward"] > 0)
    on_engine = set(np.unique(thread[nodes | old]).tolist())
    steps = [thread[row] for row in trace.steps().values()]
    host = thread[np.isin(kind, (EventKind.OP, EventKind.ANNOTATION))]
    forward = host[~np.isin(host, list(on_engine))]
    if steps:
        main = int(np.bincount(steps).argmax())
    elif len(forward) or len(host):
        main = int(np.bincount(forward if len(forward) else host).argmax())
    else:
        main = -1
    return main, frozenset(on_engine - {main})


def innermost_chosen(parent: Integers, chosen: Array) -> Integers:
    """Return the innermost chosen event at or around each event, -1 if none."""
    rows = np.where(chosen, np.arange(len(parent), dtype=parent.dtype), parent)
    pending = np.flatnonzero((rows >= 0) & ~chosen[rows])
    while len(pending):
        rows[pending] = parent[rows[pending]]
        parents = rows[pending]
        pending = pending[(parents >= 0) & ~chosen[parents]]
    return rows


def _operators(trace: KinetoTrace, parent: Integers) -> tuple[Integers, Integers]:
    """Return the innermost and the outermost operator at or around each host event."""
    op = innermost_chosen(parent, trace.columns["kind"] == EventKind.OP)
    above = np.where(op >= 0, parent[op], -1)
    outermost = (op >= 0) & (np.where(above >= 0, op[above], -1) < 0)
    return op, innermost_chosen(parent, outermost & (op == np.arange(len(op))))


def _fill_scopes(tree: Tree, host: Integers) -> None:
    """Fill in phases and modules from the enclosing ranges, for backward from the forward op."""
    trace = tree.trace
    thread, kind, name = (trace.columns[key] for key in ("thread", "kind", "name"))
    optimizer = [i for i, text in enumerate(trace.names) if text.startswith(_OPTIMIZER)]
    stepping = (kind == EventKind.ANNOTATION) & np.isin(name, optimizer)
    on_host = np.zeros(len(trace), bool)
    on_host[host] = True
    tree.phase[innermost_chosen(tree.parent, stepping & on_host) >= 0] = 2
    tree.phase[on_host & np.isin(thread, list(tree.backward))] = 1
    _fill_modules(tree, on_host)
    launched, linked = np.flatnonzero(tree.launch >= 0), _linked_rows(tree)
    for values in (tree.phase, tree.module):
        values[launched] = values[tree.launch[launched]]
        values[linked] = values[tree.op[linked]]


def _fill_modules(tree: Tree, on_host: Array) -> None:
    """Fill in the modules named by ranges and operators, and the modules of forward operators."""
    trace = tree.trace
    numbers: dict[str, int] = {"": 0}
    labels = [m.group(1) if (m := _MODULE.match(text)) else "" for text in trace.names]
    of_name, of_column = (
        np.array([numbers.setdefault(path, len(numbers)) for path in paths] or [0], "i4")
        for paths in (labels, trace.modules)
    )
    own_module = of_name[trace.columns["name"]]
    own_module = np.where(own_module > 0, own_module, of_column[trace.columns["module"]])
    own_module[~on_host] = 0
    tree.modules = list(numbers)
    if len(numbers) == 1:
        return
    tree.module = _inherit(tree, own_module, own_module > 0)
    rows = np.array(list(tree.forward_of), "i8")
    own_module[rows] = tree.module[np.array(list(tree.forward_of.values()), "i8")]
    has_module = own_module > 0
    has_module[rows] = True
    tree.module = _inherit(tree, own_module, has_module)


def _inherit(tree: Tree, values: Array, chosen: Array) -> Array:
    rows = innermost_chosen(tree.parent, chosen)
    return np.where(rows >= 0, values[rows], 0)


def _assign_steps(tree: Tree) -> None:
    """Assign host events to the step in which they start, device events to their launch's step."""
    if not tree.steps:
        return
    begins = np.array([step.start for step in tree.steps], "i8")
    ends = np.array([step.end for step in tree.steps], "i8")
    start = tree.trace.columns["start"]
    positions = np.searchsorted(begins, start, side="right") - 1
    inside = (positions >= 0) & (start < ends[np.maximum(positions, 0)])
    tree.step = np.where(inside, positions, -1).astype("i4")
    launched = tree.trace.on_device & (tree.launch >= 0)
    tree.step[launched] = tree.step[tree.launch[launched]]
    linked = _linked_rows(tree)
    tree.step[linked] = tree.step[tree.op[linked]]
    _assign_orphans(tree)
    _report_missing_steps(tree)
    _report_empty_steps(tree)
    _report_time_outside(tree)


def _linked_rows(tree: Tree) -> Integers:
    """Return the device work without a launch that names its operator."""
    rows: Integers = np.flatnonzero(tree.trace.on_device & (tree.launch < 0) & (tree.op >= 0))
    return rows


def _assign_orphans(tree: Tree) -> None:
    """Assign device events without a launch to the step of the launch with the next lower id.

    Correlation ids increase from launch to launch: an event with a lower id than all launches of
    the file was launched before the recording, in a step that is not in the file.
    """
    correlation = tree.trace.columns["correlation"]
    calls = np.flatnonzero((tree.trace.columns["kind"] == EventKind.RUNTIME) & (correlation > 0))
    orphans = np.flatnonzero(tree.trace.on_device & (tree.launch < 0) & (correlation > 0))
    if not len(calls) or not len(orphans):
        return
    order = calls[np.argsort(correlation[calls], kind="stable")]
    positions = np.searchsorted(correlation[order], correlation[orphans]) - 1
    tree.step[orphans] = np.where(positions >= 0, tree.step[order[np.maximum(positions, 0)]], -1)


def _report_time_outside(tree: Tree) -> None:
    """Report host silence and device time outside the steps if they are significant."""
    if {"K31", "K32"} & set(tree.trace.health.counts):
        return
    last = tree.steps[-1]
    is_marked = last.mark != "trace"
    typical = _typical_step_time(tree)
    report_silence(tree.trace, typical, last.end, marked=is_marked, count=len(tree.steps))
    inside, total = device_time(tree)
    if inside < MIN_COVERAGE * total:
        share = f"{inside / total:.1%} of {total / 1000:.3f} ms lies within the steps"
        tree.trace.health.add("K35", round(total - inside), share)


def device_time(tree: Tree) -> tuple[float, float]:
    """Return microseconds of device work within the steps, and in total, summed over streams."""
    rows = np.flatnonzero(tree.trace.on_device)
    start, end = tree.trace.columns["start"][rows], tree.trace.end[rows]
    edges = np.array([(step.start, step.end) for step in tree.steps], "i8").reshape(-1, 2)
    inside = _time_before(start, end, edges[:, 1]) - _time_before(start, end, edges[:, 0])
    return float(inside.sum()) / 1000, float((end - start).sum()) / 1000


def _time_before(start: Integers, end: Integers, times: Integers) -> Integers:
    """Return the total length of intervals before each of some times."""

    def sum_since(edges: Integers) -> Integers:
        """Return the sum of ``max(0, time - edge)`` over the edges, for each time."""
        ordered = np.sort(edges)
        count = np.searchsorted(ordered, times)
        total: Integers = count * times - np.concatenate([[0], np.cumsum(ordered)])[count]
        return total

    return sum_since(start) - sum_since(end)


def _describe_numbers(numbers: Sequence[int]) -> str:
    """Describe the existing steps: all numbers of at most 10, else their count and range."""
    if len(numbers) <= 10:
        return f"found {', '.join(map(str, numbers))}"
    return f"found {len(numbers)} between {numbers[0]} and {numbers[-1]}"


def _report_missing_steps(tree: Tree) -> None:
    """Count missing marked steps: skipped numbers, or a step's work outside all steps."""
    if not tree.steps or tree.steps[0].mark != "ProfilerStep":
        return
    numbers = [step.number for step in tree.steps]
    missing = numbers[-1] - numbers[0] + 1 - len(numbers)
    if missing > 0:
        tree.trace.health.add("K30", missing, _describe_numbers(numbers))
        return
    steps = tree.step[tree.top_ops()]
    inside = np.bincount(steps[steps >= 0], minlength=len(numbers))
    outside = int((steps < 0).sum())
    launched = int((tree.step[tree.trace.on_device & (tree.launch >= 0)] < 0).sum())
    typical = float(np.median(inside))
    if launched or (typical and outside > 0.02 * typical):
        detail = f"{outside} outermost calls and {launched} launches lie outside all steps"
        tree.trace.health.add("K30", 1, detail)


def _report_empty_steps(tree: Tree) -> None:
    """Count steps of typical length whose operators or runtime calls are missing."""
    long = np.array([step.time for step in tree.steps]) > _typical_step_time(tree) / 2
    kind = tree.trace.columns["kind"]
    for sort, noun in ((EventKind.OP, "operators"), (EventKind.RUNTIME, "runtime calls")):
        steps = tree.step[kind == sort]
        counts = np.bincount(steps[steps >= 0], minlength=len(tree.steps))
        empty = int((long & (counts == 0)).sum())
        if np.median(counts):
            tree.trace.health.add("K38", empty, f"{empty} without {noun}")


def _typical_step_time(tree: Tree) -> float:
    """Return the median step time in microseconds."""
    return float(np.median([step.time for step in tree.steps]))
