"""Products in a traced step of DLRM on a V100: learned and heuristic times without launches."""

from __future__ import annotations

import ast
import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from msgspec import Struct
from rich.table import Table

from costmodels.devices.library import PAPER, load_device
from costmodels.formulas.machine import Machine
from costmodels.formulas.products import product_kernels
from costmodels.formulas.software import software_profile
from costmodels.formulas.tiles import Product
from costmodels.learnable.hardware import hardware
from costmodels.learned.infer import estimate
from costmodels.learned.weights import load_shipped

TRACED = "paper/kernel_time_by_shape_v100_mlperf_bs2048_2021-04.csv"


class TracedProduct(Struct, frozen=True):
    """One traced product of a V100: microseconds measured, learned, and by the heuristics."""

    kernel: str
    sizes: str
    measured: float
    learned: float
    spread: float
    heuristic: float


def traced_products(folder: Path) -> list[TracedProduct]:
    """Return the traced tiled products of DLRM_MLPerf with their learned and heuristic times."""
    sheet = load_device(PAPER)
    machine = Machine(sheet, software_profile("torch-1.10-cuda-11.3"))
    weights, device = load_shipped("gemm"), hardware(sheet)
    result = []
    for row in csv.DictReader((folder / TRACED).read_text(encoding="utf-8").splitlines()):
        if "sgemm" not in row["kernel"]:
            continue
        matrices = _product(row["launching_op_input_shape"], row["kernel"][-2:])
        sizes = {"batch": matrices.batch, "m": matrices.rows, "n": matrices.columns}
        sizes |= {"k": matrices.depth, "op": gemm_op(matrices)}
        columns = {k: np.asarray([v], np.float32) for k, v in sizes.items()}
        learned = estimate(weights, columns, device)
        formula = product_kernels(matrices, machine)[0].time
        shape = f"{matrices.batch} x {matrices.rows}x{matrices.columns}x{matrices.depth}"
        time, spread = float(learned.time[0]), float(learned.spread[0])
        result.append(
            TracedProduct(
                row["kernel"], shape, float(row["mean_kernel_time_us"]), time, spread, formula
            )
        )
    return result


def gemm_op(product: Product) -> int:
    """Return the index of the measured op closest to a product: 0 ``linear``, 1 ``bmm``."""
    return 0 if product.batch == 1 else 1


def _product(shapes: str, layout: str) -> Product:
    """Return the product of the two matrices among an op's input shapes."""
    matrices = [shape for shape in ast.literal_eval(shapes) if len(shape) >= 2]
    first, second = matrices[:2]
    batch = first[0] if len(first) == 3 else 1
    return Product(batch, first[-2], second[-1], first[-1], "f32", layout)


def traced_table(traced: Sequence[TracedProduct]) -> Table:
    """Return a table of signed errors, with their mean absolute value and mean at the end."""
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
    learned_errors, heuristic_errors = (np.asarray(column) for column in zip(*pairs, strict=True))
    sizes = (f"{np.abs(learned_errors).mean():.1%}", "", f"{np.abs(heuristic_errors).mean():.1%}")
    table.add_row("MAPE", "", "", "", *sizes)
    table.add_row(
        "bias", "", "", "", f"{learned_errors.mean():+.1%}", "", f"{heuristic_errors.mean():+.1%}"
    )
    return table
