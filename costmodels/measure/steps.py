"""Times the steps of a device's file again: ``python -m costmodels.measure.steps DEVICE FILE``.

Each step is built, run four times, and timed for most of a second; the host waits for the device
before and after. For a CUDA graph its replay is timed, for ``torch.compile`` the compiled step.
"""

from __future__ import annotations

import gc
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from costmodels.evaluate.timed.steps import Step, steps_of
from costmodels.measure.run import torch_for
from irgraph.capture.live.target import load_target
from irgraph.diagnostics import IrgraphError

Torch = Any
SECONDS, WARM_UP, MIN_STEPS, MAX_STEPS = 0.7, 4, 5, 30
"""Seconds that a step is timed for, warm-up steps, and minimum and maximum of timed steps."""


def time_steps(steps: Iterable[Step], device: str) -> Iterator[dict[str, Any]]:
    """Yield the timing of each step on a CUDA device, as a row of a file of timed steps.

    A step that fails has an ``error`` instead of times.
    """
    torch = torch_for(device)
    for step in steps:
        row = {"program": step.program, "batch": step.batch, "how": step.how}
        row |= {"bench": step.bench, "tf32": step.tf32, **step.options}
        torch.backends.cudnn.benchmark = step.bench
        torch.backends.cuda.matmul.allow_tf32 = step.tf32
        try:
            yield row | _timed(torch, step, device)
        except (RuntimeError, MemoryError, IrgraphError) as error:
            yield row | {"error": f"{type(error).__name__}: {str(error)[:300]}"}
        gc.collect()
        torch.cuda.empty_cache()


def _timed(torch: Torch, step: Step, device: str) -> dict[str, Any]:
    torch.manual_seed(0)
    torch.cuda.reset_peak_memory_stats()
    initial_bytes = torch.cuda.memory_allocated()
    run: Any = load_target(step.target).step(step.batch, device)
    graph_state = None
    if step.how == "graph":
        run, graph_state = _replay(torch, run)
    elif step.how == "compile":
        torch._dynamo.reset()
        run.model.compile()
    times, hosts = _times(torch, run)
    quartiles = statistics.quantiles(times, n=4)
    peak = torch.cuda.max_memory_allocated() - initial_bytes
    del graph_state
    return {
        "step_us": round(statistics.median(times), 2),
        "q": [round(quartiles[0], 1), round(quartiles[2], 1)],
        "host_us": round(statistics.median(hosts), 2),
        "runs": len(times),
        "peak": peak,
    }


def _replay(torch: Torch, run: Callable[[], object]) -> tuple[Callable[[], object], object]:
    """Return the replay of a step as one CUDA graph, and the objects that own its memory."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = run()
    return graph.replay, (graph, results)


def _times(torch: Torch, run: Callable[[], object]) -> tuple[list[float], list[float]]:
    """Return the microseconds of each step, and of the host's launches in it."""
    synchronize, clock = torch.cuda.synchronize, time.perf_counter_ns
    for _ in range(WARM_UP):
        run()
    times: list[float] = []
    hosts: list[float] = []
    end = time.monotonic() + SECONDS
    while len(times) < MIN_STEPS or (time.monotonic() < end and len(times) < MAX_STEPS):
        synchronize()
        start = clock()
        run()
        launch_end = clock()
        synchronize()
        times.append((clock() - start) / 1e3)
        hosts.append((launch_end - start) / 1e3)
    return times, hosts


def main(device: str, path: str) -> None:
    """Time the steps of a device's file, and write a file like it."""
    with Path(path).open("x", encoding="utf-8") as file:
        for row in time_steps(steps_of(device), "cuda"):
            file.write(json.dumps(row) + "\n")
            file.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
