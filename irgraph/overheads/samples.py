"""Overheads T1-T5 as they occur in a trace: one sample each, before any statistics."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from msgspec import Struct
from msgspec.structs import replace

from irgraph.capture.kineto.events.host import Call, HostView, Item
from irgraph.capture.kineto.events.steps import Step
from irgraph.capture.kineto.reading.trace import Kind
from irgraph.diagnostics import SourceSpan, fail
from irgraph.ir.cost import CALL
from irgraph.overheads.own_calls import of_cpu, with_own_calls

US = 1000
"""Nanoseconds in a microsecond."""

BETWEEN = 0.2
"""Share of what the profiler adds to an event that lies between two operators, where a call is its
own work: in a loop of ``add_`` the gap grows by 0.5 of 2.5 us (torch 2.13; the rest is inside)."""

KINDS = {int(kind): kind.name.lower() for kind in Kind}
"""Names of the kinds of events in tables and reports."""

NEEDED = {
    "T4": "it has no launch of device work, and no operator that works on the CPU (its runtime "
    "events or its device events are missing)",
    "T2": "no operator encloses its launches",
    "T1": "no step of it has two consecutive operators",
}
"""Overheads that a host table requires, and why a trace may have none."""


class Sample(Struct, frozen=True):
    """One measured stretch of host time.

    Attributes:
        kind: ``T1`` to ``T5``, ``whole`` (an operation without launches) or ``wait`` (from the end
            of awaited work to the return).
        name: of the operation; of the runtime function for T4 and waits.
        shape: its operand shapes, ``""`` where the trace does not say.
        time: microseconds, as profiled.
        events: host events recorded inside: the profiler's cost, in events; of a CPU's gap a share.
        place: of a gap, what comes before it; of a launch, what it starts.
    """

    kind: str
    name: str
    shape: str
    time: float
    events: float = 0
    place: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        """Return the key of the statistic that the sample belongs to."""
        return self.kind, self.name, self.place


@dataclass(slots=True)
class Samples:
    """The samples of some steps by key, and the launches of each operation."""

    by_key: dict[tuple[str, str, str], list[Sample]] = field(
        default_factory=lambda: defaultdict(list)
    )
    launches: dict[str, Counter[tuple[str, ...]]] = field(
        default_factory=lambda: defaultdict(Counter)
    )

    def add(self, sample: Sample) -> None:
        """Take a sample."""
        self.by_key[sample.key].append(sample)

    def sound(self, source: str) -> Samples:
        """Return these samples if they suffice for a host table.

        Without launches the whole time of an operation is not only host time, and T2 to T5 are
        unknown. Raises ``IrgraphError`` (exit code 4) that names the trace, ``source``.
        """
        kinds = {kind for kind, _, _ in self.by_key}
        lacking = next((why for kind, why in NEEDED.items() if kind not in kinds), "")
        if not lacking:
            return self
        raise fail(
            f"no host overheads in this trace: {lacking}",
            SourceSpan(source),
            hint="record steps with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], or "
            "use a shipped table (`irgraph hosts`)",
            exit_code=4,
        )


def collect(view: HostView, steps: Sequence[Step]) -> Samples:
    """Return the samples of all operations in some steps."""
    samples, alone = Samples(), of_cpu(view.tree.trace)
    for step in steps:
        items = with_own_calls(view, view.of_step(step))
        for gap in gaps(view, items):
            sample = gap.sample
            samples.add(replace(sample, events=BETWEEN) if alone else sample)
        for item in items:
            for sample in of_item(view, item):
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
        length: nanoseconds, without waiting for the device.
        place: what comes before, unless just the previous call on the same thread.
        awaits: row of the device event that the host waited for without a runtime call, or -1.
    """

    item: Item
    before: int
    length: int
    place: str
    awaits: int = -1

    @property
    def sample(self) -> Sample:
        """Return the gap as a sample of T1."""
        return Sample("T1", self.item.name, self.item.key[1], self.length / US, 1, self.place)


def gaps(view: HostView, items: Sequence[Item]) -> Iterator[Gap]:
    """Yield the gap before each call but the first.

    What came before is the call that ended last, on this thread or another: autograd's thread
    starts when the program's hands over to it, and vice versa. Marks begin gaps, too.
    """
    last = 0
    for at, item in enumerate(items):
        if at == 0:
            continue
        before = _before(items, at, last)
        begin, place = items[before].end, _place(items[before], item)
        awaits = view.polled(begin, item.start)
        if awaits >= 0:
            begin, place = int(view.tree.trace.end[awaits]), "behind wait"
        yield Gap(item, before, max(0, item.start - begin), place, awaits)
        if item.end >= items[last].end:
            last = at


def _before(items: Sequence[Item], at: int, last: int) -> int:
    """Return the position of the call that ended last before one starts."""
    start = items[at].start
    if items[last].end <= start:
        return last
    candidates = [i for i in range(max(0, at - 64), at) if items[i].end <= start]
    return max(candidates, key=lambda i: items[i].end, default=0)


def _place(before: Item, item: Item) -> str:
    if before.kind == "loader":
        return "behind loader"
    if before.kind == "mark":
        return "behind mark"
    return "" if before.thread == item.thread else "hand-over"


def of_item(view: HostView, item: Item) -> Iterator[Sample]:
    """Yield the samples inside one operation; they add up to its length."""
    name, shape = item.key
    if item.kind == "mark":
        return
    if item.kind == "loader" or not item.calls:
        kind = "loader" if item.kind == "loader" else "whole"
        yield Sample(kind, name, shape, (item.end - item.start) / US, item.events)
        return
    inside = max(0, item.events - 1 - sum(call.events for call in item.calls))
    share = inside / (len(item.calls) + 1)
    if item.kind != "call":
        yield Sample("T2", name, shape, (item.calls[0].start - item.start) / US, round(share))
    for call, following in zip(item.calls, (*item.calls[1:], None), strict=True):
        yield of_call(view, call)
        if following is not None:
            between = max(0, following.start - call.end) / US
            yield Sample("T5", name, shape, between, round(share))
    if item.kind != "call":
        after = max(0, item.end - item.calls[-1].end) / US
        yield Sample("T3", name, shape, after, round(share))


def of_call(view: HostView, call: Call) -> Sample:
    """Return a launch's time in the driver, or a wait's time after what it waited for.

    A call that is its own work takes no time beside it.
    """
    if call.is_work:
        return Sample("T4", CALL, "", 0.0, 0, CALL)
    if call.awaits < 0:
        kind = "sync" if call.syncs else "T4"
        started = _launch_kind(view, call) if call.work else ""
        return Sample(kind, call.function, "", (call.end - call.start) / US, 1, started)
    columns = view.tree.trace.columns
    done = int(columns["start"][call.awaits]) + int(columns["duration"][call.awaits])
    return Sample("wait", call.function, "", (call.end - done) / US, 1)


def _launch_kind(view: HostView, call: Call) -> str:
    """Return what a launch starts: ``kernel``, ``memcpy``, ``memset``, or itself: ``call``."""
    if call.is_work:
        return CALL
    return KINDS[int(view.tree.trace.columns["kind"][call.work[0]])]
