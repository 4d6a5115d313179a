"""Learned kernel models beside gradient boosting on the same rows and inputs, and their speed.

Needs IRGRAPH_DATA and, for the comparison, scikit-learn, which irgraph itself does not use.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from costmodels.learned.data import Measurements
from costmodels.learned.hardware import hardware
from costmodels.learned.infer import estimate
from costmodels.learned.recipe import read
from costmodels.learned.score import LONG, Score, judge, launch_columns, score
from costmodels.learned.weights import Weights, load_shipped, shipped
from costmodels.sheet import load_device

ROWS = 200_000


def speed(weights: Weights) -> float:
    """Return predictions a second of one core over distinct shapes, interval included."""
    rng = np.random.default_rng(0)
    low, high = (1, 250) if weights.family.name == "conv2d" else (2, 4000)
    sizes = {n: rng.integers(low, high, ROWS).astype(np.float32) for n in weights.family.sizes}
    if weights.family.name == "conv2d":
        sizes |= {"stride": np.ones(ROWS, np.float32), "padding": np.ones(ROWS, np.float32)}
        sizes["kernel_size"] = np.full(ROWS, 3, np.float32)
    sizes["op"] = np.zeros(ROWS, np.float32)
    device = hardware(load_device("v100-pcie-32gb"))
    best = np.inf
    for _ in range(5):
        begin = time.process_time()
        estimate(weights, sizes, device)
        best = min(best, time.process_time() - begin)
    return ROWS / best


def boosted(
    data: Measurements, weights: Weights, inputs: np.ndarray, base: np.ndarray
) -> np.ndarray:
    """Return times predicted by boosting log(time / (launch + base)), one model an op."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    before, _ = launch_columns(data, weights.launches)
    scale = before + base
    goal = np.log(data.times / scale)
    found = np.zeros_like(data.times)
    for number in range(len(data.family.ops)):
        rows = data.op == number
        model = HistGradientBoostingRegressor(
            loss="absolute_error", max_iter=600, learning_rate=0.06, random_state=0
        )
        model.fit(inputs[rows & ~data.dev], goal[rows & ~data.dev])
        found[rows] = np.exp(model.predict(inputs[rows])) * scale[rows]
    return found


def compare(family: str, folder: Path) -> None:
    """Print held-out errors of both models by op and device."""
    weights = load_shipped(family)
    data, device = read(family, folder)
    inputs = data.family.inputs(data.sizes, device)
    ours = judge(weights, data, device, weights.launches)
    theirs = boosted(data, weights, inputs.matrix().T, inputs.base) / data.times - 1
    for number, op in enumerate(data.family.ops):
        for name in data.devices:
            rows = data.dev & data.of(name) & (data.op == number)
            for part, keep in (("all", rows), (">= 0.1 ms", rows & (data.times >= LONG))):
                if keep.any():
                    other = score(theirs[keep], np.zeros(keep.sum(), bool))
                    line(f"{op} {name} {part}", ours.score(keep), other)


def line(what: str, ours: Score, theirs: Score) -> None:
    """Print one comparison in percent."""
    pairs = [(100 * s.gmae, 100 * s.mape) for s in (ours, theirs)]
    text = "   ".join(f"GMAE {g:6.2f}  MAPE {m:6.2f}" for g, m in pairs)
    sys.stdout.write(f"{what:38} {text}\n")


def main() -> None:
    """Print speeds, then the comparison."""
    for family in shipped():
        sys.stdout.write(f"{family:12} {speed(load_shipped(family)):10,.0f} predictions/s\n")
    folder = os.environ.get("IRGRAPH_DATA")
    if not folder:
        sys.stdout.write("IRGRAPH_DATA is not set: no comparison\n")
        return
    sys.stdout.write(f"{'held-out errors in %':38} {'irgraph':29} gradient boosting\n")
    for family in sys.argv[1:] or shipped():
        compare(family, Path(folder))


if __name__ == "__main__":
    main()
