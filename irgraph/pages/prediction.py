"""The report of a prediction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from irgraph.html import sections
from irgraph.html.page import Page
from irgraph.html.sections import Section
from irgraph.pages.breakdowns import prediction_breakdowns, what_ifs
from irgraph.pages.memory import memory_over_time
from irgraph.pages.roofline import roof_sections
from irgraph.pages.slices import Slices, add_events
from irgraph.pages.timelines import add_timeline, path_slices
from irgraph.predict.answer import title
from irgraph.predict.prediction import Prediction
from irgraph.predict.roofline import works_of
from irgraph.predict.tables import figure_rows
from irgraph.predict.validation import UNVALIDATED
from irgraph.report.console import time_text
from irgraph.schedule.perfetto import Part

PATH_TEXT = (
    "The chain of host work, launches and kernels from the start of the step to its end: each "
    "begins when the one before it ends, so that their lengths add up to the step time. Only what "
    "is on it can make the step shorter."
)
MAX_LONGEST = 5
"""Maximum number of operations that a headline names."""

TIMELINE_TEXT = (
    "Host threads show operations and, below them, what they spend their time on (T1 to T5); "
    "streams show kernels. What is on the critical path has a dark edge."
)


def prediction_page(
    prediction: Prediction,
    summary: Mapping[str, Any] | None = None,
    *,
    measured: float | None = None,
    recorded: Part | None = None,
) -> Page:
    """Return the report of a prediction.

    Args:
        prediction: the prediction.
        summary: its figures, if they are available (``Prediction.summary``).
        measured: a measured step time, microseconds.
        recorded: the recorded step, to be shown above the predicted one.
    """
    figures = prediction.summary() if summary is None else summary
    parts = [_headline(figures, measured), sections.notes(figures["warnings"], warning=True)]
    parts += prediction_sections(prediction, figures, measured=measured, recorded=recorded)
    return Page(title(figures), about_prediction(figures), parts)


def about_prediction(summary: Mapping[str, Any]) -> str:
    """Return the device and the host of a prediction, as one line."""
    return f"predicted on {summary['device']['name']}, host {summary['host']}"


def prediction_sections(
    prediction: Prediction,
    figures: Mapping[str, Any],
    *,
    measured: float | None = None,
    recorded: Part | None = None,
) -> list[Section]:
    """Return the sections of a prediction below its headline; ``figures`` is its summary."""
    parts = [
        sections.slices(
            "path", "Critical path", path_slices(prediction.path), text=PATH_TEXT, tall=True
        ),
        sections.slices(
            "timeline", "Timeline", _timeline(prediction, recorded), text=TIMELINE_TEXT
        ),
        prediction_breakdowns(figures),
        what_ifs(figures["sensitivity"], UNVALIDATED),
        *roof_sections(works_of(prediction.priced, prediction.sheet), prediction.sheet),
        memory_over_time(prediction),
        sections.facts("figures", "All figures", figure_rows(figures, measured)),
    ]
    return [part for part in parts if part is not None]


def _timeline(prediction: Prediction, recorded: Part | None) -> dict[str, Any]:
    slices = Slices()
    name = "" if recorded is None else "predicted"
    if recorded is not None:
        add_events(slices, recorded.trace_events("measured", 0)["traceEvents"], "measured")
    add_timeline(slices, prediction.timeline, prediction.path, name)
    return slices.record()


def _headline(summary: Mapping[str, Any], measured: float | None) -> Section:
    step = summary["step_time_us"]
    low, high = summary["step_time_interval_us"]
    processor = "CPU" if summary["device"]["architecture"] == "cpu" else "GPU"
    within = f"90 % interval {time_text(low)} to {time_text(high)}"
    numbers = [{"label": "step time, predicted", "value": time_text(step), "detail": within}]
    if measured is not None:
        error = f"prediction {step / measured - 1:+.1%}"
        numbers.append(
            {"label": "step time, measured", "value": time_text(measured), "detail": error}
        )
    idle = f"idle {time_text(summary['gpu_idle_us'])}"
    rows = dict(figure_rows(summary, measured))
    memory, _, verdict = rows["peak memory"].partition(": ")
    active = f"{summary['gpu_utilization']:.1%}"
    numbers += [
        {"label": f"{processor} active", "value": active, "detail": idle},
        {
            "label": "peak memory",
            "value": memory,
            "detail": verdict,
            "tone": "" if summary["memory"]["fits"] else "bad",
        },
        _coverage(summary),
    ]
    return sections.headline(numbers, **headline_details(summary, measured))


def headline_details(summary: Mapping[str, Any], measured: float | None = None) -> dict[str, Any]:
    """Return a step's interval, its provenance and its longest operations, for a headline."""
    low, high = summary["step_time_interval_us"]
    step = summary["step_time_us"]
    span = {"low": low, "value": step, "high": high, "measured": measured}
    return {
        "span": span,
        "provenance": provenance(summary["coverage"]),
        "longest": longest(summary["critical_ops_us"]),
    }


def provenance(coverage: Mapping[str, float]) -> dict[str, float]:
    """Return shares of device time by their source, which add up to one."""
    return {source: share for source, share in coverage.items() if source != "outside range"}


def longest(times: Mapping[str, float]) -> list[tuple[str, float, float]]:
    """Return the operations with most time on a critical path, and their shares of it."""
    total = sum(times.values())
    operations = [(name, time) for name, time in times.items() if name and time > 0]
    operations.sort(key=lambda item: -item[1])
    return [(name, time, time / total) for name, time in operations[:MAX_LONGEST]]


def _coverage(summary: Mapping[str, Any]) -> dict[str, str]:
    unknown = sum(summary["unknown"]["ops"].values())
    value = str(unknown) if unknown else "none"
    tone = "bad" if unknown else ""
    share = f"{summary['unknown']['share_of_bytes']:.1%} of all bytes" if unknown else ""
    return {"label": "ops no model knows", "value": value, "detail": share, "tone": tone}
