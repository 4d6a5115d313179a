"""Who called what: parents, top-level operators, phases, steps, and the launch of each kernel."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np

from irgraph.capture.kineto.clean import MICROSECOND, launch_rows
from irgraph.capture.kineto.steps import Step, find_steps
from irgraph.capture.kineto.trace import Array, Integers, Kind, KinetoTrace

PHASES = ("forward", "backward", "optimizer")
EVALUATE = "autograd::engine::evaluate_function: "
_OPTIMIZER = "Optimizer."
_MODULE = re.compile(r"(?:nn\.Module: |module::|irgraph\.module#)(.+)")
_HOST = (Kind.OP, Kind.ANNOTATION, Kind.RUNTIME, Kind.PYTHON)


@dataclass(slots=True)
class Tree:
    """The event tree of a trace; every array has one element for each event, -1 for none.

    Attributes:
        trace: what it was made from.
        parent: row of the innermost host event around each host event.
        end: nanoseconds; children are cut at the end of their parent.
        op: row of the innermost operator at or around it; for device events, around its launch.
        top: row of the outermost operator, likewise: the one that pays host overheads.
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
    steps: list[Step]
    modules: list[str]
    main: int
    backward: frozenset[int]
    forward_of: dict[int, int] = field(default_factory=dict)

    def top_ops(self) -> Integers:
        """Return the rows of top-level operators in order of time."""
        rows: Integers = np.flatnonzero(self.top == np.arange(len(self.top)))
        operators: Integers = rows[self.trace.columns["kind"][rows] == Kind.OP]
        return operators

    def children(self) -> dict[int, list[int]]:
        """Return the rows directly below each host event, in order of time."""
        found: dict[int, list[int]] = defaultdict(list)
        for row in np.flatnonzero(self.parent >= 0).tolist():
            found[int(self.parent[row])].append(row)
        return found

    def is_backward_thread(self, row: int) -> bool:
        """Tell whether a host event ran on a thread of autograd's engine."""
        return int(self.trace.columns["thread"][row]) in self.backward


def build_tree(trace: KinetoTrace) -> Tree:
    """Return the event tree of a trace; partial overlaps are counted in its health report."""
    count = len(trace)
    parent = np.full(count, -1, "i8")
    end = trace.end
    kind = trace.columns["kind"]
    host = np.flatnonzero(np.isin(kind, _HOST))
    threads = trace.columns["thread"][host]
    overlaps = 0
    for thread in np.unique(threads).tolist():
        overlaps += _nest(trace, host[threads == thread], parent, end)
    trace.health.add("K11", overlaps, "taken as neighbours")
    main, backward = _threads(trace)
    others = len(np.unique(threads)) - 1 - len(backward)
    trace.health.add("K24", others)
    op, top = _operators(trace, host, parent)
    launch = launch_rows(trace)
    launched = launch >= 0
    op[launched], top[launched] = op[launch[launched]], top[launch[launched]]
    tree = Tree(
        trace, parent, end, op, top, launch,
        np.zeros(count, "i1"), np.full(count, -1, "i8"), np.zeros(count, "i4"),
        find_steps(trace, main), [""], main, backward,
    )  # fmt: skip
    tree.forward_of = forward_operators(tree)
    _scopes(tree, host)
    _assign_steps(tree)
    return tree


def _nest(trace: KinetoTrace, rows: Integers, parent: Integers, end: Integers) -> int:
    """Fill in the parents on one thread; return how many events overlap in part."""
    starts, ends = trace.columns["start"][rows].tolist(), end[rows].tolist()
    runtime = (trace.columns["kind"][rows] == Kind.RUNTIME).tolist()
    found, cut = [-1] * len(rows), list(ends)
    stack: list[int] = []
    overlaps = 0
    for i, start in enumerate(starts):
        length = ends[i] - start
        least = MICROSECOND if runtime[i] else 0
        while stack and (cut[stack[-1]] < start or (cut[stack[-1]] == start and length > least)):
            stack.pop()
        while stack and not runtime[i] and ends[i] > cut[stack[-1]] + MICROSECOND:
            overlaps += cut[stack[-1]] > start
            stack.pop()
        if stack:
            # runtime calls are timed by another clock: they belong to where they start
            overlaps += ends[i] > cut[stack[-1]] + MICROSECOND
            found[i] = stack[-1]
            cut[i] = min(ends[i], cut[stack[-1]])
        stack.append(i)
    places = np.array(found, "i8")
    parent[rows] = np.where(places >= 0, rows[places], -1)
    end[rows] = cut
    return overlaps


def _threads(trace: KinetoTrace) -> tuple[int, frozenset[int]]:
    """Return the program's thread and those of autograd's engine."""
    kind, thread = trace.columns["kind"], trace.columns["thread"]
    engine = [i for i, name in enumerate(trace.names) if name.startswith(EVALUATE)]
    nodes = np.isin(trace.columns["name"], engine) & (kind == Kind.OP)
    old = (kind == Kind.OP) & (trace.columns["forward"] > 0)
    on_engine = set(np.unique(thread[nodes | old]).tolist())
    steps = [thread[row] for row in trace.steps().values()]
    host = thread[np.isin(kind, (Kind.OP, Kind.ANNOTATION))]
    forward = host[~np.isin(host, list(on_engine))]
    if steps:
        main = int(np.bincount(steps).argmax())
    elif len(forward) or len(host):
        main = int(np.bincount(forward if len(forward) else host).argmax())
    else:
        main = -1
    return main, frozenset(on_engine - {main})


def _operators(trace: KinetoTrace, host: Integers, parent: Integers) -> tuple[Integers, Integers]:
    """Return the innermost and the outermost operator at or around each host event."""
    op, top = [-1] * len(trace), [-1] * len(trace)
    is_op = (trace.columns["kind"] == Kind.OP).tolist()
    above = parent.tolist()
    for row in host.tolist():
        up = above[row]
        op[row] = row if is_op[row] else op[up] if up >= 0 else -1
        top[row] = top[up] if up >= 0 and top[up] >= 0 else op[row]
    return np.array(op, "i8"), np.array(top, "i8")


def forward_operators(tree: Tree) -> dict[int, int]:
    """Return by backward operator the forward one: by sequence number, else by flow events.

    Several forward operators carry one number, as views take none of their own: the last of them
    made the autograd node.
    """
    trace = tree.trace
    sequence, forward = trace.columns["sequence"], trace.columns["forward"]
    operators = np.flatnonzero((trace.columns["kind"] == Kind.OP) & (sequence >= 0))
    backward = np.array([tree.is_backward_thread(row) for row in operators.tolist()], bool)
    backward |= forward[operators] > 0
    last: dict[int, int] = {}
    found: dict[int, int] = {}
    for row, is_backward in zip(operators.tolist(), backward.tolist(), strict=True):
        number = int(sequence[row])
        if not is_backward:
            last[number] = row
        elif number in last:
            found[row] = last[number]
    for row, origin in trace.forward_links.items():
        found.setdefault(row, origin)
    return found


def _scopes(tree: Tree, host: Integers) -> None:
    """Fill in phases and modules: from the ranges around, for backward from the forward op."""
    trace = tree.trace
    numbers: dict[str, int] = {"": 0}
    labels = {i: m.group(1) for i, n in enumerate(trace.names) if (m := _MODULE.match(n))}
    optimizer = {i for i, name in enumerate(trace.names) if name.startswith(_OPTIMIZER)}
    names, kinds = trace.columns["name"].tolist(), trace.columns["kind"].tolist()
    phase, module = [0] * len(trace), [0] * len(trace)
    hierarchy, above = trace.columns["module"].tolist(), tree.parent.tolist()
    for row in host.tolist():
        up = above[row]
        if up >= 0:
            phase[row], module[row] = phase[up], module[up]
        if tree.is_backward_thread(row):
            phase[row] = 1
        elif kinds[row] == Kind.ANNOTATION and names[row] in optimizer:
            phase[row] = 2
        path = labels.get(names[row]) or trace.modules[hierarchy[row]]
        if path:
            module[row] = numbers.setdefault(path, len(numbers))
        origin = tree.forward_of.get(row)
        if origin is not None:
            module[row] = module[origin]
    tree.phase, tree.module = np.array(phase, "i1"), np.array(module, "i4")
    launched = np.flatnonzero(tree.launch >= 0)
    for values in (tree.phase, tree.module):
        values[launched] = values[tree.launch[launched]]
    tree.modules = list(numbers)


def _assign_steps(tree: Tree) -> None:
    """Put every host event into the step in which it starts, device events to their launch."""
    if not tree.steps:
        return
    begins = np.array([step.start for step in tree.steps], "i8")
    ends = np.array([step.end for step in tree.steps], "i8")
    start = tree.trace.columns["start"]
    at = np.searchsorted(begins, start, side="right") - 1
    inside = (at >= 0) & (start < ends[np.maximum(at, 0)])
    tree.step = np.where(inside, at, -1)
    _say_missing_steps(tree)
    device = tree.trace.on_device
    launched = device & (tree.launch >= 0)
    tree.step[launched] = tree.step[tree.launch[launched]]


def _say_missing_steps(tree: Tree) -> None:
    """Count marked steps that are gone: numbers left out, or a step's work outside all steps."""
    if not tree.steps or tree.steps[0].marked != "ProfilerStep":
        return
    numbers = [step.number for step in tree.steps]
    missing = numbers[-1] - numbers[0] + 1 - len(numbers)
    if missing > 0:
        tree.trace.health.add("K30", missing, f"found {', '.join(map(str, numbers))}")
        return
    steps = tree.step[tree.top_ops()]
    inside = np.bincount(steps[steps >= 0], minlength=len(numbers))
    outside = int((steps < 0).sum())
    launched = int((tree.step[np.flatnonzero(tree.launch >= 0)] < 0).sum())
    usual = float(np.median(inside))
    if launched or (usual and outside > 0.02 * usual):
        detail = f"{outside} outermost calls and {launched} launches lie outside all steps"
        tree.trace.health.add("K30", 1, detail)
