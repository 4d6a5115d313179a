"""The search for formats: the most gain that a budget of divergence allows.

Gains of single formats nearly add up, and so do the errors that they make of logits. The
divergence of a plan is therefore reckoned as that of the summed errors, to second order: the
divergences of its formats alone, and what each two of them have in common (above zero where their
errors go the same way, below where they cancel). The best plans by that are found first, candidate
after candidate (a knapsack with one choice for each), and bettered by changes of one format or two.
The joint plan is then executed and goes back while it is over the budget; what room is left is
filled by trial.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations, product
from typing import NamedTuple, Protocol, TypeAlias

from msgspec import Struct

from irgraph.diagnostics import fail
from irgraph.precision.candidates import Plan

LEAST = 1e-15
"""Divergence, nats, that counts as none: what f64 resolves of a mean."""

TRIES = 12
"""Plans that are tried beside one that keeps the budget: narrower ones, and single formats more."""

LARGEST = 2000
"""Plans that are kept of those that no other betters."""

WIDE, ROUNDS = 60, 3
"""Formats up to which two are changed at a time; times that a plan over the budget is sought."""

MOST = 8
"""Candidates of which all plans are tried."""


class Item(Struct, frozen=True):
    """One candidate in one format, alone: its number, divergence in nats, and gain."""

    candidate: int
    format: str
    kl: float
    gain: float


Common: TypeAlias = Callable[[Item, Item], float]
"""What two formats together take more than each alone, nats; below zero where errors cancel."""


def nothing(_one: Item, _other: Item) -> float:
    """Return that two formats have nothing in common: their divergences add up."""
    return 0.0


class Problem(Protocol):
    """What is known of single formats, and what any plan really does."""

    @property
    def items(self) -> Sequence[Item]:
        """Formats of candidates, each alone."""

    def common(self, one: Item, other: Item) -> float:
        """Return what two formats together take more than each alone, nats."""

    def kl(self, plan: Plan) -> float:
        """Return the divergence of a plan, executed."""

    def gain(self, plan: Plan) -> float:
        """Return what a plan gains, simulated."""


Chosen = dict[int, Item]


def search(problem: Problem, budget: float) -> tuple[dict[int, str], list[str]]:
    """Return a plan whose executed divergence is within a budget, and what was done for it."""
    useful = [item for item in problem.items if item.gain > 0]
    front = best_sums(useful, problem.common)
    place = bisect_right([point.kl for point in front], budget) - 1
    said = [
        f"{len(front[place].chosen)} ops would take {front[place].kl:.3g} nats if errors add up"
    ]
    while (joint := problem.kl(plan_of(front[place].chosen))) > budget:
        said.append(f"joint plan: {joint:.3g} nats, over the budget: back")
        allowed = front[place].kl * budget / joint
        place = min(bisect_right([point.kl for point in front], allowed), place) - 1
    for further in range(place + 1, min(place + TRIES, len(front))):
        if problem.kl(plan_of(front[further].chosen)) <= budget:
            place = further
    chosen = _swapped(problem, front[place], useful, budget)
    chosen = _more(problem, chosen, useful, budget)
    said.append(f"joint plan: {problem.kl(plan_of(chosen)):.3g} nats, executed")
    return plan_of(chosen), said


class Point(NamedTuple):
    """A plan that no other betters in divergence and gain, as far as single formats tell."""

    kl: float
    gain: float
    chosen: Chosen


def best_sums(items: Sequence[Item], common: Common = nothing) -> list[Point]:
    """Return all plans that no other betters, by rising divergence: none at all is the first.

    Candidate after candidate each format is added to each plan so far; where there are very many,
    some in between are left out. Where nothing is ``common`` to formats the front is exact.
    """
    front = [Point(0.0, 0.0, {})]
    shared = _once(common)
    for number in dict.fromkeys(item.candidate for item in items):
        formats = [item for item in items if item.candidate == number]
        wider = [
            Point(_joined(p, i, shared), p.gain + i.gain, {**p.chosen, number: i})
            for p in front
            for i in formats
        ]
        front = _unbettered([*front, *wider])
    return front


def _swapped(problem: Problem, start: Point, items: Sequence[Item], budget: float) -> Chosen:
    """Return a plan that one or two other formats better, where the joint plan keeps the budget.

    Plans are reckoned by errors that add up; one over the budget is sought again below it.
    """
    shared, allowed, best = _once(problem.common), budget, start
    for _ in range(ROUNDS):
        found = _climbed(start, items, shared, allowed)
        joint = problem.kl(plan_of(found.chosen))
        if joint <= budget:
            best = max(best, found, key=lambda point: point.gain)
            break
        allowed = min(allowed, found.kl) * budget / joint
    return best.chosen


def _climbed(start: Point, items: Sequence[Item], common: Common, allowed: float) -> Point:
    """Change one format, or two, while a plan gains more and stays within a divergence."""
    here = start
    numbers = list(dict.fromkeys(item.candidate for item in items))
    width = 2 if len(items) <= WIDE else 1
    while True:
        near = (_changed(here, change, common) for change in _changes(items, numbers, width))
        better = max((p for p in near if p.kl <= allowed), key=lambda p: p.gain, default=here)
        if better.gain <= here.gain * (1 + 1e-12):
            return here
        here = better


def _changes(
    items: Sequence[Item], numbers: Sequence[int], width: int
) -> Iterator[dict[int, Item | None]]:
    """Yield formats for up to so many candidates; ``None`` leaves one as it is."""
    choices = {n: [None, *(item for item in items if item.candidate == n)] for n in numbers}
    for some in combinations(numbers, width):
        for formats in product(*(choices[n] for n in some)):
            yield dict(zip(some, formats, strict=True))
    if width > 1 and len(numbers) < width:
        yield from _changes(items, numbers, 1)


def _changed(point: Point, change: Mapping[int, Item | None], common: Common) -> Point:
    """Return a plan with other formats for some candidates."""
    made = Point(0.0, 0.0, {})
    kept = {n: item for n, item in point.chosen.items() if n not in change}
    new = {n: item for n, item in change.items() if item is not None}
    for number, item in {**kept, **new}.items():
        made = Point(
            _joined(made, item, common), made.gain + item.gain, {**made.chosen, number: item}
        )
    return made


def _once(common: Common) -> Common:
    """Return what two formats have in common, asked once for each two."""
    known: dict[tuple[int, str, int, str], float] = {}

    def asked(one: Item, other: Item) -> float:
        key = (one.candidate, one.format, other.candidate, other.format)
        if key not in known:
            known[key] = common(one, other)
        return known[key]

    return asked


def _joined(point: Point, item: Item, common: Common) -> float:
    """Return the divergence of a plan with one more format; the format's own is its least share."""
    more = sum(common(other, item) for other in point.chosen.values())
    return max(point.kl + item.kl + more, 0.0)


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
