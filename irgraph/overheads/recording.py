"""The recording of a trace, as its events show it, and its share in the host times."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from msgspec import Struct

from irgraph.capture.kineto.reading.trace import EventKind, KinetoTrace
from irgraph.diagnostics import SourceSpan, fail
from irgraph.overheads.extract import NO_COST, ProfilerCost

EVENT_US = 0.38
"""Microseconds of a recorded host event, with nothing else recorded (torch 2.13, AMD EPYC)."""

PART_US: Mapping[str, float] = {
    "operand shapes": 0.27,
    "call stacks": 0.05,
    "memory": 0.03,
    "modules": 0.16,
}
"""Microseconds that each further part adds to a host event in the same measurement."""

MIN_OBSERVED_SHARE = 0.5
"""Minimum share of operators with an id of an observer in a trace that one was attached to."""


class ProfilerRecording(Struct, frozen=True):
    """The parts of a trace's recording that take host time.

    Attributes:
        observer: whether an execution trace observer was attached, which makes host times some
            six times as long.
        old_stacks: whether operators carry call stacks, as releases of 2021 recorded them: these
            take 10 to 17 us an operator.
        parts: recorded properties of events, keys of ``PART_US``.
    """

    observer: bool = False
    old_stacks: bool = False
    parts: tuple[str, ...] = ()

    @property
    def cost(self) -> ProfilerCost:
        """Estimate of the cost of a host event; none if the recording is of 2021.

        A launch is one host event: nothing is known of a cost that it has besides.
        """
        if self.old_stacks:
            return NO_COST
        return ProfilerCost(EVENT_US + sum(PART_US[part] for part in self.parts), 0.0)

    @property
    def description(self) -> str:
        """Description of the recording and of the subtracted cost."""
        if self.old_stacks:
            return "recorded with call stacks of 2021, whose cost is unknown: nothing is subtracted"
        parts = ", ".join(self.parts) or "nothing but events"
        return f"recorded with {parts}: {self.cost.host:.2f} us an event are subtracted"


def recording_of(trace: KinetoTrace) -> ProfilerRecording:
    """Return the recording of a trace, by its header and its events."""
    kinds, columns = trace.columns["kind"], trace.columns
    is_operator = kinds == EventKind.OP
    count = max(int(is_operator.sum()), 1)
    observed = int(np.sum(columns["record"][is_operator] > 0)) / count
    present = {
        "operand shapes": bool(np.any(columns["shape"][is_operator])),
        "call stacks": bool(trace.header.get("with_stack")) or EventKind.PYTHON in kinds,
        "memory": trace.memory.shape[1] > 0,
        "modules": bool(trace.header.get("with_modules") or np.any(columns["module"])),
    }
    parts = tuple(part for part, is_present in present.items() if is_present)
    return ProfilerRecording(observed >= MIN_OBSERVED_SHARE, trace.has_old_stacks, parts)


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
