"""Evaluation on this machine: steps and rewrites on its CPU, predicted and measured.

Nothing is fitted to the steps: kernel times are the times of isolated single calls; a program's
overheads come from the other programs.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace
from rich.console import RenderableType
from rich.table import Table

from costmodels.evaluate.cpu.bench import CpuBench
from irgraph.diagnostics import fail
from irgraph.ir.graph import Graph

EXAMPLES = Path(__file__).parents[3] / "examples"
"""Folder of the examples in a checkout."""


class Program(Struct, frozen=True):
    """A step to run: its name, ``FILE.py:NAME`` and batch size."""

    name: str
    target: str
    batch: int


class Rewrite(Struct, frozen=True):
    """A pipeline of passes, and the program that it changes."""

    pipeline: str
    program: Program


MLP = Program("mlp", "mlp.py:train", 64)
WIDE = Program("mlp, wide", "mlp.py:train(width=512)", 256)
EXPERTS = Program("experts", "experts.py:train", 64)
DROPPING = Program("transformer, dropout", "transformer.py:train(dropout=0.1,length=64)", 4)
PROGRAMS = (
    MLP,
    Program("mlp, inference", "mlp.py:infer", 512),
    Program("dlrm", "dlrm.py:default(max_rows=10000,lookups=10)", 256),
    Program("transformer", "transformer.py:train(length=64)", 4),
    Program("resnet50, small", "resnet50.py:small", 4),
    Program("inception-v3, small", "inception_v3.py:small", 4),
)
"""Steps that are compared with predictions."""

REWRITES = (
    Rewrite("fuse-optimizer", EXPERTS),
    Rewrite("batch-gemm", EXPERTS),
    Rewrite("remove-dead", EXPERTS),
    Rewrite("drop-dropout", DROPPING),
    Rewrite("cast-gemms", WIDE),
    Rewrite("resize-batch(to=256)", MLP),
)
"""Rewrites whose results torch runs fast enough to be timed."""

NOTES = (
    "Times are of the processor, on one thread; noise is half the distance of the quartiles.",
    "Kernels: each call of a step timed by itself. Overheads: from traces of the other programs.",
    "Steps are run as programs; of a rewrite, both models, call by call, by turns.",
)


class Row(Struct, frozen=True):
    """A measured and predicted value: microseconds of a step, or a gain in speed."""

    name: str
    measured: float
    noise: float
    predicted: float
    detail: str = ""

    @property
    def error(self) -> float:
        """Signed relative error of the prediction."""
        return self.predicted / self.measured - 1


class CpuEvaluation(Struct, frozen=True):
    """Steps and gains on this machine's CPU."""

    device: str
    steps: Sequence[Row]
    gains: Sequence[Row]

    def render(self) -> list[RenderableType]:
        """Return the tables and lines to print."""
        steps = Table("step", "measured", "noise", "predicted", "error", title=self.device)
        for row in self.steps:
            times = (f"{time / 1e3:.3f} ms" for time in (row.measured, row.noise, row.predicted))
            steps.add_row(row.name, *times, f"{row.error:+.1%}")
        gains = Table("rewrite", "steps, measured", "gain", "noise", "predicted", "error")
        for row in self.gains:
            times = (f"{gain:.3f}" for gain in (row.measured, row.noise, row.predicted))
            gains.add_row(row.name, row.detail, *times, f"{row.error:+.1%}")
        return [steps, gains, *NOTES]

    def as_json(self) -> dict[str, Any]:
        """Return all figures as plain values: steps in microseconds, gains as ratios."""
        rows = {
            kind: [{**msgspec.to_builtins(row), "error": row.error} for row in results]
            for kind, results in (("steps", self.steps), ("gains", self.gains))
        }
        return {"evaluation": "cpu", "device": self.device, **rows, "notes": list(NOTES)}


def evaluate_cpu(
    programs: Sequence[Program] = PROGRAMS,
    rewrites: Sequence[Rewrite] = REWRITES,
    *,
    runs: int = 100,
    scale: float = 1.0,
) -> CpuEvaluation:
    """Return steps and gains on this machine's CPU, predicted and measured.

    Args:
        programs: programs whose steps are predicted; at least two.
        rewrites: rewrites whose gains are predicted.
        runs: number of runs of each step.
        scale: scale of the products and copies that the device's sheet is measured with.

    Raises:
        IrgraphError: torch is missing, or there are no examples next to the package (exit code 2).
    """
    from irgraph.execute.machine import one_thread

    with TemporaryDirectory() as name, one_thread():
        bench = CpuBench(Path(name), runs, scale)
        return CpuEvaluation(bench.device, _steps(bench, programs), _gains(bench, rewrites))


def _steps(bench: CpuBench, programs: Sequence[Program]) -> list[Row]:
    """Time the steps of programs, and predict each with the overheads of the other programs."""
    overheads = {p: bench.record_overheads(p.name, _step_maker(p)) for p in programs}
    rows = []
    for program in programs:
        graph = _capture_program(program, symbolic=False)
        (times,), calls = bench.time_steps([graph], [_step_maker(program)()])
        others = [samples for other, samples in overheads.items() if other != program]
        rows.append(_row(program.name, times, bench.predict_step(graph, calls, others)))
    return rows


def _gains(bench: CpuBench, rewrites: Iterable[Rewrite]) -> list[Row]:
    """Time the models before and after each rewrite in turns, and predict both."""
    from irgraph import rewrite
    from irgraph.execute.program import GraphProgram as Run
    from irgraph.execute.program import calls_of

    graph_by_program = {change.program: _capture_program(change.program) for change in rewrites}
    overheads = {
        p: bench.record_overheads(p.name, partial(Run, calls_of(g)))
        for p, g in graph_by_program.items()
    }
    rows = []
    for change in rewrites:
        graph = graph_by_program[change.program]
        pair = [calls_of(g) for g in (graph, rewrite(graph, change.pipeline).graph)]
        times, calls = bench.time_steps(pair, [Run(graph) for graph in pair])
        others = [samples for other, samples in overheads.items() if other != change.program]
        first, second = (bench.predict_step(graph, calls, others) for graph in pair)
        detail = " to ".join(f"{statistics.median(part) / 1e3:.3f}" for part in times) + " ms"
        ratios = [before_time / after_time for before_time, after_time in zip(*times, strict=True)]
        name = f"{change.pipeline} of {change.program.name}"
        rows.append(replace(_row(name, ratios, first / second), detail=detail))
    return rows


def _row(name: str, measured: Sequence[float], predicted: float) -> Row:
    low, middle, high = statistics.quantiles(measured, n=4)
    return Row(name, middle, (high - low) / 2, predicted)


def _step_maker(program: Program) -> Callable[[], Callable[[], object]]:
    """Return a function that creates a program's step."""
    from irgraph.capture.live.target import load_target

    target = load_target(_example(program))
    return lambda: target.step(program.batch, "cpu")


def _capture_program(program: Program, symbolic: bool = True) -> Graph:
    """Return a program's model, with its batch size as a dimension if it may be resized."""
    from irgraph.capture.live import capture_file

    target = _example(program)
    return capture_file(target, batch=program.batch, device="cpu", symbolic=symbolic).graph


def _example(program: Program) -> str:
    """Return a program's ``FILE.py:NAME`` in a checkout."""
    if not EXAMPLES.is_dir():
        hint = "run it in a checkout of irgraph"
        raise fail("the examples do not lie beside the package", hint=hint, exit_code=2)
    return str(EXAMPLES / program.target)
