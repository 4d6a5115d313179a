"""The report of a search for formats: gains against accuracy, and the step before and after."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from irgraph.html import sections
from irgraph.html.page import Page
from irgraph.html.sections import Section
from irgraph.pages.difference import difference_headline, difference_sections, remarks
from irgraph.precision.report import SearchResult
from irgraph.predict.difference import Difference
from irgraph.report.console import bytes_text

COLUMNS = {
    "parameter": ("parameter", "text"), "format": ("format", "text"), "chosen": ("plan", "text"),
    "kl": ("KL, nats", "number"), "kl_share": ("of entropy", "number"),
    "sqnr_db": ("SQNR, dB", "number"), "l2": ("L2", "number"), "step_us": ("step less", "us"),
    "active_us": ("device less", "us"), "bytes": ("parameters less", "bytes"),
    "link_bytes": ("over links less", "bytes"),
}  # fmt: skip
"""Fields of a format that was tried alone: heading and kind."""

SCATTER_TEXT = (
    "Every format of every table and layer, each alone: divergence of the predictions, executed on "
    "the data, and what it makes less."
)


def quantized_page(
    result: SearchResult,
    difference: Difference,
    *,
    aim: str,
    data: str,
    refused: Mapping[str, Mapping[str, str]],
) -> Page:
    """Return the report of a search for formats.

    Args:
        result: the plan and its figures.
        difference: the step before and after.
        aim: the figure that was reduced (``precision.measure.AIMS``).
        data: data on which the accuracy was executed.
        refused: by parameter and format, the reason why it was not tried.
    """
    summary = difference.summary()
    head = difference_headline(difference, summary)
    head["numbers"] += list(_accuracy(result))
    lines = [f"accuracy was executed on: {data}", *result.messages]
    if not result.plan:
        lines.append("nothing chosen: no format gains anything within the budget")
    parts = [head, *remarks(summary), sections.notes(lines), *_plan(result)]
    parts += [_scatter(result.rows, aim), _formats_table(result.rows), *_refused_table(refused)]
    parts += difference_sections(difference, summary)
    about = f"formats within a budget, predicted on {summary['device']}, host {summary['host']}"
    return Page(difference.before.priced.graph.name, about, parts)


def _accuracy(result: SearchResult) -> Iterator[dict[str, str]]:
    errors = result.errors
    tone = "bad" if errors.kl > result.budget else "good"
    before, after = (result.figures[side]["parameter_bytes"] for side in ("before", "after"))
    yield {
        "label": "divergence of predictions, executed",
        "value": f"{errors.kl:.3g} nats",
        "detail": f"budget {result.budget:.3g}, {100 * errors.share:.3g}% of the entropy",
        "tone": tone,
    }
    if errors.rise is not None:
        yield {
            "label": "rise of the log loss",
            "value": f"{errors.rise[0]:+.2e}",
            "detail": f"± {errors.rise[1]:.1e}, on labels",
        }
    yield {
        "label": "parameters",
        "value": bytes_text(after),
        "detail": f"before: {bytes_text(before)}",
    }


def _plan(result: SearchResult) -> list[Section]:
    text = "What irgraph opt -s runs; the divergence is of all of it together."
    return [sections.listing("plan", "The plan", result.script, text=text)] if result.script else []


def _scatter(rows: Sequence[Mapping[str, Any]], aim: str) -> Section:
    field, label, kind = {
        "time": ("step_us", "step less", "us"),
        "active": ("active_us", "device less", "us"),
        "parameters": ("bytes", "parameters less", "bytes"),
        "links": ("link_bytes", "over links less", "bytes"),
    }[aim]
    points = [
        {
            "name": f"{row['parameter']} in {row['format']}",
            "group": row["format"],
            "x": row["kl"],
            "y": row[field],
            "front": False,
        }
        for row in rows
    ]
    best = float("-inf")
    for point in sorted(points, key=lambda p: (p["x"], -p["y"])):
        point["front"], best = point["y"] > best, max(best, point["y"])
    return sections.scatter(
        "gains",
        "What accuracy pays for",
        points,
        ("KL, nats", "number"),
        (label, kind),
        text=SCATTER_TEXT,
    )


def _formats_table(rows: Sequence[Mapping[str, Any]]) -> Section:
    chosen = {True: "chosen", False: ""}
    cells = [[chosen[row[key]] if key == "chosen" else row[key] for key in COLUMNS] for row in rows]
    return sections.table(
        "formats",
        "Formats, each alone",
        list(COLUMNS.values()),
        cells,
        bars=("step less", "device less"),
    )


def _refused_table(refused: Mapping[str, Mapping[str, str]]) -> list[Section]:
    rows = [
        (name, format_name, reason)
        for name, reasons in refused.items()
        for format_name, reason in reasons.items()
    ]
    columns = [(name, "text") for name in ("parameter", "format", "why not")]
    return [sections.table("refused", "What was not tried", columns, rows)] if rows else []
