"""Time cold commands on a model of 1,000 device ops: ``python tests/benchmarks/bench_commands.py``.

The model is the shipped DLRM_default step, its ops repeated under other names until there are as
many device ops. Each command runs in a process of its own, as a user's would, in turn with a bare
interpreter and ``import numpy``: what others do on the machine slows all three. Medians of nine.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from msgspec.structs import replace

from irgraph.ir.edit import map_tensors
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor
from irgraph.text import parse, print_graph

DEVICE_OPS = 1000
RUNS = 9

COMPILED = {name: v for name, v in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
"""The environment of a user whose modules are compiled once, as pip compiles packages."""

IRGRAPH, BARE, NUMPY = ("-m", "irgraph"), ("-c", "pass"), ("-c", "import numpy")


def repeated(graph: Graph, count: int) -> Graph:
    """Return a graph with its step repeated until it has ``count`` leaves."""
    declared = {d.tensor.name for d in graph.tensors}
    held = {d.tensor.buffer for d in graph.tensors}
    ops: list[Op] = []
    leaves, turn = 0, 0

    def renamed(tensor: Tensor) -> Tensor:
        if tensor.name in declared:
            return tensor
        buffer = tensor.buffer if tensor.buffer in held else f"{tensor.buffer}r{turn}"
        return replace(tensor, name=f"{tensor.name}r{turn}", buffer=buffer)

    while leaves < count:
        turn += 1
        ops += [map_tensors(op, renamed) for op in graph.ops]
        leaves += sum(1 for _ in graph.leaves())
    returned = graph.returned and tuple(map(renamed, graph.returned))
    return replace(graph, ops=tuple(ops), returned=returned)


def thousand_ops(folder: Path) -> str:
    """Write a model of 1,000 device ops into a folder and return its path."""
    source = resources.files("costmodels.evaluate") / "data" / "dlrm_default.ir"
    graph = repeated(parse(source.read_text(encoding="utf-8")), DEVICE_OPS)
    path = folder / "model.ir"
    path.write_text(print_graph(graph), encoding="utf-8")
    return str(path)


def seconds(*arguments: str) -> float:
    """Return the processor time of one run of an interpreter with its children, in seconds."""
    quiet = [(os.POSIX_SPAWN_OPEN, stream, os.devnull, os.O_WRONLY, 0) for stream in (1, 2)]
    command = [sys.executable, *arguments]
    pid = os.posix_spawn(sys.executable, command, COMPILED, file_actions=quiet)
    _, status, used = os.wait4(pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)} ended with {os.waitstatus_to_exitcode(status)}")
    return used.ru_utime + used.ru_stime


def times(command: Sequence[str], *others: Sequence[str], runs: int = RUNS) -> list[float]:
    """Return the median seconds of a command, and how many times those of each other it is.

    The commands take turns, the first of which does not count; the ratios are medians over turns.
    """
    turns = [[seconds(*one) for one in (command, *others)] for _ in range(runs + 1)][1:]
    ratios = [statistics.median(t[0] / t[n + 1] for t in turns) for n in range(len(others))]
    return [statistics.median(t[0] for t in turns), *ratios]


def main() -> None:
    """Print the time of each command."""
    with tempfile.TemporaryDirectory() as folder:
        model = thousand_ops(Path(folder))
        for arguments in (
            ("--help",),
            ("show", model),
            ("predict", model),
            ("opt", "--pass", "fuse-embedding", model),
            ("diff", model, model),
        ):
            own, bare, numpy = times((*IRGRAPH, *arguments), BARE, NUMPY)
            ratios = f"{bare:5.1f} times an interpreter's, {numpy:4.1f} times numpy's"
            sys.stdout.write(f"{own:6.2f} s, {ratios}:  irgraph {' '.join(arguments)}\n")


if __name__ == "__main__":
    main()
