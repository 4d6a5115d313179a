"""Whether a search finds the best of 150,336 variants of DLRM that were all priced before.

``choose`` compares samplers of Optuna's on another model and limit (DLRM_DDP within 5 ms) than the
ones of the report: DLRM_default within the 15 ms of ``examples/dlrm-space.toml``.
Usage: OPENBLAS_NUM_THREADS=1 python tests/benchmarks/bench_search.py [choose] [--seeds 10]
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.tuning.exhaustive import Grid, grid_of, searched, shown


def tpe(**options: Any) -> Callable[[int], Any]:
    """Return what makes a sampler of Optuna's with its default or other options."""

    def made(seed: int) -> Any:
        from optuna.samplers import TPESampler

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return TPESampler(seed=seed, **options)

    return made


def named(name: str) -> Callable[[int], Any]:
    """Return what makes one of the samplers by name."""

    def made(seed: int) -> Any:
        import optuna

        return getattr(optuna.samplers, name)(seed=seed)

    return made


SAMPLERS: Mapping[str, Callable[[int], Any]] = {
    "as irgraph has it": lambda _: None,
    "TPE, 50 at random first": tpe(n_startup_trials=50),
    "TPE, axis by axis": tpe(multivariate=False),
    "NSGA-II": named("NSGAIISampler"),
    "random": named("RandomSampler"),
}


def report(grid: Grid, name: str, seeds: int, trials: int) -> None:
    """Print how a sampler does from several seeds."""
    begin = time.process_time()
    made = [searched(grid, SAMPLERS[name](seed), seed, trials) for seed in range(seeds)]
    spent = (time.process_time() - begin) / seeds
    sys.stdout.write(f"{name:38s} {shown(made, grid.best)}; {spent:.1f} s a search\n")
    sys.stdout.flush()


def main() -> None:
    """Price a grid, and search it from several seeds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="?", choices=["choose", "report"], default="report")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--trials", type=int, default=2000)
    parser.add_argument("--sampler", action="append", choices=SAMPLERS)
    given = parser.parse_args()
    choose = given.what == "choose"
    model, limit = ("ddp", "5ms") if choose else ("default", "15ms")
    grid = grid_of(model, "throughput", {"memory.peak": "device", "step.time": limit})
    sys.stdout.write(
        f"DLRM_{model} within {limit}: {grid.points:,} points in {grid.seconds:.0f} s of processor "
        f"time, {grid.feasible:,} keep the limits, {grid.optima} of them the best: "
        f"{grid.best:,.0f} samples/s\n"
    )
    for name in given.sampler or (SAMPLERS if choose else ["as irgraph has it"]):
        report(grid, name, given.seeds, given.trials)


if __name__ == "__main__":
    main()
