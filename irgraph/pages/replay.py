"""The report of a replay: recorded steps, measured and simulated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from irgraph.html import sections
from irgraph.html.page import Page
from irgraph.pages.breakdowns import shares
from irgraph.pages.slices import Slices, add_events
from irgraph.pages.timelines import add_timeline, longest, path_slices
from irgraph.replay.recorded_step import RecordedStep
from irgraph.replay.replay import Replayed
from irgraph.report.console import time_text
from irgraph.schedule.critical_path import critical_path

CAUSE_NAMES = {"kernel kernel": "kernels", "kernel memcpy": "copies", "kernel memset": "fills"}
"""Names in reports of a recorded step's causes on its device."""

TEXT = "The last complete step as it was recorded, and simulated below it; both from their starts."

PATH_TEXT = (
    "To the end of all work that the step launched. That may be after the step's own end, when the "
    "host goes on to the next step: the step time is from one step to the next."
)


def replay_page(
    recorded: RecordedStep,
    simulated: Replayed,
    rows: Sequence[Mapping[str, Any]],
    errors: Mapping[str, float],
    lines: Sequence[str],
) -> Page:
    """Return the report of replayed steps.

    Args:
        recorded: the last step.
        simulated: the same step, with its timeline.
        rows: figures of all steps.
        errors: signed shares by statistic (``mean``, ``median``, ``worst``).
        lines: the sources of the host times, and repaired or missing parts of the trace.
    """
    path = critical_path(simulated.timeline)
    slices = Slices()
    add_events(slices, recorded.slices("measured"), "measured")
    add_timeline(slices, simulated.timeline, path, "simulated")
    span = None
    if simulated.interval is not None:
        low, high = simulated.interval
        measured = simulated.measured
        span = {"low": low, "value": simulated.simulated, "high": high, "measured": measured}
    numbers = [
        {
            "label": "step time, simulated",
            "value": time_text(simulated.simulated),
            "detail": f"step {simulated.step} of rank {simulated.rank}",
        },
        {
            "label": "measured",
            "value": time_text(simulated.measured),
            "detail": f"error {simulated.error:+.2%}",
        },
        *(
            {"label": f"error of the {name}", "value": f"{error:+.2%}"}
            for name, error in errors.items()
        ),
    ]
    causes = {CAUSE_NAMES.get(cause, cause): time for cause, time in path.by_cause().items()}
    cause = shares(
        "path-by-cause",
        "Critical path of the simulated step, by cause",
        "cause",
        causes,
        simulated.timeline.step_time,
    )
    band = path_slices(path)
    parts = [
        sections.headline(numbers, span=span, longest=longest(band)),
        sections.notes(lines),
        sections.slices("path", "Critical path, simulated", band, text=PATH_TEXT, tall=True),
        sections.slices("timeline", "Measured and simulated", slices.record(), text=TEXT),
        cause,
        sections.records("replay", "Steps", rows, bars=("measured", "simulated")),
    ]
    trace = recorded.tree.trace
    return Page(Path(trace.source).name, f"replayed, recorded on {trace.device_name}", parts)
