"""Variants a second, priced and scheduled on one core, and how that grows with the step.

Usage: OPENBLAS_NUM_THREADS=1 python tests/benchmarks/bench_variants.py [sizes a device]
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from costmodels.devices.library import list_devices
from costmodels.evaluate.dlrm_v100 import dlrm
from irgraph.ir.graph import Graph
from irgraph.predict.prediction import predict
from irgraph.predict.variants import predict_variants

LEARNED, FORMULAS = ("v100", "a100", "p100", "t4"), ("h100", "l4", "rtx-4090", "mi300x")


def seconds(call: Callable[[], object]) -> float:
    """Return the processor time of a call."""
    begin = time.process_time()
    call()
    return time.process_time() - begin


def repeated(graph: Graph, ops: int) -> Graph:
    """Return a step of about so many calls: a captured one, again and again."""
    times = max(ops // len(graph.ops), 1)
    return replace(graph, ops=graph.ops * times)


def line(what: str, count: int, took: float, alone: float) -> None:
    """Print variants a second, and how many times as fast that is as one prediction each."""
    rate = count / took
    sys.stdout.write(f"{what:58s} {rate:9.0f} /s {alone * rate:8.1f} x predict\n")


def grid(what: str, graph: Graph, devices: Sequence[str], count: int, most: int) -> None:
    """Time all devices at random sizes, beside predictions of some of them one by one."""
    choose = random.Random(1)
    sizes = [{"B": choose.randrange(1, most)} for _ in range(count)]
    pairs = [(choose.choice(devices), choose.choice(sizes)) for _ in range(4)]
    predict_variants(graph, devices, sizes[:2])
    alone = seconds(lambda: [predict(graph, d, dims=s, measured=False) for d, s in pairs]) / 4
    took = seconds(lambda: predict_variants(graph, devices, sizes))
    line(f"{what}, {len(devices)} devices x {count} sizes", len(devices) * count, took, alone)


def main() -> None:
    """Print a line for each kind of variants."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    step = dlrm("DLRM_MLPerf", 2048)
    calls = len(list(step.top_level()))
    sys.stdout.write(f"DLRM_MLPerf: {calls} calls\n")
    grid("learned models", step, LEARNED, count, 16_384)
    grid("formulas", step, FORMULAS, count, 16_384)
    grid("all devices", step, list_devices(), count // 4, 16_384)
    grid("sizes repeat", step, LEARNED, count, 65)
    for ops in (100, 1_000, 10_000):
        grid(f"about {ops:,} calls", repeated(step, ops), LEARNED, count, 16_384)


if __name__ == "__main__":
    main()
