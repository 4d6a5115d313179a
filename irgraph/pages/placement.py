"""The reports of services: where tables lie, the hosts that it takes, and a query's step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from irgraph.html import sections
from irgraph.html.page import Page
from irgraph.html.sections import Section
from irgraph.pages.prediction import about, prediction_sections, rests_on
from irgraph.predict.prediction import Prediction
from irgraph.predict.tables import bytes_text
from irgraph.report.console import time_text
from irgraph.serving.service import Service

AIMS = {
    "power": ("watts", "power, W", "number"), "hosts": ("hosts", "hosts", "number"),
    "step": ("step_us", "step", "us"), "price": ("usd", "price, $", "number"),
    "links": ("link_bytes", "over links a query", "bytes"),
}  # fmt: skip
"""By aim: the field of a plan, its label and its kind."""

SCATTER_TEXT = (
    "Every plan of formats in every placement: divergence of the predictions, executed, and what "
    "the service takes. Groups of hosts that share a copy are left out of the line."
)

ALONE = "One query alone, predicted, and its 90 % interval"

QUERY_TEXT = "one query alone on the chosen placement, at the load that the fleet puts on it"


def service_page(what: str, ways: Sequence[Service], prediction: Prediction, limit: float) -> Page:
    """Return the report of the ways to serve a load, the best one first.

    Args:
        what: the load and the platform, as a line.
        ways: how it can be served.
        prediction: of a query, its tables placed in the first way.
        limit: mean microseconds of a query at most.
    """
    best, summary = ways[0], prediction.summary()
    numbers = [*_fleet(best), _query(best, limit), _alone(summary)]
    parts = [
        sections.headline(numbers, span_title=ALONE, **rests_on(summary)),
        sections.notes(summary["warnings"], warning=True),
        _ways(ways),
        *_moved(best),
        *prediction_sections(prediction, summary),
    ]
    return Page(summary["model"], f"{what}; {QUERY_TEXT}, {about(summary)}", parts)


def tradeoff_page(
    what: str,
    data: str,
    rows: Sequence[Mapping[str, Any]],
    aim: str,
    budget: float,
    prediction: Prediction | None,
) -> Page:
    """Return the report of narrower tables beside where they lie.

    Args:
        what: the load and the platform, as a line.
        data: what the accuracy was executed on.
        rows: all plans (``tradeoff.as_row``), each with ``chosen``.
        aim: what stands against accuracy.
        budget: divergence allowed, nats.
        prediction: of a query of the chosen plan, ``None`` where none keeps the budget.
    """
    field, label, kind = AIMS[aim]
    points = [
        {
            "name": f"{_formats(row)}, {row['tables_on']}",
            "group": row["tables_on"],
            "x": row["kl"],
            "y": row[field],
            "front": row["front"],
        }
        for row in rows
    ]
    chosen = next((row for row in rows if row["chosen"]), None)
    summary = prediction.summary() if prediction is not None else None
    more = rests_on(summary) if summary else {}
    parts = [
        sections.headline(_chosen(chosen, budget), span_title=ALONE, **more),
        sections.notes([f"accuracy was executed on: {data}"]),
        sections.scatter(
            "front",
            "Accuracy against the service",
            points,
            ("KL, nats", "number"),
            (label, kind),
            text=SCATTER_TEXT,
        ),
        _plans(rows),
    ]
    if prediction is not None and summary is not None:
        parts += prediction_sections(prediction, summary)
    name = summary["model"] if summary else what
    return Page(name, f"{what}; {about(summary)}" if summary else what, parts)


def _fleet(way: Service) -> list[dict[str, str]]:
    price = "unknown" if way.fleet.usd is None else f"{way.fleet.usd:,.0f} $"
    return [
        {"label": "hosts", "value": f"{way.fleet.hosts:,}", "detail": f"tables on {way.name}"},
        {
            "label": "queries a second a host",
            "value": f"{way.qps:,.0f}",
            "detail": f"bound by {way.bound}",
        },
        {"label": "power", "value": f"{way.fleet.watts / 1e3:,.1f} kW", "detail": f"price {price}"},
    ]


def _query(way: Service, limit: float) -> dict[str, str]:
    return {
        "label": "mean time of a query",
        "value": time_text(way.latency),
        "detail": f"at most {time_text(limit)}, waits included",
    }


def _alone(summary: Mapping[str, Any]) -> dict[str, str]:
    low, high = map(time_text, summary["step_time_interval_us"])
    return {
        "label": "one query alone, predicted",
        "value": time_text(summary["step_time_us"]),
        "detail": f"90 % interval {low} to {high}",
    }


def _chosen(row: Mapping[str, Any] | None, budget: float) -> list[dict[str, str]]:
    if row is None:
        return [
            {
                "label": "plan",
                "value": "none",
                "detail": f"none keeps {budget:.3g} nats",
                "tone": "bad",
            }
        ]
    return [
        {"label": "hosts", "value": f"{row['hosts']:,}", "detail": f"tables on {row['tables_on']}"},
        {
            "label": "formats",
            "value": _formats(row),
            "detail": f"{row['kl']:.3g} nats of {budget:.3g} allowed",
        },
        {"label": "power", "value": f"{row['watts'] / 1e3:,.1f} kW"},
        {
            "label": "mean time of a query",
            "value": time_text(row["latency_us"]),
            "detail": f"alone: {time_text(row['step_us'])}",
        },
    ]


def _formats(row: Mapping[str, Any]) -> str:
    kinds = list(row["formats"].values())
    return ", ".join(f"{kinds.count(to)} {to}" for to in dict.fromkeys(kinds)) or "as they are"


def _ways(ways: Sequence[Service]) -> Section:
    rows = [
        (
            way.name,
            way.latency,
            way.step,
            way.qps,
            way.bound,
            way.fleet.hosts,
            way.fleet.watts,
            way.fleet.usd,
            way.hits if way.moved else None,
            way.reads if way.moved else None,
            way.load if way.moved else None,
            way.hours,
        )
        for way in ways
    ]
    columns = (
        ("tables on", "text"),
        ("query", "us"),
        ("alone", "us"),
        ("qps a host", "number"),
        ("bound by", "text"),
        ("hosts", "number"),
        ("power, W", "number"),
        ("price, $", "number"),
        ("hits", "share"),
        ("reads", "number"),
        ("tier load", "share"),
        ("hours", "number"),
    )
    text = (
        "The one of least power first; reads of the slower tier a query, its load as a share of "
        "its best rate, and the least hours between two rewrites of all that lies on it."
    )
    return sections.table("ways", "Ways to serve it", columns, rows, text=text, bars=("query",))


def _moved(way: Service) -> list[Section]:
    if not way.moved:
        return []
    bags, lookups = "", "of their lookups"
    if way.pooled:
        size = f"{bytes_text(way.pooled_bytes)} of {way.pooled:,} pooled bags of each"
        bags, lookups = f"{size} answer {way.pooled_hits:.1%} {lookups}, ", "of the others"
    text = (
        f"{bytes_text(way.moved_bytes)} on {way.name}; {bags}{bytes_text(way.cache_bytes)} of "
        f"cache answer {way.hits:.1%} {lookups}."
    )
    columns = (("table", "text"), ("rows in the cache", "number"))
    return [
        sections.table("moved", "Tables on the slower tier", columns, way.moved.items(), text=text)
    ]


def _plans(rows: Sequence[Mapping[str, Any]]) -> Section:
    marks = {(True, True): "chosen", (False, True): "front"}
    cells = [
        (
            _formats(row),
            row["tables_on"],
            marks.get((row["chosen"], row["front"]), ""),
            row["kl"],
            row["kl_share"],
            row["hosts"],
            row["watts"],
            row["usd"],
            row["latency_us"],
            row["step_us"],
            row["hit_rate"],
            row["reads"],
            row["link_bytes"],
        )
        for row in rows
    ]
    columns = (
        ("formats", "text"),
        ("tables on", "text"),
        ("plan", "text"),
        ("KL, nats", "number"),
        ("of entropy", "number"),
        ("hosts", "number"),
        ("power, W", "number"),
        ("price, $", "number"),
        ("query", "us"),
        ("alone", "us"),
        ("hits", "share"),
        ("reads a query", "number"),
        ("over links a query", "bytes"),
    )
    return sections.table("plans", "Plans that were served", columns, cells)
