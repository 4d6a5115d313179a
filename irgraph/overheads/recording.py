"""The recording of a trace, as its events show it, and its share in the host times."""

from __future__ import annotations

import math

import numpy as np
from msgspec import Struct

from irgraph.capture.kineto.events.tree import Tree
from irgraph.capture.kineto.reading.trace import Array, EventKind, Integers, KinetoTrace
from irgraph.diagnostics import SourceSpan, fail
from irgraph.overheads.extract import ProfilerCost
from irgraph.overheads.samples import US, Samples

MIN_OBSERVED_SHARE = 0.5
"""Minimum share of operators with an id of an observer in a trace that one was attached to."""

MIN_NESTED_CALLS = 20
"""Minimum number of calls that call another operator first, or last, for an estimate."""

MIN_EQUAL_CALLS = 5
"""Minimum number of such calls of one operator in another whose mean gap counts."""

MAX_GAP_QUANTILE = 0.75
"""Share of the gaps of equal calls that count, the shortest: the others have interruptions."""

TIGHT_QUANTILE = 0.25
"""Share of the nested calls with smaller gaps than the estimate.

On a CPU where steps were timed with and without the profiler, the estimate is 0.54 to 0.71
of the cost of an event, with operand shapes, call stacks, memory and modules or without: it
subtracts too little.
"""

MAX_EVENT_US = 0.9
"""Maximum microseconds of an event on that CPU, with all parts recorded."""

MAX_COST_RATIO = 1 / 0.54
"""Maximum cost of an event there over the estimate from its trace."""


STACK_TEXTS = "call stacks as texts"
"""Part of the recordings of 2021, which takes several microseconds an operator."""


class ProfilerRecording(Struct, frozen=True):
    """The parts of a trace's recording that take host time.

    Attributes:
        observer: whether an execution trace observer was attached, which makes host times some
            six times as long.
        parts: recorded properties of events.
        event_us: estimate of the microseconds that a host event takes, from the gaps between
            nested operators of the trace; ``None`` if it has too few.
    """

    observer: bool = False
    parts: tuple[str, ...] = ()
    event_us: float | None = None

    @property
    def cost(self) -> ProfilerCost:
        """Estimate of the cost of a host event, before its start and after its end.

        Launches of two H100 machines, recorded at 2.9 and 0.9 us an event, take 3.4 and 3.7 us less
        one event. Stacks as texts are recorded for operators alone.
        """
        is_launch_event = STACK_TEXTS not in self.parts
        return ProfilerCost(self.event_us or 0.0, 0.0, True, is_launch_event)

    @property
    def max_cost(self) -> ProfilerCost:
        """Maximum cost of a host event, and of a launch."""
        if self.event_us is None:
            return ProfilerCost(MAX_EVENT_US, 0.0)
        return ProfilerCost(MAX_COST_RATIO * self.event_us, 0.0)

    @property
    def description(self) -> str:
        """Description of the recording and of the subtracted cost."""
        parts = f"recorded with {', '.join(self.parts) or 'nothing but events'}"
        if self.event_us is None:
            return (
                f"{parts}: nothing is subtracted, as the trace does not show the cost of an event"
            )
        launches = "" if self.cost.is_launch_event else "; nothing for launches"
        reason = f"by the gaps between nested operators{launches}"
        return f"{parts}: {self.event_us:.2f} us an event are subtracted, {reason}"

    def relative_std(self, samples: Samples) -> float:
        """Return the deviation of a trace's host times by the cost that may remain in them.

        Any cost up to the maximum is equally likely.
        """
        cost, max_cost = self.cost, self.max_cost
        rest = total = 0.0
        for sample in (s for group in samples.by_key.values() for s in group):
            subtracted = min(sample.time, cost.overhead_of(sample))
            total += sample.time - subtracted
            rest += min(sample.time, max_cost.overhead_of(sample)) - subtracted
        return rest / total / math.sqrt(3) if total else 0.0


def recording_of(tree: Tree) -> ProfilerRecording:
    """Return the recording of a trace, by its header and its events."""
    trace = tree.trace
    return ProfilerRecording(is_observed(trace), _recorded_parts(trace), event_cost(tree))


def is_observed(trace: KinetoTrace) -> bool:
    """Return whether an execution trace observer was attached: operators have its ids."""
    is_operator = trace.columns["kind"] == EventKind.OP
    count = max(int(is_operator.sum()), 1)
    observed = int(np.sum(trace.columns["record"][is_operator] > 0)) / count
    return observed >= MIN_OBSERVED_SHARE


def _recorded_parts(trace: KinetoTrace) -> tuple[str, ...]:
    kinds, columns = trace.columns["kind"], trace.columns
    present = {
        "operand shapes": bool(np.any(columns["shape"][kinds == EventKind.OP])),
        STACK_TEXTS: trace.has_old_stacks,
        "call stacks": bool(trace.header.get("with_stack")) or EventKind.PYTHON in kinds,
        "memory": trace.memory.shape[1] > 0,
        "modules": bool(trace.header.get("with_modules") or np.any(columns["module"])),
    }
    return tuple(part for part, is_present in present.items() if is_present)


def event_cost(tree: Tree) -> float | None:
    """Estimate the microseconds that the recording of an operator takes.

    An operator that calls another one first spends on the way from its own start to the other's
    the recording of one start, and as little work as there can be; likewise at the ends. The mean
    gap of equal pairs of operators is right even if times are whole microseconds.
    """
    kind, parent = tree.trace.columns["kind"], tree.parent
    inner = np.flatnonzero(parent >= 0)
    inner = inner[np.argsort(parent[inner], kind="stable")]
    if not len(inner):
        return None
    is_new = np.append(True, np.diff(parent[inner]) != 0)
    first, last = inner[is_new], inner[np.append(is_new[1:], True)]
    start, end = tree.trace.columns["start"], tree.end
    costs = []
    for rows in (first, last):
        nested = rows[(kind[rows] == EventKind.OP) & (kind[parent[rows]] == EventKind.OP)]
        outer = parent[nested]
        gaps = start[nested] - start[outer] if rows is first else end[outer] - end[nested]
        costs.append(_tight_gap(gaps, tree.trace.columns["name"], nested, outer))
    enter, leave = costs
    return None if enter is None or leave is None else (enter + leave) / US


def _tight_gap(gaps: Integers, names: Array, nested: Integers, outer: Integers) -> float | None:
    """Return the mean gap of the pairs of operators at ``TIGHT_QUANTILE``, in nanoseconds."""
    if len(gaps) < MIN_NESTED_CALLS:
        return None
    pairs = names[outer].astype("i8") << 32 | names[nested]
    _, pair, counts = np.unique(pairs, return_inverse=True, return_counts=True)
    order = np.lexsort((gaps, pair))
    groups = np.split(gaps[order], np.cumsum(counts)[:-1])
    means = [
        (_trimmed_mean(group), len(group)) for group in groups if len(group) >= MIN_EQUAL_CALLS
    ]
    if not means:
        return None
    means.sort()
    shares = np.cumsum([count for _, count in means])
    return means[int(np.searchsorted(shares, TIGHT_QUANTILE * shares[-1]))][0]


def _trimmed_mean(ordered: Integers) -> float:
    count = max(1, int(np.ceil(MAX_GAP_QUANTILE * len(ordered))))
    return float(ordered[:count].mean())


def require_no_observer(recording: ProfilerRecording, source: str) -> None:
    """Raise ``IrgraphError`` if an execution trace observer was attached to the recording.

    Its cost, 5 to 11 times the operators' own time, cannot be separated from theirs.
    """
    if recording.observer:
        raise fail(
            "an execution trace observer was attached to this recording (its operators have ids "
            "of record functions), which makes host times 6 to 12 times as long",
            SourceSpan(source),
            hint="record the host without it; `--profiler 0,0` takes the times as they are",
            exit_code=4,
        )
