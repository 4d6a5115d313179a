"""How many predictions a second the learned kernel models give on one core."""

from __future__ import annotations

import os
import sys
import time

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from costmodels.devices.library import load_device
from costmodels.learned.infer import estimate
from costmodels.learned.weights import Weights, load_shipped, shipped_models

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
    device = weights.family.campaign.hardware([load_device("v100-pcie-32gb")])
    best = np.inf
    for _ in range(5):
        begin = time.process_time()
        estimate(weights, sizes, device)
        best = min(best, time.process_time() - begin)
    return ROWS / best


def main() -> None:
    """Print predictions a second."""
    for family in shipped_models():
        sys.stdout.write(f"{family:12} {speed(load_shipped(family)):10,.0f} predictions/s\n")


if __name__ == "__main__":
    main()
