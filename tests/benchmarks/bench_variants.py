"""Variants a second, priced and scheduled on one core, and how that grows with the step.

Usage: OPENBLAS_NUM_THREADS=1 python tests/benchmarks/bench_variants.py [sizes a device]
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

from msgspec.structs import replace

from costmodels.devices.library import list_devices
from costmodels.evaluate.dlrm_v100 import dlrm
from irgraph.api import run_script
from irgraph.capture.live import capture_file
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.predict.prediction import predict
from irgraph.predict.variants import predict_variants

ROOT = Path(__file__).parents[2]

STRUCTURES = {
    "fusing its lookups": "apply fuse-embedding",
    "resizing its batch": "resize B = 777",
    "casting its products": "apply cast-gemms",
}
"""Scripts by what they do to a step."""

LEARNED, FORMULAS = ("v100", "a100", "p100", "t4"), ("titan-xp", "l4", "rtx-4090", "mi300x")
CORRECTED = ("h100",)


def seconds(call: Callable[[], object]) -> float:
    """Return the processor time of a call."""
    begin = time.process_time()
    call()
    return time.process_time() - begin


def repeated(graph: Graph, ops: int) -> Graph:
    """Return a step of about so many calls: a captured one, again and again.

    Each call is an op of its own, as in any step: a call's launches are counted by its op.
    """
    times = max(ops // len(graph.ops), 1)
    return replace(graph, ops=tuple(copied(op) for _ in range(times) for op in graph.ops))


def copied(op: Op) -> Op:
    """Return another op that is equal, with ops of its own inside."""
    return replace(op, body=tuple(map(copied, op.body)))


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


def structural(graph: Graph, what: str, pipeline: str) -> None:
    """Time one changed step: rewritten, then priced and scheduled at a size that is new."""

    def changed(size: int) -> None:
        made = run_script(graph, pipeline).graph
        predict_variants(made, ["v100"], [{"B": size}])

    changed(1000)
    took = median(seconds(lambda size=size: changed(size)) for size in range(1001, 1010))
    rewritten = median(seconds(lambda: run_script(graph, pipeline)) for _ in range(9))
    alone = median(seconds(lambda s=s: predict(graph, "v100", dims={"B": s})) for s in range(5, 14))
    sys.stdout.write(
        f"one step changed by {what:39s} {1e3 * took:9.1f} ms {alone / took:8.1f} x predict, "
        f"{1e3 * rewritten:.1f} ms of it the rewrite\n"
    )


def intervals(graph: Graph, what: str, count: int) -> None:
    """Time predictions with their intervals: of variants together, and one by one."""
    choose = random.Random(2)
    sizes = [{"B": choose.randrange(1, 16_384)} for _ in range(count)]

    def told(dims: dict[str, int]) -> tuple[float, float]:
        return predict(graph, "v100", dims=dims, measured=False).interval

    told(sizes[0])
    alone = median(seconds(lambda d=d: told(d)) for d in sizes[:5])
    took = seconds(lambda: predict_variants(graph, LEARNED, sizes, intervals=True))
    line(f"{what} with intervals, 4 devices x {count} sizes", 4 * count, took, alone)


def main() -> None:
    """Print a line for each kind of variants."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    step = dlrm("DLRM_MLPerf", 2048)
    calls = len(list(step.top_level()))
    sys.stdout.write(f"DLRM_MLPerf: {calls} calls\n")
    grid("learned models", step, LEARNED, count, 16_384)
    grid("formulas", step, FORMULAS, count, 16_384)
    grid("corrected formulas", step, CORRECTED, count, 16_384)
    grid("all devices", step, list_devices(), count // 4, 16_384)
    grid("sizes repeat", step, LEARNED, count, 65)
    intervals(step, f"{calls} calls", max(count // 4, 25))
    longer = repeated(step, 1_000)
    calls = len(list(longer.top_level()))
    intervals(longer, f"{calls:,} calls", max(count // 10, 25))
    intervals(longer, f"{calls:,} calls again,", count)
    grid(f"{calls:,} calls, formulas", longer, FORMULAS, count, 16_384)
    grid(f"{calls:,} calls, sizes repeat", longer, LEARNED, count, 65)
    captured = capture_file(f"{ROOT}/examples/dlrm.py:default").graph
    for what, pipeline in STRUCTURES.items():
        structural(captured, what, pipeline)
    for ops in (100, 1_000, 10_000):
        longer = repeated(step, ops)
        calls = len(list(longer.top_level()))
        grid(f"{calls:,} calls", longer, LEARNED, count, 16_384)


if __name__ == "__main__":
    main()
