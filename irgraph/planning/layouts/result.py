"""Predicted layouts of a step, and the layouts that a search excludes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from msgspec import Struct

from irgraph.ir.cost import COLLECTIVE
from irgraph.ir.graph import Graph
from irgraph.planning.layouts.layout import StepLayout
from irgraph.plans.plan import Plan
from irgraph.predict.prediction import Prediction
from irgraph.report.console import bytes_text, time_text
from irgraph.schedule.intervals import KERNEL, OVERHEADS, cause_name
from irgraph.schedule.timeline import busy_time

COMMUNICATION, HOST = "communication", "the host's calls"
"""Causes of a step's time: collectives, and all overheads of a host."""


class LayoutResult(Struct, frozen=True, dict=True):
    """A layout and the prediction of one of its ranks: all are equal. Times in microseconds.

    Attributes:
        layout: the layout.
        step: the step that the plan shards, with its recomputation.
        plan: its plan.
        prediction: of the step of the first rank.
        memory: bytes of a rank: reserved by torch's allocator, workspace and context.
        samples: samples of a step over all ranks; 0 if the batch is unknown.
    """

    layout: StepLayout
    step: Graph
    plan: Plan
    prediction: Prediction
    memory: int
    samples: int

    @property
    def order(self) -> tuple[float, int]:
        """Key by which layouts are sorted: step time, and memory if times are equal."""
        return round(self.step_time / MIN_DIFFERENCE), self.memory

    @property
    def step_time(self) -> float:
        """Predicted time of the step."""
        return self.prediction.step_time

    @property
    def interval(self) -> tuple[float, float]:
        """Ends of a 90 % interval of the step."""
        return self.prediction.interval

    @property
    def rate(self) -> float:
        """Samples per second over all ranks."""
        return 1e6 * self.samples / self.step_time if self.step_time else 0.0

    @cached_property
    def exposed(self) -> float:
        """Time in which a rank's device only communicates."""
        columns = self.prediction.timeline.columns
        tasks = columns.tasks
        is_own = tasks.has_cause("kernel")
        for index, kernel in enumerate(columns.kernels):
            if kernel.family == COLLECTIVE:
                is_own &= tasks.kernel != index
        own_time = busy_time(columns.start[is_own], columns.end[is_own])
        return self.prediction.timeline.active_time - own_time

    @cached_property
    def causes(self) -> dict[str, float]:
        """Time on the critical path by cause, longest first."""
        times: dict[str, float] = {}
        for cause, time in self.prediction.path.by_cause().items():
            name = _readable_cause(cause)
            times[name] = times.get(name, 0.0) + time
        return dict(sorted(times.items(), key=lambda item: -item[1]))


def _readable_cause(cause: str) -> str:
    """Return the name of a cause of time in the step of a rank."""
    if cause in OVERHEADS:
        return HOST
    if cause == f"{KERNEL}{COLLECTIVE}":
        return COMMUNICATION
    return cause_name(cause)


class RefusedLayout(Struct, frozen=True):
    """A layout that ``shard`` refuses, and its reason."""

    layout: StepLayout
    reason: str


class UnfitLayout(Struct, frozen=True):
    """A layout that does not fit into memory.

    Attributes:
        layout: the layout.
        memory: bytes that a rank needs.
        is_bound: whether it needs more than that.
    """

    layout: StepLayout
    memory: float
    is_bound: bool


class SlowLayout(Struct, frozen=True):
    """A layout that was not simulated: its step takes ``bound`` microseconds at least."""

    layout: StepLayout
    bound: float


class LayoutSearch(Struct, frozen=True):
    """The result of a search.

    Attributes:
        results: the layouts that fit and were simulated, the fastest first.
        simulated: number of layouts whose step or memory was simulated.
        refused: layouts that ``shard`` refuses.
        unfit: layouts that do not fit into memory, the smallest first.
        slow: layouts that a bound excludes.
        replicated: reasons why linear layers are not split, by the layers' names.
        warnings: reasons why the times lack work.
    """

    results: tuple[LayoutResult, ...]
    simulated: int
    refused: tuple[RefusedLayout, ...]
    unfit: tuple[UnfitLayout, ...]
    slow: tuple[SlowLayout, ...]
    replicated: Mapping[str, str]
    warnings: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        """The number of layouts of the search."""
        excluded = len(self.refused) + len(self.unfit) + len(self.slow)
        return len(self.results) + excluded


MIN_DIFFERENCE = 0.1
"""Minimum difference of two steps in microseconds; of equal steps the smaller memory is better."""

MIN_SHARE, MAX_CAUSES = 0.1, 3
"""Minimum share of a difference that is worth naming, and the maximum number of causes."""


def reason_of_order(best: LayoutResult, other: LayoutResult) -> str:
    """Return in one sentence why a layout takes longer than the best."""
    longer = other.step_time - best.step_time
    if longer < MIN_DIFFERENCE:
        more = bytes_text(other.memory - best.memory)
        return f"{other.layout} takes as long as {best.layout}, with {more} more memory"
    share = longer / best.step_time if best.step_time else 0.0
    sentence = f"{other.layout} takes {time_text(longer)} ({share:.1%}) longer than {best.layout}"
    changes: list[tuple[str, float]] = []
    for cause in {**other.causes, **best.causes}:
        change = other.causes.get(cause, 0.0) - best.causes.get(cause, 0.0)
        if abs(change) > MIN_SHARE * longer:
            changes.append((cause, change))
    changes.sort(key=lambda change: change[1])
    parts: list[str] = []
    for cause, change in changes[: -MAX_CAUSES - 1 : -1]:
        if change > 0:
            parts.append(f"{cause} {time_text(change)} more")
    for cause, change in changes[:MAX_CAUSES]:
        if change < 0:
            parts.append(f"{cause} {time_text(-change)} less")
    text = ": ".join([sentence, ", ".join(parts)]) if parts else sentence
    return f"{text}; it is slower in {_share_of_slower_draws(best, other):.0%} of draws"


def _share_of_slower_draws(best: LayoutResult, other: LayoutResult) -> float:
    """Return the share of random draws of kernel and host times in which a layout is slower."""
    is_slower = other.prediction.samples > best.prediction.samples
    return float(is_slower.mean())
