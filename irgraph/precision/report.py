"""Search for the formats of a model, with its results: ops, formats, errors, gains, budget."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from msgspec import Struct

from irgraph.diagnostics import fail
from irgraph.precision.candidates import Plan, script
from irgraph.precision.measure import AIMS, Errors, PrecisionBench
from irgraph.precision.search import FormatCost, search


class FormatSearch:
    """The problem of a search: single formats and plans, measured on one bench."""

    def __init__(self, bench: PrecisionBench, aim: str = AIMS[0]) -> None:
        self.bench, self.aim = bench, aim

    @cached_property
    def items(self) -> Sequence[FormatCost]:
        """Every format of every candidate, executed and simulated separately."""
        pairs = [
            (n, format_name)
            for n, candidate in enumerate(self.bench.candidates)
            for format_name in candidate.formats
        ]
        return [
            FormatCost(n, format_name, self.kl({n: format_name}), self.gain({n: format_name}))
            for n, format_name in pairs
        ]

    def interaction(self, first: FormatCost, second: FormatCost) -> float:
        """Return the joint divergence of two formats minus their own, in nats."""
        return self.bench.interaction(
            (first.candidate, first.format), (second.candidate, second.format)
        )

    def kl(self, plan: Plan) -> float:
        """Return a plan's divergence in nats."""
        return self.bench.errors(plan).kl if plan else 0.0

    def gain(self, plan: Plan) -> float:
        """Return the reduction of the aim by a plan, in microseconds or bytes."""
        before, after = (getattr(self.bench.simulate(p), self.aim) for p in ({}, plan))
        return float(before - after)


class SearchResult(Struct, frozen=True):
    """A plan and its figures.

    Attributes:
        plan: formats by candidate.
        script: the plan as statements.
        budget: maximum divergence in nats.
        errors: errors of the joint plan, executed.
        separate_kl: sum of the divergences of its single formats in nats.
        additive_kl: divergence in nats if the errors of logits add up.
        messages: log of the search.
        rows: every format tried, for tables.
        figures: figures of the step before and after, and of the reference.
    """

    plan: Plan
    script: str
    budget: float
    errors: Errors
    separate_kl: float
    additive_kl: float
    messages: Sequence[str]
    rows: Sequence[dict[str, Any]]
    figures: dict[str, Any]


def find_plan(bench: PrecisionBench, budget: float, aim: str = AIMS[0]) -> SearchResult:
    """Search for the plan with the largest gain within a budget of divergence in nats."""
    if aim == "links":
        check_links(bench)
    problem = FormatSearch(bench, aim)
    plan, messages = search(problem, budget)
    singles = {(item.candidate, item.format): item for item in problem.items}
    separate_kl = sum(singles[pair].kl for pair in plan.items())
    rows = [_row(bench, item, plan) for item in problem.items]
    return SearchResult(
        plan,
        script(bench.candidates, plan, bench.ranges),
        budget,
        bench.errors(plan),
        separate_kl,
        bench.additive_divergence(plan),
        messages,
        rows,
        figures(bench, plan),
    )


def check_links(bench: PrecisionBench) -> None:
    """Raise ``IrgraphError`` for a step whose bytes over links are zero or unknown."""
    prediction = bench.prediction({})
    priced = prediction.priced
    exchanges = [op for op in priced.unknown if op in priced.reasons]
    if exchanges:
        reason = f"{exchanges[0].name}: {priced.reasons[exchanges[0]]}"
        raise fail(f"--for links: what crosses links is not known: {reason}", exit_code=2)
    if bench.simulate({}).links:
        return
    message = "--for links: the step brings nothing over a link"
    hint = (
        "links are crossed by copies between host and device, rows of a slower tier and exchanges "
        'of ranks: --place \'"*" on "uvm"\' says where tables lie'
    )
    raise fail(message, hint=hint, exit_code=2)


def _row(bench: PrecisionBench, item: FormatCost, plan: Plan) -> dict[str, Any]:
    candidate = bench.candidates[item.candidate]
    single_plan = {item.candidate: item.format}
    errors = bench.errors(single_plan)
    base, after = bench.simulate({}), bench.simulate(single_plan)
    return {
        "parameter": candidate.name,
        "format": item.format,
        "sqnr_db": bench.noise(candidate.results[0], single_plan),
        "l2": errors.ops[candidate.results[0]],
        "kl": item.kl,
        "kl_share": errors.share,
        "step_us": base.time - after.time,
        "active_us": base.active - after.active,
        "bytes": base.parameters - after.parameters,
        "link_bytes": base.links - after.links,
        "chosen": plan.get(item.candidate) == item.format,
    }


def figures(bench: PrecisionBench, plan: Plan) -> dict[str, Any]:
    """Return figures of the step before and after a plan: times, 90 % intervals and bytes."""
    result: dict[str, Any] = dict(bench.accuracy())
    for name, stage_plan in (("before", {}), ("after", plan)):
        prediction = bench.prediction(stage_plan)
        result[name] = {
            "step_us": prediction.step_time,
            "step_interval_us": list(prediction.interval),
            "active_us": prediction.timeline.active_time,
            "parameter_bytes": bench.simulate(stage_plan).parameters,
            "link_bytes": bench.simulate(stage_plan).links,
        }
    return result
