"""The search beside all placements, and beside an exact solver where the problem is linear."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import optimize

from costmodels.lookups.popularity import UNIFORM, Zipf, rows_of
from irgraph.ir.cost import Popularity
from irgraph.serving.problem import PlacementProblem, ServedTable, Store
from irgraph.serving.search import exhaustive, greedy, search
from irgraph.tiers.library import load_tier


def tables(seed: int, count: int) -> list[ServedTable]:
    source = np.random.default_rng(seed)
    found = []
    for number in range(count):
        rows = int(10 ** source.uniform(2, 6))
        law = UNIFORM if source.random() < 0.3 else Zipf(source.uniform(0.6, 1.3), 1.0)
        known = rows_of(law, rows)
        popularity = Popularity(tuple(known.counts), tuple(known.chances))
        row, lookups = int(source.choice([64, 128, 512])), float(source.integers(1, 200))
        found.append(ServedTable(f"t{number}", rows, row, lookups, popularity))
    return found


def problem(seed: int, count: int, share: float, tier: str = "nand") -> PlacementProblem:
    known = tables(seed, count)
    whole = sum(table.nbytes for table in known)
    return PlacementProblem(known, share * whole, Store(load_tier(tier), 2, 2 * whole))


@pytest.mark.parametrize("share", [0.05, 0.3])
@pytest.mark.parametrize("seed", range(4))
def test_the_search_is_within_a_percent_of_all_placements(seed: int, share: float) -> None:
    asked = problem(seed, 7, share, ("nand", "optane")[seed % 2])
    best, found = exhaustive(asked), search(asked)
    assert best is not None
    assert found is not None
    assert found.cost <= best.cost * 1.01
    assert found.cost <= greedy(asked).cost


@pytest.mark.parametrize("seed", range(6))
def test_the_search_is_near_an_exact_solver_without_a_cache(seed: int) -> None:
    """Which tables stay is a knapsack then: HiGHS solves it (scipy.optimize.milp)."""
    asked = problem(seed, 14, 0.3)
    nand = asked.slow.tier
    reads = np.array([t.lookups * nand.units(t.row) for t in asked.tables])
    sizes = np.array([t.nbytes for t in asked.tables])
    kept = optimize.milp(
        -reads,
        integrality=np.ones(len(reads)),
        bounds=optimize.Bounds(0, 1),
        constraints=optimize.LinearConstraint(sizes, ub=asked.fast),
    )
    exact = reads.sum() + kept.fun
    found = search(Uncached(asked.tables, asked.fast, asked.slow))
    assert found is not None
    assert found.query_demand.reads <= exact * 1.05 + 1e-9
    assert found.query_demand.reads >= exact * (1 - 1e-9)


class Uncached(PlacementProblem):
    """Leaves what is left of fast memory empty."""

    def _layout(self, fast: frozenset[str]) -> object:  # type: ignore[override]
        kept = sum(table.nbytes for table in self.tables if table.name in fast)
        whole = PlacementProblem(self.tables, kept, self.slow)
        return (
            PlacementProblem._layout(whole, fast)
            if kept <= self.fast
            else PlacementProblem._layout(self, fast)
        )


def test_more_fast_memory_never_asks_for_more_reads() -> None:
    costs = []
    for share in (0.01, 0.05, 0.2, 0.5, 0.9, 1.0):
        found = search(problem(11, 5, share))
        assert found is not None
        costs.append(found.cost)
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] == 0


def test_what_does_not_fit_is_not_placed() -> None:
    asked = problem(1, 4, 0.1)
    small = PlacementProblem(asked.tables, asked.fast, Store(asked.slow.tier, 1, asked.fast))
    assert search(small) is None


def test_too_many_tables_are_not_tried_one_by_one() -> None:
    with pytest.raises(ValueError, match="13 tables"):
        exhaustive(problem(1, 13, 0.5))
