"""The search for a plan: against the exact solution, against every baseline, and its speed."""

from __future__ import annotations

import time

import pytest
from msgspec.structs import replace

from irgraph.planning.placement_costs import PlacementProblem, pack
from irgraph.planning.search import baselines, search
from tests.planning.tasks import exact, task


def found(problem: PlacementProblem, **given: float) -> float:
    """Return the cost of the best plan, which must fit and be complete."""
    layout = search(problem, **given)  # type: ignore[arg-type]
    assert layout is not None
    assert layout.feasible
    for table, ranks in enumerate(layout.ranks):
        assert len(set(ranks)) == len(ranks) == layout.choice(table).holders
    again = type(layout)(problem, layout.choice_indices, layout.ranks)
    assert again.cost() == pytest.approx(layout.cost())
    return layout.cost()


@pytest.mark.long
@pytest.mark.slow
def test_small_tasks_are_solved_nearly_exactly() -> None:
    gaps = []
    for seed in range(50):
        problem = task(seed, 2 + seed % 3, (3, 8))
        gaps.append(found(problem, rounds=15) / exact(problem) - 1)
    assert min(gaps) > -1e-4
    assert sum(gaps) / len(gaps) < 0.02
    assert max(gaps) < 0.10


@pytest.mark.long
@pytest.mark.slow
def test_no_baseline_is_better_on_a_hundred_tasks() -> None:
    for seed in range(100):
        problem = task(seed, (4, 8)[seed % 2], (10, 60))
        best = found(problem, rounds=0, seconds=0.2)
        others = {name: layout.cost() for name, layout in baselines(problem, seed).items()}
        assert len(others) == 5
        assert best <= min(others.values())


@pytest.mark.long
@pytest.mark.slow
def test_two_hundred_tables_on_sixteen_ranks_take_less_than_a_minute() -> None:
    start = time.process_time()
    found(task(7, 16, (200, 200)), seconds=10)
    assert time.process_time() - start < 60


def test_memory_is_kept_where_whole_tables_do_not_fit() -> None:
    problem = task(3, 8, (20, 20))
    largest = max(table.choices[0].memory for table in problem.tables)
    problem = replace(problem, capacity=0.9 * largest)
    assert pack(problem, [0] * len(problem.tables)) is None
    found(problem, rounds=3, seconds=2)


def test_rows_go_to_some_ranks_where_that_is_best() -> None:
    """A narrow table that no rank can hold: half of its rows on two ranks, others beside it."""
    problem = task(5, 4, (6, 6))
    large = problem.tables[0]
    ways = [c for c in large.choices if c.scheme in ("table-wise", "table-row-wise", "row-wise")]
    halved = [
        replace(c, memory=2.0 / c.holders, reduced=1e9 * (c.scheme == "row-wise")) for c in ways
    ]
    small = [replace(t, choices=(replace(t.choices[0], memory=0.1),)) for t in problem.tables[1:]]
    problem = replace(problem, capacity=1.2, tables=(replace(large, choices=tuple(halved)), *small))
    layout = search(problem, rounds=3, seconds=2)
    assert layout is not None and layout.choice(0).scheme == "table-row-wise"
    assert layout.plan().tables[large.name].ranks == layout.ranks[0]
    assert layout.cost() <= exact(problem) * 1.02


def test_nothing_is_found_where_nothing_fits() -> None:
    assert search(task(3, 4, (20, 20), memory=1e-5)) is None
