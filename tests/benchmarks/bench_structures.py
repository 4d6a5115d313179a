"""One changed step rewritten, priced and scheduled, and how that grows with the step.

Usage: OPENBLAS_NUM_THREADS=1 python tests/benchmarks/bench_structures.py

What a search does with each structure that it tries, on steps of DLRM captured with more and more
tables: a script is run over the step, and the result predicted. Prints the median processor time
and what the rewrite takes of it, beside predictions of the unchanged step, also at new sizes.
"""

from __future__ import annotations

import gc
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

from irgraph.api import run_script
from irgraph.capture.live import capture_file
from irgraph.ir.graph import Graph
from irgraph.predict.prediction import predict

EXAMPLES = Path(__file__).parents[2] / "examples"

STRUCTURES = {
    "fusing its lookups": "apply fuse-embedding",
    "casting its products": "apply cast-gemms",
    "resizing its batch": "resize B = 777",
    "resizing its batch, each time anew": "resize B = {size}",
}
"""Scripts by what they do to a step."""

PROGRAM = """
import sys
sys.path.insert(0, {folder!r})
from dlrm import CONFIGS, CRITEO_ROWS, Config, preset

ROWS = (CRITEO_ROWS * 3)[:{tables}]
CONFIGS["more"] = Config((13, 512, 256, 128), (1024, 1024, 512, 256, 1), ROWS, 1, "bce")

def step(batch: int, device: str):
    return preset("more", batch, device)
"""


def captured(tables: int) -> Graph:
    """Return a captured step of DLRM_MLPerf with so many tables."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "more.py"
        path.write_text(PROGRAM.format(folder=str(EXAMPLES), tables=tables), encoding="utf-8")
        return capture_file(f"{path}:step").graph


def milliseconds(call: Callable[[], object]) -> float:
    """Return the processor time of a call."""
    begin = time.process_time()
    call()
    return 1e3 * (time.process_time() - begin)


def middle(call: Callable[[int], object]) -> float:
    """Return the median processor time of calls with nine numbers, milliseconds."""
    call(999)
    return median(milliseconds(partial(call, 1000 + turn)) for turn in range(9))


def structural(graph: Graph, what: str, pipeline: str) -> None:
    """Print the time of one changed step; sizes are none at which anything was priced before."""
    whole, rewrites = [], []
    for size in range(3000, 3010):
        begin = time.process_time()
        made = run_script(graph, pipeline.format(size=size)).graph
        rewrites.append(1e3 * (time.process_time() - begin))
        predict(made, "v100")
        whole.append(1e3 * (time.process_time() - begin))
    took, of_it = median(whole[1:]), median(rewrites[1:])
    sys.stdout.write(f"  {what:36s} {took:6.1f} ms, {of_it:5.1f} of it the rewrite\n")


def steps(graph: Graph, tables: int) -> None:
    """Print a line for each change of a step."""
    ops, calls = sum(1 for _ in graph.walk()), len(list(graph.top_level()))
    sys.stdout.write(f"{tables} tables, {ops} ops, {calls} calls\n")
    alone = middle(lambda _: predict(graph, "v100"))
    sized = middle(lambda size: predict(graph, "v100", dims={"B": size}))
    sys.stdout.write(f"  {'unchanged':36s} {alone:6.1f} ms, {sized:.1f} at a size that is new\n")
    for what, pipeline in STRUCTURES.items():
        structural(graph, what, pipeline)


def main() -> None:
    """Capture steps of more and more tables, and time changes of each."""
    for tables in (8, 26, 60):
        graph = captured(tables)
        predict(graph, "v100")
        gc.collect()
        gc.freeze()  # as a program does that searches: what was loaded is not looked through again
        steps(graph, tables)


if __name__ == "__main__":
    main()
