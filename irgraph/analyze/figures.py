"""Figures of one recorded step."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from irgraph.report.console import time_text

HEADINGS = ("step", "rank", "time", "GPU active", "GPU idle", "exposed communication", "left out")
"""Headings of the cells of a step in a notebook."""


class StepFigures(Struct, frozen=True):
    """One step of one rank; times in microseconds.

    Attributes:
        rank, step: rank and number of the step.
        time: of the step.
        active: time with work on at least one stream.
        compute, communication, copies: time with work of that kind; copies are copies and fills by
            the copy engines.
        overlapped: time with communication and computation together.
        left_out: reason why the step is excluded from statistics, ``""`` if it is included.
        on_device: whether the trace has device events; otherwise device figures are unknown.
    """

    rank: int
    step: int
    time: float
    active: float
    compute: float
    communication: float
    overlapped: float
    left_out: str
    on_device: bool = True
    copies: float = 0.0

    @property
    def idle(self) -> float:
        """Time without work on any stream."""
        return self.time - self.active

    @property
    def exposed(self) -> float:
        """Communication not overlapped by computation."""
        return self.communication - self.overlapped

    def row(self) -> dict[str, Any]:
        """Return the figures as plain values, ``None`` if unknown."""
        figures = {
            "gpu_active_us": round(self.active, 3),
            "gpu_idle_us": round(self.idle, 3),
            "utilization": round(self.active / self.time, 4) if self.time else 0.0,
            "compute_us": round(self.compute, 3),
            "copies_us": round(self.copies, 3),
            "communication_us": round(self.communication, 3),
            "exposed_communication_us": round(self.exposed, 3),
        }
        return {
            "rank": self.rank,
            "step": self.step,
            "step_us": round(self.time, 3),
            **(figures if self.on_device else dict.fromkeys(figures)),
            "left_out": self.left_out,
        }

    def cells(self) -> tuple[str, ...]:
        """Return the figures as texts, under ``HEADINGS``."""
        if not self.on_device:
            return (f"{self.step}", f"{self.rank}", time_text(self.time), "", "", "", self.left_out)
        share = f"{self.active / self.time:.1%}" if self.time else ""
        times = map(time_text, (self.time, self.idle, self.exposed))
        step, idle, exposed = times
        return (f"{self.step}", f"{self.rank}", step, share, idle, exposed, self.left_out)
