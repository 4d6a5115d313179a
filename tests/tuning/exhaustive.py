"""Grids of variants priced to the last point, and how soon samplers of Optuna find their optima."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from irgraph.capture.live import capture_file
from irgraph.tuning.file import read_space
from irgraph.tuning.limits import FIGURES, limit
from irgraph.tuning.space import SearchSpace
from irgraph.tuning.study import Study

ROOT = Path(__file__).parents[2]
SPACE = ROOT / "examples" / "dlrm-space.toml"


class Grid(NamedTuple):
    """A space of which every point is priced, so that trials look figures up.

    Attributes:
        space: with the figures of all its points.
        objective: what is sought.
        best: its value at the best point that keeps all limits.
        points, feasible, optima: how many points there are, keep the limits, and are the best.
        seconds: processor time that pricing took.
    """

    space: SearchSpace
    objective: str
    best: float
    points: int
    feasible: int
    optima: int
    seconds: float


def grid_of(model: str, objective: str, limits: Mapping[str, str]) -> Grid:
    """Return the example's space on a step of ``examples/dlrm.py``, all of its points priced."""
    graph = capture_file(f"{ROOT}/examples/dlrm.py:{model}").graph
    found, _ = read_space(str(SPACE), graph)
    found = replace(found, limits={name: limit(name, bound) for name, bound in limits.items()})
    points = list(found.points())
    begin = time.process_time()
    figures = found.figures(points)
    seconds = time.process_time() - begin
    values = [one.values[objective] for one in figures if one.feasible]
    best = (max if FIGURES[objective].higher_is_better else min)(values)
    return Grid(found, objective, best, len(points), len(values), values.count(best), seconds)


class Search(NamedTuple):
    """How a search went: at which trial it found the optimum, 0 where it did not, and its best."""

    trial: int
    best: float


def searched(grid: Grid, sampler: object, seed: int, trials: int) -> Search:
    """Search a grid until its optimum is found, or for so many trials."""
    study = Study(grid.space, [grid.objective], sampler=sampler, seed=seed)
    better = FIGURES[grid.objective].higher_is_better
    seen: list[float] = []

    def look(done: int) -> None:
        last = study.optuna.get_trials(deepcopy=False)[-1]
        if last.value is not None and all(share <= 0 for share in last.constraints.values()):
            seen.append(last.value)
            if last.value == grid.best:
                study.optuna.stop()

    study.run(trials, look)
    best = (max if better else min)(seen, default=float("nan"))
    return Search(study.finished if best == grid.best else 0, best)


def shown(searches: Sequence[Search], best: float) -> str:
    """Return a line about searches from several seeds."""
    at = sorted(one.trial for one in searches if one.trial)
    share = min((min(one.best / best, best / one.best) for one in searches), default=0.0)
    middle = f", in the middle at trial {at[len(at) // 2]}, at the latest {at[-1]}" if at else ""
    return f"{len(at)} of {len(searches)} seeds find the optimum{middle}; worst best {share:.4%}"
