"""The example search finds the best of its grid, of which every point is priced once."""

from __future__ import annotations

import pytest

import irgraph
from irgraph.capture.live import capture_file
from tests.tuning.exhaustive import ROOT, Grid, grid_of, searched

SEEDS = 3
"""``tests/benchmarks/bench_search.py`` has ten."""


@pytest.mark.slow
def test_the_optimum_of_the_grid_is_found() -> None:
    """One test, so that the grid is priced by one worker: it takes minutes."""
    grid = grid_of("default", "throughput", {"memory.peak": "device", "step.time": "15ms"})
    assert grid.points > 100_000 > grid.feasible > 0
    found = [searched(grid, None, seed, 2000) for seed in range(SEEDS)]
    assert [one.best for one in found] == [grid.best] * SEEDS
    assert predicted_alone(grid) == grid.best


def predicted_alone(grid: Grid) -> float:
    """Return the best figure by a prediction of a fresh capture, which its script rewrites."""
    figures = grid.space.figures(list(grid.space.points()))
    (best,) = (f for f in figures if f.feasible and f.values["throughput"] == grid.best)
    graph = capture_file(f"{ROOT}/examples/dlrm.py:default").graph
    made = irgraph.run_script(graph, grid.space.script(best.point)).graph
    alone = irgraph.predict(made, device=str(best.point["device"]), measured=False)
    return int(best.point["B"]) / alone.step_time * 1e6
