"""Overheads T1-T5 as they occur in a trace: one sample each, before any statistics."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from msgspec import Struct
from msgspec.structs import replace

from irgraph.capture.kineto.events.host import HostItem, HostView, RuntimeCall
from irgraph.capture.kineto.events.steps import TraceStep
from irgraph.capture.kineto.reading.trace import EventKind
from irgraph.diagnostics import SourceSpan, fail
from irgraph.ir.cost import CALL
from irgraph.overheads.cpu_calls import is_cpu_trace, with_own_calls

US = 1000
"""Nanoseconds in a microsecond."""

GAP_EVENT_SHARE = 0.2
"""Share of the profiler's cost of an event that falls into the gap between two operators, if a call
is its own work: in a loop of ``add_`` the gap grows by 0.5 of 2.5 us (torch 2.13; the rest is
inside)."""

KINDS = {int(kind): kind.name.lower() for kind in EventKind}
"""Names of the kinds of events in tables and reports."""

REQUIRED_KINDS = {
    "T4": "it has no launch of device work, and no operator that works on the CPU (its runtime "
    "events or its device events are missing)",
    "T2": "no operator encloses its launches",
    "T1": "no step of it has two consecutive operators",
}
"""Overheads that a host table requires, and the reason why a trace may lack each."""


class HostSample(Struct, frozen=True):
    """One measured interval of host time.

    Attributes:
        kind: ``T1`` to ``T5``, ``whole`` (an operation without launches), ``wait`` (from the end
            of awaited work to the return), ``sync`` (a wait for nothing) or ``queue`` (a launch
            that found a full queue, from the work that made room to the return).
        name: of the operation; of the runtime function for T4 and waits.
        shape: its operand shapes, ``""`` if they were not recorded.
        time: microseconds, as profiled.
        events: number of host events recorded inside, a measure of the profiler's cost: of those
            in an operation, an equal share for each part; a fraction for the gaps of a CPU.
        starts: number of torch's records that start inside a part of an operation.
        place: of a gap, a label of the preceding event; of a launch, the kind of work it starts.
    """

    kind: str
    name: str
    shape: str
    time: float
    events: float = 0
    place: str = ""
    starts: int = 0

    @property
    def key(self) -> tuple[str, str, str]:
        """Key of the sample's statistic."""
        return self.kind, self.name, self.place


@dataclass(slots=True)
class Samples:
    """The samples of some steps by key, and the launches of each operation."""

    by_key: dict[tuple[str, str, str], list[HostSample]] = field(
        default_factory=lambda: defaultdict(list)
    )
    launches: dict[str, Counter[tuple[str, ...]]] = field(
        default_factory=lambda: defaultdict(Counter)
    )

    def add(self, sample: HostSample) -> None:
        """Add a sample."""
        self.by_key[sample.key].append(sample)

    def require_sufficient(self, source: str) -> Samples:
        """Return these samples if they suffice for a host table, or raise an error.

        Without launches the time of an operation is not only host time, and T2 to T5 are unknown.
        The error is an ``IrgraphError`` (exit code 4) that names the trace, ``source``.
        """
        kinds = {kind for kind, _, _ in self.by_key}
        missing = next((reason for kind, reason in REQUIRED_KINDS.items() if kind not in kinds), "")
        if not missing:
            return self
        raise fail(
            f"no host overheads in this trace: {missing}",
            SourceSpan(source),
            hint="record steps with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], or "
            "use a shipped table (`irgraph hosts`)",
            exit_code=4,
        )


def collect(view: HostView, steps: Sequence[TraceStep]) -> Samples:
    """Return the samples of all operations in some steps."""
    samples, on_cpu = Samples(), is_cpu_trace(view.tree.trace)
    for step in steps:
        items = with_own_calls(view, view.step_items(step))
        for gap in gaps(view, items):
            sample = gap.sample
            samples.add(replace(sample, events=GAP_EVENT_SHARE) if on_cpu else sample)
        for item in items:
            for sample in item_samples(view, item):
                samples.add(sample)
            if item.kind == "op":
                kinds = tuple(_launch_kind(view, call) for call in item.calls if call.work)
                samples.launches[item.name][kinds] += 1
    return samples


class Gap(Struct, frozen=True):
    """The time before an outermost call.

    Attributes:
        item: the call after the gap.
        before: position of the call that ended last, on this thread or another.
        length: nanoseconds, without waits for the device.
        place: label of the preceding event, ``""`` for the previous call on the same thread.
        awaits: row of the device event that the host waited for without a runtime call, or -1.
    """

    item: HostItem
    before: int
    length: int
    place: str
    awaits: int = -1

    @property
    def sample(self) -> HostSample:
        """Return the gap as a sample of T1."""
        return HostSample("T1", self.item.name, self.item.key[1], self.length / US, 1, self.place)


def gaps(view: HostView, items: Sequence[HostItem]) -> Iterator[Gap]:
    """Yield the gap before each call except the first.

    A gap starts at the end of the call that ended last, on this thread or another: autograd's
    thread starts when the program's thread hands over to it, and vice versa. Marks also start gaps.
    """
    last = 0
    for index, item in enumerate(items):
        if index == 0:
            continue
        before = _previous_index(items, index, last)
        start, context = items[before].end, _gap_context(items[before], item)
        awaits = view.polled_event(start, item.start)
        if awaits >= 0:
            start, context = int(view.tree.trace.end[awaits]), "behind wait"
        yield Gap(item, before, max(0, item.start - start), context, awaits)
        if item.end >= items[last].end:
            last = index


def _previous_index(items: Sequence[HostItem], index: int, last: int) -> int:
    """Return the index of the call that ended last before a call starts."""
    start = items[index].start
    if items[last].end <= start:
        return last
    candidates = [i for i in range(max(0, index - 64), index) if items[i].end <= start]
    return max(candidates, key=lambda i: items[i].end, default=0)


def _gap_context(previous: HostItem, item: HostItem) -> str:
    if previous.kind == "loader":
        return "behind loader"
    if previous.kind == "mark":
        return "behind mark"
    return "" if previous.thread == item.thread else "hand-over"


def item_samples(view: HostView, item: HostItem) -> Iterator[HostSample]:
    """Yield the samples inside one operation; they add up to its length."""
    name, shape = item.key
    if item.kind == "mark":
        return
    if item.kind == "loader" or not item.calls:
        kind = "loader" if item.kind == "loader" else "whole"
        yield HostSample(kind, name, shape, (item.end - item.start) / US, item.events)
        return
    inner_events = max(0, item.events - 1 - sum(call.events for call in item.calls))
    share = round(inner_events / (len(item.calls) + 1))
    begin, records = item.start + 1, view.events_between
    if item.kind != "call":
        first = item.calls[0].start
        starts = records(item.thread, begin, first)
        yield HostSample("T2", name, shape, (first - item.start) / US, share, starts=starts)
    for call, following in zip(item.calls, (*item.calls[1:], None), strict=True):
        yield call_sample(view, call)
        if following is not None:
            between_us = max(0, following.start - call.end) / US
            starts = records(item.thread, max(begin, call.end), following.start)
            yield HostSample("T5", name, shape, between_us, share, starts=starts)
    if item.kind != "call":
        end = item.calls[-1].end
        starts = records(item.thread, max(begin, end), item.end)
        after_us = max(0, item.end - end) / US
        yield HostSample("T3", name, shape, after_us, share, starts=starts)


def call_sample(view: HostView, call: RuntimeCall) -> HostSample:
    """Return a launch's time in the driver, or a wait's time after the awaited work.

    A call that is its own work has no further host time. Of a launch that found a full queue only
    the time after the wait is known, which the driver partly spent before.
    """
    if call.is_work:
        return HostSample("T4", CALL, "", 0.0, 0, CALL)
    if call.release is not None:
        rest = (call.end - call.release.time) / US
        return HostSample("queue", call.function, "", rest, 1, _launch_kind(view, call))
    if call.awaits < 0:
        kind = "sync" if call.syncs else "T4"
        launch_kind = _launch_kind(view, call) if call.work else ""
        return HostSample(kind, call.function, "", (call.end - call.start) / US, 1, launch_kind)
    columns = view.tree.trace.columns
    end = int(columns["start"][call.awaits]) + int(columns["duration"][call.awaits])
    return HostSample("wait", call.function, "", (call.end - end) / US, 1)


def _launch_kind(view: HostView, call: RuntimeCall) -> str:
    """Return the kind of work that a launch starts, ``call`` if it is its own work."""
    if call.is_work:
        return CALL
    return KINDS[int(view.tree.trace.columns["kind"][call.work[0]])]
