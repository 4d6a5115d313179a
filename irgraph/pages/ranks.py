"""Reports of several ranks: a step of all of them, and plans of table placements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from irgraph.html import sections
from irgraph.html.page import Page
from irgraph.html.sections import Section
from irgraph.pages.prediction import provenance
from irgraph.pages.slices import Slices
from irgraph.pages.timelines import add_timeline, longest, path_slices
from irgraph.planning.plans import PlanResult
from irgraph.predict.figures import coverage
from irgraph.predict.prediction import Prediction
from irgraph.report.console import time_text
from irgraph.schedule.critical_path import critical_path
from irgraph.schedule.ranks import Ranks

PATH_TEXT = "One chain over all ranks, from the start of the first to the end of the last."


INTERVALS = (
    "intervals hold 90 %; errors are common to all plans, so differences between plans are surer"
)


def _interval_text(low: float, high: float) -> str:
    return f"90 % interval {time_text(low)} to {time_text(high)}"


def ranks_page(
    ranks: Ranks,
    figures: Mapping[str, Any],
    lines: Sequence[str],
    predictions: Sequence[Prediction],
) -> Page:
    """Return the report of ranks.

    Args:
        ranks: the ranks, simulated together.
        figures: as the command prints them.
        lines: remarks.
        predictions: of each rank alone.
    """
    kernels = [kernel for prediction in predictions for kernel in prediction.kernels()]
    draw_times = figures.get("step_draws_us", {})
    path = figures["path"]
    transfer = sum(meeting.transfer for meeting in ranks.meetings)
    waiting_text = (
        f"the others wait longest for rank {ranks.straggler}"
        if any(ranks.waiting)
        else "none waits"
    )
    low, high = figures["step_time_interval_us"]
    numbers = [
        {
            "label": "step time of all ranks",
            "value": time_text(ranks.step_time),
            "detail": _interval_text(low, high),
        },
        {"label": "ranks", "value": str(len(ranks.steps)), "detail": waiting_text},
        {
            "label": "collectives",
            "value": str(len(ranks.meetings)),
            "detail": f"{time_text(transfer)} of transfer",
        },
        {"label": "hops of the critical path", "value": str(path["hops"])},
        *(
            {"label": f"step, {name} of draws", "value": time_text(time)}
            for name, time in draw_times.items()
        ),
    ]
    collectives = [
        {**row, "waits_us": ", ".join(f"{wait:.1f}" for wait in row["waits_us"])}
        for row in figures["collectives"]
    ]
    rows = [{key: row[key] for key in row if key != "shares_us"} for row in figures["ranks"]]
    names = dict.fromkeys(Path(row["model"]).name for row in rows)
    rank_sections = ranks_sections(ranks)
    parts = [
        sections.headline(
            numbers,
            span={"low": low, "value": ranks.step_time, "high": high},
            provenance=provenance(coverage(kernels)),
            longest=longest(rank_sections[0]),
        ),
        sections.notes(lines),
        *rank_sections,
        sections.records(
            "path-parts", "Critical path by what is on it", path["parts"], bars=("path",)
        ),
        sections.records("ranks", "Ranks", rows, bars=("step", "waits", "exposed", "idle")),
        sections.records("meetings", "Collectives", collectives, bars=("transfer",)),
    ]
    places = dict.fromkeys(
        f"{prediction.sheet.name}, host {prediction.host.name}" for prediction in predictions
    )
    about = f"{len(rows)} ranks together, predicted on {'; '.join(places)}"
    return Page(", ".join(names), about, parts)


def plan_page(
    model: str, plans: Sequence[PlanResult], rows: Sequence[Mapping[str, Any]], lines: Sequence[str]
) -> Page:
    """Return the report of a search for a plan.

    Args:
        model: its name.
        plans: plans, the best first.
        rows: the figures of all plans that were tried.
        lines: remarks.
    """
    best, *other_plans = plans
    low, high = best.interval
    numbers = [
        {
            "label": f"step time of the plan: {best.name}",
            "value": time_text(best.step_time),
            "detail": _interval_text(low, high),
        },
        {
            "label": "imbalance of tables",
            "value": f"{best.imbalance:.2f}",
            "detail": "slowest rank over the mean",
        },
        {"label": "memory of the fullest rank", "value": f"{max(best.memory) / 2**30:.2f} GiB"},
    ]
    if other_plans:
        rival = min(other_plans, key=lambda plan: plan.step_time)
        gain = f"{best.step_time / rival.step_time - 1:+.1%} against it"
        numbers.append(
            {
                "label": f"best of the others: {rival.name}",
                "detail": gain,
                "value": time_text(rival.step_time),
            }
        )
    rank_sections = ranks_sections(best.ranks)
    parts = [
        sections.headline(
            numbers,
            span={"low": low, "value": best.step_time, "high": high},
            provenance=provenance(best.coverage),
            longest=longest(rank_sections[0]),
        ),
        sections.notes([INTERVALS, *lines]),
        sections.records(
            "plans",
            "Plans that were tried",
            [_with_memory_bytes(row) for row in rows],
            bars=("step", "tables", "exposed", "waits"),
        ),
        _placement_table(best),
        *rank_sections,
    ]
    timeline = best.ranks.timeline
    about = f"predicted on {timeline.device}, host {timeline.host}"
    return Page(model, f"tables over {best.plan.ranks} ranks, {about}", parts)


def _with_memory_bytes(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a plan's figures with its memory in bytes, which tables show in suitable units."""
    figures = {
        key: " to ".join(map(time_text, row[key])) if key == "interval_us" else row[key]
        for key in row
    }
    figures["memory_bytes"] = figures.pop("memory_mib") * 2**20
    return figures


def ranks_sections(ranks: Ranks) -> list[Section]:
    """Return the critical path over ranks, and the timeline of all of them."""
    path, slices = critical_path(ranks.timeline), Slices()
    add_timeline(slices, ranks.timeline, path)
    return [
        sections.slices("path", "Critical path", path_slices(path), text=PATH_TEXT, tall=True),
        sections.slices("timeline", "Timeline of all ranks", slices.record()),
    ]


def _placement_table(best: PlanResult) -> Section:
    rows = [
        (name, placement.scheme, ", ".join(map(str, best.plan.ranks_of(name))))
        for name, placement in best.plan.tables.items()
    ]
    columns = [("table", "text"), ("scheme", "text"), ("ranks", "text")]
    return sections.table("placed", "Where the tables lie", columns, rows)
