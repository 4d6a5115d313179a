"""Time shipped passes on a training step: ``python tests/benchmarks/bench_passes.py [NAME ...]``.

The step is one of many layers with attention, norms, dropouts and ReLUs. Prints processor seconds
at each number of layers (about 310 ops each), and the exponent between the first and the last. The
step has no dimension to resize: ``bench_growth.py`` does that.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from functools import cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch
from torch import nn

import passes
from irgraph.capture.live import capture
from irgraph.ir.graph import Graph
from irgraph.language import load_script, run
from tests.execute.models import Eager, Step, sgd

GIVEN = {"resize-layer": 'width = 32, layer = "0.1.1"',
         "parallel-branches": 'bottom = "0.1"', "early-bottom": 'bottom = "0.1"',
         "remove-dead": 'keep = ""'}  # fmt: skip


class Layer(nn.Sequential):
    """Attention and two products, behind norms."""

    def __init__(self) -> None:
        feed = [nn.LayerNorm(16), nn.Linear(16, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 16)]
        super().__init__(Eager(16, 2, False), nn.Sequential(*feed))


@cache
def step_of(layers: int) -> Graph:
    """Return a captured step of so many layers."""
    model = nn.Sequential(*(Layer() for _ in range(layers)), nn.Flatten())
    data = torch.rand(4, 8, 16), torch.arange(4)
    return capture(Step(model.to("meta"), data, sgd), device="meta").graph


def seconds(name: str, layers: int) -> tuple[float, int]:
    """Return the processor time of a pass, and how many changes it made."""
    graph = step_of(layers)
    given = GIVEN.get(name, "")
    script = load_script(f"apply {name}({given})" if given else f"apply {name}")
    graph.__dict__.clear()
    start = time.process_time()
    done = run(script, graph)
    return time.process_time() - start, sum(entry.changed for entry in done.report.entries)


def main() -> None:
    """Time the passes that are asked for, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="passes; all by default")
    parser.add_argument("--layers", default="4,40,160", help="numbers of layers")
    asked = parser.parse_args()
    sizes = [int(size) for size in asked.layers.split(",")]
    for size in sizes:
        print(f"{size} layers: {sum(1 for _ in step_of(size).walk())} ops", flush=True)  # noqa: T201
    for name in asked.names or sorted({*passes.names()} - {"resize-batch"}):
        seconds(name, sizes[0])  # what is loaded once
        times = [seconds(name, size) for size in sizes]
        growth = math.log(times[-1][0] / times[0][0]) / math.log(sizes[-1] / sizes[0])
        shown = "  ".join(f"{spent:7.2f} s ({made})" for spent, made in times)
        print(f"{name:<20} {shown}  exponent {growth:.2f}", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
