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

MIN_DIVERGENCE = 1e-15
"""Divergence, nats, that counts as none: what f64 resolves of a mean."""

MAX_TRIALS = 12
"""Plans that are tried beside one that keeps the budget: narrower ones, and single formats more."""

MAX_PLANS = 2000
"""Plans that are kept of those that no other betters."""

MAX_PAIRED_FORMATS, ROUNDS = 60, 3
"""Formats up to which two are changed at a time; times that a plan over the budget is sought."""

MAX_CANDIDATES = 8
"""Candidates of which all plans are tried."""


class FormatCost(Struct, frozen=True):
    """One candidate in one format, alone: its number, divergence in nats, and gain."""

    candidate: int
    format: str
    kl: float
    gain: float


Interaction: TypeAlias = Callable[[FormatCost, FormatCost], float]
"""What two formats together take more than each alone, nats; below zero where errors cancel."""


def no_interaction(_first: FormatCost, _second: FormatCost) -> float:
    """Return that two formats have nothing in common: their divergences add up."""
    return 0.0


class FormatProblem(Protocol):
    """What is known of single formats, and what any plan really does."""

    @property
    def items(self) -> Sequence[FormatCost]:
        """Formats of candidates, each alone."""

    def interaction(self, first: FormatCost, second: FormatCost) -> float:
        """Return what two formats together take more than each alone, nats."""

    def kl(self, plan: Plan) -> float:
        """Return the divergence of a plan, executed."""

    def gain(self, plan: Plan) -> float:
        """Return what a plan gains, simulated."""


Choices = dict[int, FormatCost]


def search(problem: FormatProblem, budget: float) -> tuple[dict[int, str], list[str]]:
    """Return a plan whose executed divergence is within a budget, and what was done for it."""
    useful = [item for item in problem.items if item.gain > 0]
    front = best_sums(useful, problem.interaction)
    position = bisect_right([point.kl for point in front], budget) - 1
    messages = [
        f"{len(front[position].choices)} ops would take {front[position].kl:.3g} nats if errors add up"
    ]
    while (joint_kl := problem.kl(plan_of(front[position].choices))) > budget:
        messages.append(f"joint plan: {joint_kl:.3g} nats, over the budget: back")
        max_kl = front[position].kl * budget / joint_kl
        position = min(bisect_right([point.kl for point in front], max_kl), position) - 1
    for next_position in range(position + 1, min(position + MAX_TRIALS, len(front))):
        if problem.kl(plan_of(front[next_position].choices)) <= budget:
            position = next_position
    choices = _swap_formats(problem, front[position], useful, budget)
    choices = _add_formats(problem, choices, useful, budget)
    messages.append(f"joint plan: {problem.kl(plan_of(choices)):.3g} nats, executed")
    return plan_of(choices), messages


class PlanPoint(NamedTuple):
    """A plan that no other betters in divergence and gain, as far as single formats tell."""

    kl: float
    gain: float
    choices: Choices


def best_sums(
    items: Sequence[FormatCost], interaction: Interaction = no_interaction
) -> list[PlanPoint]:
    """Return all plans that no other betters, by rising divergence: none at all is the first.

    Candidate after candidate each format is added to each plan so far; where there are very many,
    some in between are left out. Where nothing is ``interaction`` to formats the front is exact.
    """
    front = [PlanPoint(0.0, 0.0, {})]
    cached_interaction = _cache_interaction(interaction)
    for number in dict.fromkeys(item.candidate for item in items):
        formats = [item for item in items if item.candidate == number]
        extended = [
            PlanPoint(
                _joint_kl(point, item, cached_interaction),
                point.gain + item.gain,
                {**point.choices, number: item},
            )
            for point in front
            for item in formats
        ]
        front = _pareto_front([*front, *extended])
    return front


def _swap_formats(
    problem: FormatProblem, start: PlanPoint, items: Sequence[FormatCost], budget: float
) -> Choices:
    """Return a plan that one or two other formats better, where the joint plan keeps the budget.

    Plans are reckoned by errors that add up; one over the budget is sought again below it.
    """
    cached_interaction, max_kl, best = _cache_interaction(problem.interaction), budget, start
    for _ in range(ROUNDS):
        candidate = _climb(start, items, cached_interaction, max_kl)
        joint_kl = problem.kl(plan_of(candidate.choices))
        if joint_kl <= budget:
            best = max(best, candidate, key=lambda point: point.gain)
            break
        max_kl = min(max_kl, candidate.kl) * budget / joint_kl
    return best.choices


def _climb(
    start: PlanPoint, items: Sequence[FormatCost], interaction: Interaction, max_kl: float
) -> PlanPoint:
    """Change one format, or two, while a plan gains more and stays within a divergence."""
    current = start
    numbers = list(dict.fromkeys(item.candidate for item in items))
    width = 2 if len(items) <= MAX_PAIRED_FORMATS else 1
    while True:
        neighbours = (
            _apply_change(current, change, interaction)
            for change in _changes(items, numbers, width)
        )
        best_neighbour = max(
            (p for p in neighbours if p.kl <= max_kl), key=lambda p: p.gain, default=current
        )
        if best_neighbour.gain <= current.gain * (1 + 1e-12):
            return current
        current = best_neighbour


def _changes(
    items: Sequence[FormatCost], numbers: Sequence[int], width: int
) -> Iterator[dict[int, FormatCost | None]]:
    """Yield formats for up to so many candidates; ``None`` leaves one as it is."""
    choices = {n: [None, *(item for item in items if item.candidate == n)] for n in numbers}
    for subset in combinations(numbers, width):
        for formats in product(*(choices[n] for n in subset)):
            yield dict(zip(subset, formats, strict=True))
    if width > 1 and len(numbers) < width:
        yield from _changes(items, numbers, 1)


def _apply_change(
    point: PlanPoint, change: Mapping[int, FormatCost | None], interaction: Interaction
) -> PlanPoint:
    """Return a plan with other formats for some candidates."""
    result = PlanPoint(0.0, 0.0, {})
    unchanged = {n: item for n, item in point.choices.items() if n not in change}
    changed = {n: item for n, item in change.items() if item is not None}
    for number, item in {**unchanged, **changed}.items():
        result = PlanPoint(
            _joint_kl(result, item, interaction),
            result.gain + item.gain,
            {**result.choices, number: item},
        )
    return result


def _cache_interaction(interaction: Interaction) -> Interaction:
    """Return what two formats have in common, asked once for each two."""
    cache: dict[tuple[int, str, int, str], float] = {}

    def cached_interaction(first: FormatCost, second: FormatCost) -> float:
        key = (first.candidate, first.format, second.candidate, second.format)
        if key not in cache:
            cache[key] = interaction(first, second)
        return cache[key]

    return cached_interaction


def _joint_kl(point: PlanPoint, item: FormatCost, interaction: Interaction) -> float:
    """Return the divergence of a plan with one more format; the format's own is its least share."""
    interactions = sum(interaction(other, item) for other in point.choices.values())
    return max(point.kl + item.kl + interactions, 0.0)


def _pareto_front(points: Sequence[PlanPoint]) -> list[PlanPoint]:
    front: list[PlanPoint] = []
    for point in sorted(points, key=lambda p: (p.kl, -p.gain)):
        if not front or point.gain > front[-1].gain:
            front.append(point)
    step = -(-len(front) // MAX_PLANS)
    return front if step == 1 else [*front[:-1:step], front[-1]]


def exhaustive_search(problem: FormatProblem, budget: float) -> dict[int, str]:
    """Return the plan of most gain within the budget, of all plans executed and simulated."""
    formats: dict[int, list[str]] = {}
    for item in problem.items:
        formats.setdefault(item.candidate, [""]).append(item.format)
    if len(formats) > MAX_CANDIDATES:
        raise fail(f"all plans of at most {MAX_CANDIDATES} ops can be tried, not of {len(formats)}")
    plans = (
        {
            number: format_name
            for number, format_name in zip(formats, choice, strict=True)
            if format_name
        }
        for choice in product(*formats.values())
    )
    return max((p for p in plans if problem.kl(p) <= budget), key=problem.gain)


def plan_of(choices: Mapping[int, FormatCost]) -> dict[int, str]:
    """Return the formats of what was chosen."""
    return {number: item.format for number, item in sorted(choices.items())}


def _gain_per_kl(choices: Choices, item: FormatCost) -> float:
    """Return what a format gains for the divergence that it adds to a plan."""
    current = choices.get(item.candidate)
    added_kl = item.kl - (current.kl if current else 0.0)
    return (item.gain - (current.gain if current else 0.0)) / max(added_kl, MIN_DIVERGENCE)


def _add_formats(
    problem: FormatProblem, choices: Choices, items: Sequence[FormatCost], budget: float
) -> Choices:
    """Try formats beside a joint plan, which may have room left, or gain more together."""
    unused = [item for item in items if choices.get(item.candidate) != item]
    for item in sorted(unused, key=lambda item: -_gain_per_kl(choices, item))[:MAX_TRIALS]:
        current = choices.get(item.candidate)
        if current is not None and item.gain <= current.gain:
            continue
        trial = {**choices, item.candidate: item}
        is_better = problem.gain(plan_of(trial)) > problem.gain(plan_of(choices))
        if is_better and problem.kl(plan_of(trial)) <= budget:
            choices = trial
    return choices
