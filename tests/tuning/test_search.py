"""The example search finds the best of its grid, of which every point is priced once."""

from __future__ import annotations

import pytest

import irgraph
from irgraph.capture.live import capture_file
from tests.tuning.exhaustive import ROOT, Grid, grid_of, searched

SEEDS = 3
"""``tests/benchmarks/bench_search.py`` has ten."""


@pytest.fixture(scope="module")
def grid() -> Grid:
    return grid_of("default", "throughput", {"memory.peak": "device", "step.time": "15ms"})


@pytest.mark.slow
def test_the_optimum_of_the_grid_is_found(grid: Grid) -> None:
    assert grid.points > 100_000 > grid.feasible > 0
    found = [searched(grid, None, seed, 2000) for seed in range(SEEDS)]
    assert [one.best for one in found] == [grid.best] * SEEDS


@pytest.mark.slow
def test_the_optimum_is_what_a_prediction_says(grid: Grid) -> None:
    """Against a prediction of its own, of a fresh capture that the script rewrites."""
    points = list(grid.space.points())
    figures = grid.space.figures(points)
    (best,) = (f for f in figures if f.feasible and f.values["throughput"] == grid.best)
    graph = capture_file(f"{ROOT}/examples/dlrm.py:default").graph
    made = irgraph.run_script(graph, grid.space.script(best.point)).graph
    alone = irgraph.predict(made, device=str(best.point["device"]), measured=False)
    assert int(best.point["B"]) / alone.step_time * 1e6 == grid.best
