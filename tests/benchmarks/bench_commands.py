"""Time cold commands on a model of 1,000 device ops: ``python tests/benchmarks/bench_commands.py``.

The model is the shipped DLRM_default step, its ops repeated under other names until there are as
many device ops. Each command runs in a process of its own, as a user's would; medians of five.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from importlib import resources
from pathlib import Path

from irgraph.ir.edit import map_tensors
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor
from irgraph.text import parse, print_graph

ROOT = Path(__file__).parents[2]
DEVICE_OPS = 1000
RUNS = 5


def repeated(graph: Graph, count: int) -> Graph:
    """Return a graph with its step repeated until it has ``count`` leaves."""
    declared = {d.tensor.name for d in graph.tensors}
    held = {d.tensor.buffer for d in graph.tensors}
    ops: list[Op] = []
    leaves, turn = 0, 0
    while leaves < count:

        def renamed(tensor: Tensor, turn: int = turn) -> Tensor:
            if tensor.name in declared:
                return tensor
            buffer = tensor.buffer if tensor.buffer in held else f"{tensor.buffer}r{turn}"
            return replace(tensor, name=f"{tensor.name}r{turn}", buffer=buffer)

        ops += [map_tensors(op, renamed) for op in graph.ops]
        leaves += sum(1 for _ in graph.leaves())
        turn += 1
    return replace(graph, ops=tuple(ops))


def seconds(*arguments: str) -> float:
    """Return the median wall time of a command, in seconds."""
    times = []
    for _ in range(RUNS):
        start = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "irgraph", *arguments], cwd=ROOT, capture_output=True, check=True
        )
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def main() -> None:
    """Print the time of each command."""
    source = resources.files("costmodels.evaluate") / "data" / "dlrm_default.ir"
    graph = repeated(parse(source.read_text(encoding="utf-8")), DEVICE_OPS)
    with tempfile.TemporaryDirectory() as folder:
        model = str(Path(folder) / "model.ir")
        Path(model).write_text(print_graph(graph), encoding="utf-8")
        for arguments in (
            ("--help",),
            ("show", model),
            ("predict", model),
            ("opt", "--pass", "fuse-embedding", model),
            ("diff", model, model),
        ):
            sys.stdout.write(f"{seconds(*arguments):6.2f} s  irgraph {' '.join(arguments)}\n")


if __name__ == "__main__":
    main()
