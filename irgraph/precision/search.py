"""The search for formats: the most gain that a budget of divergence allows.

Gains and divergences of single formats nearly add up, so that the best plan of the sums is found
first, exactly (a knapsack with one choice for each op). The joint plan is then executed and goes
back while it is over the budget; what room is left is filled by trial.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import product
from typing import NamedTuple, Protocol

from msgspec import Struct

from irgraph.diagnostics import fail
from irgraph.precision.candidates import Plan

LEAST = 1e-15
"""Divergence, nats, that counts as none: what f64 resolves of a mean."""

TRIES = 12
"""Plans that are tried beside one that keeps the budget: narrower ones, and single formats more."""

LARGEST = 2000
"""Plans that are kept of those that no other betters."""

MOST = 8
"""Candidates of which all plans are tried."""


class Item(Struct, frozen=True):
    """One candidate in one format, alone: its number, divergence in nats, and gain."""

    candidate: int
    format: str
    kl: float
    gain: float


class Problem(Protocol):
    """What is known of single formats, and what any plan really does."""

    @property
    def items(self) -> Sequence[Item]:
        """Formats of candidates, each alone."""

    def kl(self, plan: Plan) -> float:
        """Return the divergence of a plan, executed."""

    def gain(self, plan: Plan) -> float:
        """Return what a plan gains, simulated."""


Chosen = dict[int, Item]


def search(problem: Problem, budget: float) -> tuple[dict[int, str], list[str]]:
    """Return a plan whose executed divergence is within a budget, and what was done for it."""
    useful = [item for item in problem.items if item.gain > 0]
    front = best_sums(useful)
    place = bisect_right([point.kl for point in front], budget) - 1
    said = [f"{len(front[place].chosen)} ops would take {front[place].kl:.3g} nats if they add up"]
    while (joint := problem.kl(plan_of(front[place].chosen))) > budget:
        said.append(f"joint plan: {joint:.3g} nats, over the budget: back")
        allowed = front[place].kl * budget / joint
        place = min(bisect_right([point.kl for point in front], allowed), place) - 1
    for further in range(place + 1, min(place + TRIES, len(front))):
        if problem.kl(plan_of(front[further].chosen)) <= budget:
            place = further
    chosen = _more(problem, front[place].chosen, useful, budget)
    said.append(f"joint plan: {problem.kl(plan_of(chosen)):.3g} nats, executed")
    return plan_of(chosen), said


class Point(NamedTuple):
    """A plan that no other betters in divergence and gain, if both add up."""

    kl: float
    gain: float
    chosen: Chosen


def best_sums(items: Sequence[Item]) -> list[Point]:
    """Return all plans that no other betters, by rising divergence: none at all is the first.

    Candidate after candidate each format is added to each plan so far; where there are very many,
    some in between are left out.
    """
    front = [Point(0.0, 0.0, {})]
    for number in dict.fromkeys(item.candidate for item in items):
        formats = [item for item in items if item.candidate == number]
        wider = [
            Point(p.kl + i.kl, p.gain + i.gain, {**p.chosen, number: i})
            for p in front
            for i in formats
        ]
        front = _unbettered([*front, *wider])
    return front


def _unbettered(points: Sequence[Point]) -> list[Point]:
    kept: list[Point] = []
    for point in sorted(points, key=lambda p: (p.kl, -p.gain)):
        if not kept or point.gain > kept[-1].gain:
            kept.append(point)
    step = -(-len(kept) // LARGEST)
    return kept if step == 1 else [*kept[:-1:step], kept[-1]]


def exhaustive(problem: Problem, budget: float) -> dict[int, str]:
    """Return the plan of most gain within the budget, of all plans executed and simulated."""
    formats: dict[int, list[str]] = {}
    for item in problem.items:
        formats.setdefault(item.candidate, [""]).append(item.format)
    if len(formats) > MOST:
        raise fail(f"all plans of at most {MOST} ops can be tried, not of {len(formats)}")
    plans = (
        {number: to for number, to in zip(formats, choice, strict=True) if to}
        for choice in product(*formats.values())
    )
    return max((p for p in plans if problem.kl(p) <= budget), key=problem.gain)


def plan_of(chosen: Mapping[int, Item]) -> dict[int, str]:
    """Return the formats of what was chosen."""
    return {number: item.format for number, item in sorted(chosen.items())}


def _ratio(chosen: Chosen, item: Item) -> float:
    """Return what a format gains for the divergence that it adds to a plan."""
    now = chosen.get(item.candidate)
    more = item.kl - (now.kl if now else 0.0)
    return (item.gain - (now.gain if now else 0.0)) / max(more, LEAST)


def _more(problem: Problem, chosen: Chosen, items: Sequence[Item], budget: float) -> Chosen:
    """Try formats beside a joint plan, which may have room left, or gain more together."""
    others = [item for item in items if chosen.get(item.candidate) != item]
    for item in sorted(others, key=lambda item: -_ratio(chosen, item))[:TRIES]:
        now = chosen.get(item.candidate)
        if now is not None and item.gain <= now.gain:
            continue
        other = {**chosen, item.candidate: item}
        better = problem.gain(plan_of(other)) > problem.gain(plan_of(chosen))
        if better and problem.kl(plan_of(other)) <= budget:
            chosen = other
    return chosen
