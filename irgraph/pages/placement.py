"""Reports of services: placements of tables, the required hosts, and a query's step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from irgraph.html import sections
from irgraph.html.page import Page
from irgraph.html.sections import Section
from irgraph.pages.prediction import about_prediction, headline_details, prediction_sections
from irgraph.predict.prediction import Prediction
from irgraph.report.console import bytes_text, time_text
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


def service_page(
    scenario: str, services: Sequence[Service], prediction: Prediction, limit: float
) -> Page:
    """Return the report of the ways to serve a load, the best one first.

    Args:
        scenario: the load and the platform, as a line.
        services: possible services for the load.
        prediction: of a query, its tables placed as in the first service.
        limit: maximum mean time of a query, microseconds.
    """
    best, summary = services[0], prediction.summary()
    numbers = [*_fleet_figures(best), _query_figure(best, limit), _query_alone(summary)]
    parts = [
        sections.headline(numbers, span_title=ALONE, **headline_details(summary)),
        sections.notes(summary["warnings"], warning=True),
        _services_table(services),
        *_moved_tables(best),
        *prediction_sections(prediction, summary),
    ]
    return Page(summary["model"], f"{scenario}; {QUERY_TEXT}, {about_prediction(summary)}", parts)


def tradeoff_page(
    scenario: str,
    data: str,
    rows: Sequence[Mapping[str, Any]],
    aim: str,
    budget: float,
    prediction: Prediction | None,
) -> Page:
    """Return the report of table formats in all placements.

    Args:
        scenario: the load and the platform, as a line.
        data: data on which the accuracy was executed.
        rows: all plans (``tradeoff.as_row``), each with ``chosen``.
        aim: key of ``AIMS``: the figure that is traded for accuracy.
        budget: divergence allowed, nats.
        prediction: of a query of the chosen plan, ``None`` if no plan meets the budget.
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
    headline_parts = headline_details(summary) if summary else {}
    parts = [
        sections.headline(_plan_figures(chosen, budget), span_title=ALONE, **headline_parts),
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
    name = summary["model"] if summary else scenario
    return Page(name, f"{scenario}; {about_prediction(summary)}" if summary else scenario, parts)


def _fleet_figures(service: Service) -> list[dict[str, str]]:
    price = "unknown" if service.fleet.usd is None else f"{service.fleet.usd:,.0f} $"
    return [
        {
            "label": "hosts",
            "value": f"{service.fleet.hosts:,}",
            "detail": f"tables on {service.name}",
        },
        {
            "label": "queries a second a host",
            "value": f"{service.qps:,.0f}",
            "detail": f"bound by {service.bound}",
        },
        {
            "label": "power",
            "value": f"{service.fleet.watts / 1e3:,.1f} kW",
            "detail": f"price {price}",
        },
    ]


def _query_figure(service: Service, limit: float) -> dict[str, str]:
    return {
        "label": "mean time of a query",
        "value": time_text(service.latency),
        "detail": f"at most {time_text(limit)}, waits included",
    }


def _query_alone(summary: Mapping[str, Any]) -> dict[str, str]:
    low, high = map(time_text, summary["step_time_interval_us"])
    return {
        "label": "one query alone, predicted",
        "value": time_text(summary["step_time_us"]),
        "detail": f"90 % interval {low} to {high}",
    }


def _plan_figures(plan: Mapping[str, Any] | None, budget: float) -> list[dict[str, str]]:
    if plan is None:
        return [
            {
                "label": "plan",
                "value": "none",
                "detail": f"none keeps {budget:.3g} nats",
                "tone": "bad",
            }
        ]
    return [
        {
            "label": "hosts",
            "value": f"{plan['hosts']:,}",
            "detail": f"tables on {plan['tables_on']}",
        },
        {
            "label": "formats",
            "value": _formats(plan),
            "detail": f"{plan['kl']:.3g} nats of {budget:.3g} allowed",
        },
        {"label": "power", "value": f"{plan['watts'] / 1e3:,.1f} kW"},
        {
            "label": "mean time of a query",
            "value": time_text(plan["latency_us"]),
            "detail": f"alone: {time_text(plan['step_us'])}",
        },
    ]


def _formats(row: Mapping[str, Any]) -> str:
    kinds = list(row["formats"].values())
    return (
        ", ".join(
            f"{kinds.count(format_name)} {format_name}" for format_name in dict.fromkeys(kinds)
        )
        or "as they are"
    )


def _services_table(services: Sequence[Service]) -> Section:
    rows = [
        (
            service.name,
            service.latency,
            service.step,
            service.qps,
            service.bound,
            service.fleet.hosts,
            service.fleet.watts,
            service.fleet.usd,
            service.hits if service.moved else None,
            service.reads if service.moved else None,
            service.load if service.moved else None,
            service.hours,
        )
        for service in services
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


def _moved_tables(service: Service) -> list[Section]:
    if not service.moved:
        return []
    bags, lookups = "", "of their lookups"
    if service.pooled:
        size = f"{bytes_text(service.pooled_bytes)} of {service.pooled:,} pooled bags of each"
        bags, lookups = f"{size} answer {service.pooled_hits:.1%} {lookups}, ", "of the others"
    text = (
        f"{bytes_text(service.moved_bytes)} on {service.name}; {bags}"
        f"{bytes_text(service.cache_bytes)} of cache answer {service.hits:.1%} {lookups}."
    )
    columns = (("table", "text"), ("rows in the cache", "number"))
    return [
        sections.table(
            "moved", "Tables on the slower tier", columns, service.moved.items(), text=text
        )
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
