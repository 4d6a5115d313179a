"""Learned kernel models on held-out measurements: the paper's Table IV for the shipped weights.

Held-out rows were not trained on. Errors are those of the figures as measured, host launch
included; the traced kernels of a V100 then show the kernel times without it.
"""

from __future__ import annotations

import ast
import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import RenderableType
from rich.table import Table

from costmodels.families.gemm import product_kernels
from costmodels.learned.hardware import hardware
from costmodels.learned.infer import estimate
from costmodels.learned.recipe import devices_of, read
from costmodels.learned.score import LONG, Judged, Score, judge
from costmodels.learned.study import OCTAVES, SMALLER, smaller, thresholds, volume
from costmodels.learned.weights import FOLDER, Weights, load, load_shipped, shipped
from costmodels.machine import Machine
from costmodels.sheet import load_device
from costmodels.software import software_profile
from costmodels.tiles import Product
from irgraph.evaluate.measurements import measurements

Flags = NDArray[np.bool_]
TRACED = "paper/kernel_time_by_shape_v100_mlperf_bs2048_2021-04.csv"
WORST = 10
GROWTH = ((1.0, 8.0), (8.0, 64.0), (64.0, np.inf))
"""Volumes over the largest in training that part the rows of the table of larger shapes."""
EDGES = (0.0, 0.1, 1.0, 10.0, np.inf)
"""Milliseconds that part the rows of the table of residuals over size."""


@dataclass(frozen=True, slots=True)
class ScoreTable:
    """Scores under one title; ``rows`` are what was scored, how long it is, and its score."""

    title: str
    rows: Sequence[tuple[str, str, Score]]

    def render(self) -> Table:
        """Return a table of percentages."""
        heads = ("GMAE", "mean", "std", "bias", "p90", "in interval")
        table = Table("", "", "rows", *heads, title=self.title, title_justify="left")
        for what, part, score in self.rows:
            figures = score.as_percent()
            count = figures.pop("count")
            table.add_row(what, part, f"{count:.0f}", *(f"{x:.2f} %" for x in figures.values()))
        return table

    def as_json(self) -> list[dict[str, Any]]:
        """Return the rows as plain values, errors in percent."""
        return [{"what": w, "part": p, **s.as_percent()} for w, p, s in self.rows]


@dataclass(frozen=True, slots=True)
class Traced:
    """One traced product of a V100: microseconds measured, learned, and by the heuristics."""

    kernel: str
    sizes: str
    measured: float
    learned: float
    spread: float
    heuristic: float


@dataclass(frozen=True, slots=True)
class KernelEvaluation:
    """Everything ``irgraph evaluate kernels`` shows."""

    tables: Sequence[ScoreTable]
    traced: Sequence[Traced]
    worst: Sequence[Mapping[str, Any]]

    def render(self) -> list[RenderableType]:
        """Return the tables to print."""
        return [*(t.render() for t in self.tables), _traced_table(self.traced), _plain(self.worst)]

    def as_json(self) -> dict[str, Any]:
        """Return all figures as plain values: errors in percent, times in microseconds."""
        fields = ("kernel", "sizes", "measured", "learned", "spread", "heuristic")
        return {
            "evaluation": "kernels",
            "scores_pct": {table.title: table.as_json() for table in self.tables},
            "traced_us": [{name: getattr(t, name) for name in fields} for t in self.traced],
            "worst": list(self.worst),
        }


def evaluate_kernels() -> KernelEvaluation:
    """Score the shipped weights on the held-out rows of ``IRGRAPH_DATA``."""
    folder = measurements()
    by_device: list[tuple[str, str, Score]] = []
    by_size: list[tuple[str, str, Score]] = []
    worst: list[Mapping[str, Any]] = []
    for family in shipped():
        weights = load_shipped(family)
        data, device = read(family, folder)
        judged = judge(weights, data, device, weights.launches)
        by_device += list(_by_device(judged))
        by_size += list(_by_size(judged))
        worst += _worst(judged)
    worst.sort(key=lambda row: -abs(row["error_pct"]))
    tables = [
        ScoreTable("held-out shapes, launch included", by_device),
        ScoreTable("held-out shapes by measured time (T4 left out)", by_size),
        ScoreTable("a device left out of training, by its datasheet alone", _unseen(folder)),
        ScoreTable("larger shapes than any in training", _larger(folder)),
    ]
    return KernelEvaluation(tables, _traced(folder), worst[:WORST])


def _by_device(judged: Judged) -> Iterator[tuple[str, str, Score]]:
    data = judged.data
    parts = (("all", 0.0), (">= 0.1 ms", LONG))
    for op, name, (part, least) in product(data.family.ops, data.devices, parts):
        rows = data.dev & data.of(name) & (data.op == data.family.ops.index(op))
        keep = rows & (data.times >= least)
        if keep.any():
            yield f"{op} {name}", part, judged.score(keep)


def _by_size(judged: Judged) -> Iterator[tuple[str, str, Score]]:
    data = judged.data
    fair = data.dev & ~data.of("T4")
    for low, high in pairwise(EDGES):
        rows = fair & (data.times >= low * 1e3) & (data.times < high * 1e3)
        if rows.any():
            yield data.family.name, f"{low:g} to {high:g} ms", judged.score(rows)


def _worst(judged: Judged) -> list[Mapping[str, Any]]:
    """Return the held-out rows of the largest errors; the throttled T4 would fill the list."""
    data = judged.data
    errors = np.where(data.dev & ~data.of("T4"), np.abs(judged.errors), 0)
    found: list[Mapping[str, Any]] = []
    for row in np.argsort(-errors)[:WORST]:
        sizes = "x".join(f"{data.sizes[name][row]:.0f}" for name in data.family.sizes)
        found.append(
            {
                "kernel": f"{data.family.ops[data.op[row]]} {sizes}",
                "device": data.devices[data.device[row]],
                "measured_us": round(float(data.times[row]), 1),
                "predicted_us": round(float(judged.predicted[row]), 1),
                "error_pct": round(100 * float(judged.errors[row]), 1),
            }
        )
    return found


def _held_back() -> Iterator[tuple[str, Weights]]:
    for path in sorted((FOLDER / "holdout").glob("*.safetensors")):
        weights = load(path)
        yield path.stem.removeprefix(f"{weights.family.name}-"), weights


def _unseen(folder: Path) -> list[tuple[str, str, Score]]:
    found = []
    for name, weights in _held_back():
        if name == SMALLER:
            continue
        data, _ = read(weights.family.name, folder)
        judged = judge(weights, data, devices_of(data, unseen=(name,)), weights.launches)
        rows = [r for r in _by_device(judged) if r[0].endswith(name)]
        found += rows
    return found


def _larger(folder: Path) -> list[tuple[str, str, Score]]:
    """Score models on shapes larger than any they were trained on, by how many times."""
    found = []
    for name, weights in _held_back():
        if name == SMALLER:
            data, device = read(weights.family.name, folder)
            found += list(_by_growth(judge(weights, data, device, weights.launches)))
    return found


def _by_growth(judged: Judged) -> Iterator[tuple[str, str, Score]]:
    data = judged.data
    large = data.dev & ~smaller(data)
    growth = 2**OCTAVES * volume(data) / thresholds(data)
    for op, name, (low, high) in product(data.family.ops, data.devices, GROWTH):
        rows = large & data.of(name) & (data.op == data.family.ops.index(op))
        keep = rows & (growth >= low) & (growth < high)
        if keep.any():
            part = f"{low:g} to {high:g} x" if high < np.inf else f"over {low:g} x"
            yield f"{op} {name}", part, judged.score(keep)


def _traced(folder: Path) -> list[Traced]:
    """Return the traced tiled products of DLRM_MLPerf with their learned and heuristic times."""
    sheet = load_device("v100")
    machine = Machine(sheet, software_profile("torch-1.10-cuda-11.3"))
    weights, device = load_shipped("gemm"), hardware(sheet)
    found = []
    for row in csv.DictReader((folder / TRACED).read_text(encoding="utf-8").splitlines()):
        if "sgemm" not in row["kernel"]:
            continue
        matrices = _product(row["launching_op_input_shape"], row["kernel"][-2:])
        sizes = {"batch": matrices.batch, "m": matrices.rows, "n": matrices.columns}
        sizes |= {"k": matrices.depth, "op": gemm_op(matrices)}
        told = estimate(weights, {k: np.asarray([v], np.float32) for k, v in sizes.items()}, device)
        formula = product_kernels(matrices, machine)[0].time
        shape = f"{matrices.batch} x {matrices.rows}x{matrices.columns}x{matrices.depth}"
        time, spread = float(told.time[0]), float(told.spread[0])
        found.append(
            Traced(row["kernel"], shape, float(row["mean_kernel_time_us"]), time, spread, formula)
        )
    return found


def gemm_op(product: Product) -> int:
    """Return the measured op nearest to a product: ``linear`` is ``tn``, ``bmm`` ``nn``."""
    return 0 if product.batch == 1 else 1


def _product(shapes: str, layout: str) -> Product:
    """Return the product of the two matrices among an op's input shapes."""
    matrices = [shape for shape in ast.literal_eval(shapes) if len(shape) >= 2]
    first, second = matrices[:2]
    batch = first[0] if len(first) == 3 else 1
    return Product(batch, first[-2], second[-1], first[-1], "f32", layout)


def _traced_table(traced: Sequence[Traced]) -> Table:
    heads = ("kernel", "sizes", "measured", "learned", "error", "heuristic", "error")
    title = "traced kernels of DLRM_MLPerf on V100-SXM2-16GB, no launch (older cuBLAS)"
    table = Table(*heads, title=title, title_justify="left")
    for t in traced:
        table.add_row(
            t.kernel,
            t.sizes,
            f"{t.measured:.1f} us",
            f"{t.learned:.1f} +- {t.spread:.1f}",
            f"{t.learned / t.measured - 1:+.1%}",
            f"{t.heuristic:.1f}",
            f"{t.heuristic / t.measured - 1:+.1%}",
        )
    table.add_section()
    pairs = [(t.learned / t.measured - 1, t.heuristic / t.measured - 1) for t in traced]
    ours, theirs = (np.asarray(column) for column in zip(*pairs, strict=True))
    sizes = (f"{np.abs(ours).mean():.1%}", "", f"{np.abs(theirs).mean():.1%}")
    table.add_row("MAPE", "", "", "", *sizes)
    table.add_row("bias", "", "", "", f"{ours.mean():+.1%}", "", f"{theirs.mean():+.1%}")
    return table


def _plain(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(*rows[0], title="worst held-out cases (T4 left out)", title_justify="left")
    for row in rows:
        table.add_row(*(str(value) for value in row.values()))
    return table
