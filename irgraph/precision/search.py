"""Search for formats with the largest gain within a budget of divergence.

Gains of single formats nearly add up, and so do their errors of logits. The divergence of a plan is
therefore estimated from the summed errors, to second order: the divergences of its single formats,
and the interaction of each pair (positive if their errors have the same direction, negative if they
cancel). The best plans by this estimate are found first, one candidate after the other (a
multiple-choice knapsack), and improved by changes of one or two formats. The joint plan is then
executed and narrowed while it exceeds the budget; formats are added while the budget allows it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations, product
from typing import NamedTuple, Protocol, TypeAlias

from msgspec import Struct

from irgraph.precision.candidates import Plan

MIN_DIVERGENCE = 1e-15
"""Divergence in nats that counts as zero: the resolution of a mean in f64."""

MAX_TRIALS = 12
"""Maximum number of further plans tried after one within the budget, and of single additions."""

MAX_PLANS = 2000
"""Maximum number of plans on the Pareto front."""

MAX_PAIRED_FORMATS, ROUNDS = 60, 3
"""Maximum number of formats for changes of two at a time; number of attempts to meet the budget."""


class FormatCost(Struct, frozen=True):
    """One candidate in one format: its index, divergence in nats, and gain."""

    candidate: int
    format: str
    kl: float
    gain: float


Interaction: TypeAlias = Callable[[FormatCost, FormatCost], float]
"""Joint divergence of two formats minus their own, in nats; negative if their errors cancel."""


def no_interaction(_first: FormatCost, _second: FormatCost) -> float:
    """Return 0: the divergences of two formats add up."""
    return 0.0


class FormatProblem(Protocol):
    """Measurements of single formats, and of any plan."""

    @property
    def items(self) -> Sequence[FormatCost]:
        """Single formats of all candidates."""

    def interaction(self, first: FormatCost, second: FormatCost) -> float:
        """Return the joint divergence of two formats minus their own, in nats."""

    def kl(self, plan: Plan) -> float:
        """Return the divergence of a plan, executed."""

    def gain(self, plan: Plan) -> float:
        """Return the simulated gain of a plan."""


Choices = dict[int, FormatCost]


def search(problem: FormatProblem, budget: float) -> tuple[dict[int, str], list[str]]:
    """Return a plan whose executed divergence is within a budget, and a log of the search."""
    useful = [item for item in problem.items if item.gain > 0]
    front = best_sums(useful, problem.interaction)
    position = bisect_right([point.kl for point in front], budget) - 1
    best = front[position]
    messages = [f"{len(best.choices)} ops would take {best.kl:.3g} nats if errors add up"]
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
    """A plan on the Pareto front of divergence and gain, as estimated from single formats."""

    kl: float
    gain: float
    choices: Choices


def best_sums(
    items: Sequence[FormatCost], interaction: Interaction = no_interaction
) -> list[PlanPoint]:
    """Return the Pareto front of plans by increasing divergence, beginning with the empty plan.

    For each candidate, each format is added to each plan so far; a long front is thinned out.
    Without interactions the front is exact.
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
    """Return a plan improved by changes of one or two formats, if its execution meets the budget.

    Plans are estimated by additive errors; after one over the budget the limit is lowered.
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
    """Change one or two formats while the gain increases within a divergence of ``max_kl``."""
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
    """Yield formats for up to ``width`` candidates; ``None`` leaves a candidate unchanged."""
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
    """Return a function that caches the interaction of each pair of formats."""
    cache: dict[tuple[int, str, int, str], float] = {}

    def cached_interaction(first: FormatCost, second: FormatCost) -> float:
        key = (first.candidate, first.format, second.candidate, second.format)
        if key not in cache:
            cache[key] = interaction(first, second)
        return cache[key]

    return cached_interaction


def _joint_kl(point: PlanPoint, item: FormatCost, interaction: Interaction) -> float:
    """Return the estimated divergence of a plan with one more format, at least 0."""
    interactions = sum(interaction(other, item) for other in point.choices.values())
    return max(point.kl + item.kl + interactions, 0.0)


def _pareto_front(points: Sequence[PlanPoint]) -> list[PlanPoint]:
    front: list[PlanPoint] = []
    for point in sorted(points, key=lambda p: (p.kl, -p.gain)):
        if not front or point.gain > front[-1].gain:
            front.append(point)
    step = -(-len(front) // MAX_PLANS)
    return front if step == 1 else [*front[:-1:step], front[-1]]


def plan_of(choices: Mapping[int, FormatCost]) -> dict[int, str]:
    """Return the formats of choices, by candidate."""
    return {number: item.format for number, item in sorted(choices.items())}


def _gain_per_kl(choices: Choices, item: FormatCost) -> float:
    """Return the gain of a format per divergence that it adds to a plan."""
    current = choices.get(item.candidate)
    added_kl = item.kl - (current.kl if current else 0.0)
    return (item.gain - (current.gain if current else 0.0)) / max(added_kl, MIN_DIVERGENCE)


def _add_formats(
    problem: FormatProblem, choices: Choices, items: Sequence[FormatCost], budget: float
) -> Choices:
    """Add formats to a joint plan while it gains and meets the budget."""
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
