"""The search over made-up errors and gains, beside all plans."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence

import pytest

from irgraph.precision.search import FormatCost, best_sums, plan_of, search
from tests.precision.all_plans import best_of_all


class Made:
    """Errors and gains that nearly add up, as measured ones do."""

    def __init__(self, seed: int, ops: int = 8, crossed: float = 0.05) -> None:
        self.made = random.Random(seed)
        self.crossed = crossed
        self.known: dict[tuple[int, str], tuple[float, float]] = {}
        for number in range(ops):
            size = self.made.uniform(1, 100)
            error = 10 ** self.made.uniform(-7, -4)
            for to, gain, loss in (("i8", 0.7, 1), ("i4", 0.85, 40)):
                noise = self.made.uniform(0.8, 1.2)
                self.known[number, to] = (error * loss * noise, size * gain)
        self.executed: set[tuple[tuple[int, str], ...]] = set()

    @property
    def items(self) -> Sequence[FormatCost]:
        return [FormatCost(*pair, *known) for pair, known in self.known.items()]

    def interaction(self, one: FormatCost, other: FormatCost) -> float:
        return 0.0

    def kl(self, plan: Mapping[int, str]) -> float:
        self.executed.add(tuple(plan.items()))
        alone = sum(self.known[pair][0] for pair in plan.items())
        return alone * (1 + self.crossed * max(len(plan) - 1, 0) / 8)

    def gain(self, plan: Mapping[int, str]) -> float:
        return sum(self.known[pair][1] for pair in plan.items())


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("budget", [1e-5, 1e-4, 1e-3])
def test_the_plan_is_within_one_per_cent_of_the_best_of_all(seed: int, budget: float) -> None:
    problem = Made(seed)
    plan, said = search(problem, budget)
    assert problem.kl(plan) <= budget and said
    assert len(problem.executed) < 100, "few plans are executed"
    best = best_of_all(problem, budget)
    assert problem.gain(plan) >= 0.99 * problem.gain(best)


def test_a_joint_plan_over_the_budget_goes_back() -> None:
    problem = Made(1, crossed=4.0)
    plan, said = search(problem, 1e-4)
    assert any("over the budget" in line for line in said)
    assert 0 < problem.kl(plan) <= 1e-4


def test_nothing_is_chosen_where_nothing_gains_or_fits() -> None:
    problem = Made(2)
    assert search(problem, 0.0)[0] == {}
    problem.known = {pair: (kl, -1.0) for pair, (kl, _) in problem.known.items()}
    assert search(problem, 1.0)[0] == {}


class Leaning(Made):
    """Errors that go one way more or less: a plan's divergence is half the square of their sum."""

    def __init__(self, seed: int, ops: int = 8) -> None:
        super().__init__(seed, ops)
        ways = {pair: [self.made.gauss(0, 1) for _ in range(8)] for pair in self.known}
        self.ways = {
            pair: [math.sqrt(2 * self.known[pair][0] / sum(x * x for x in way)) * x for x in way]
            for pair, way in ways.items()
        }

    def interaction(self, one: FormatCost, other: FormatCost) -> float:
        pairs = ((i.candidate, i.format) for i in (one, other))
        first, second = (self.ways[pair] for pair in pairs)
        return math.fsum(a * b for a, b in zip(first, second, strict=True))

    def kl(self, plan: Mapping[int, str]) -> float:
        self.executed.add(tuple(plan.items()))
        added = zip(*(self.ways[pair] for pair in plan.items()), strict=True)
        return math.fsum(math.fsum(way) ** 2 / 2 for way in added)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("budget", [1e-5, 1e-4, 1e-3])
def test_errors_that_go_one_way_or_cancel_are_reckoned_with(seed: int, budget: float) -> None:
    problem = Leaning(seed)
    plan, _ = search(problem, budget)
    assert problem.kl(plan) <= budget
    assert len(problem.executed) < 100, "few plans are executed"
    best = best_of_all(problem, budget)
    assert problem.gain(plan) >= 0.99 * problem.gain(best)
    for point in best_sums(problem.items, problem.interaction):
        assert point.kl == pytest.approx(problem.kl(plan_of(point.choices)), abs=1e-15)
