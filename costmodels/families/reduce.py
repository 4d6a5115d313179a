"""Reductions: sums, means, extrema and norms over some or all axes."""

from __future__ import annotations

from msgspec.structs import replace

from costmodels.benchmarks.sweep import MATRIX, Sweep, forward
from costmodels.formulas.blocks.reductions import (
    HALVES_AT_ONCE,
    VALUES_AT_ONCE,
    launch_of,
    reduction_time,
)
from costmodels.formulas.blocks.scans import scan_time
from costmodels.formulas.elements import ROOFLINE, streaming
from costmodels.formulas.intervals import EXACT, FAIR, UNTRACED
from costmodels.formulas.machine import Machine, Rule, shape_text, traffic, work
from costmodels.formulas.serial import has_gpu_laws
from irgraph.ir.cost import Kernel
from irgraph.ir.op import Op
from irgraph.ir.points.point_values import maximum
from irgraph.ir.tensor import Tensor, row_major

SOURCE = (
    "bytes, or the reads that a thread makes one after the other, and what blocks that share a "
    "result take to meet (torch, Reduce.cuh; constants measured on H100)"
)

FORMULA = (
    "bytes or serial reads, waves of blocks, and the meeting of those that share a result (torch, "
    "Reduce.cuh; measured: H100 SXM 80 GB, torch 2.11)"
)


def reduction(
    source: Tensor,
    results: int,
    machine: Machine,
    *,
    written: int = 0,
    rows: bool = True,
    indexed: bool = False,
) -> tuple[Kernel, ...]:
    """Return the kernels that reduce a tensor to ``results`` values; one may clear semaphores.

    ``written`` is the number of bytes of these values, ``rows`` whether the values of a result are
    contiguous, ``indexed`` whether indices are returned. The paper's formula counts the bytes read
    alone.
    """
    name = f"reduce {shape_text(source)} to {results}"
    if not has_gpu_laws(machine):
        return (work("reduce", name, streaming(machine, traffic(source)), FAIR, ROOFLINE),)
    launch = launch_of(results, -(-source.numel // results), rows, machine)
    at_once = HALVES_AT_ONCE if rows and source.itemsize == 2 and not indexed else VALUES_AT_ONCE
    time = reduction_time(
        launch,
        traffic(source) + written,
        source.numel,
        machine,
        at_once=at_once,
        indexed=indexed,
    )
    kernel = work("reduce", name, time, FAIR, FORMULA)
    if not launch.sharing > 1:
        return (kernel,)
    return (work("fill", "clear semaphores", 1.0, EXACT, FORMULA, launch="memset"), kernel)


def _scan(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price cumulative sums, by bytes of operand and result, or by chunks along rows."""
    source = next(iter(op.inputs), None)
    if source is None:
        return None
    written = [*op.outputs, *(t for t in op.inputs if t.name in op.written)]
    time = streaming(machine, traffic(source) + traffic(*written))
    name, columns = f"{op.base} {shape_text(source)}", source.shape[-1] if source.rank else 1
    rows = source.numel // maximum(columns, 1)
    if not has_gpu_laws(machine) or not _along_rows(op) or rows < 2 or not source.contiguous:
        return (work("reduce", name, time, UNTRACED, ROOFLINE, outside=True),)
    time = maximum(time, scan_time(rows, columns, machine))
    return (work("reduce", name, time, UNTRACED, SCAN_FORMULA),)


SCAN_FORMULA = (
    "bytes, or chunks along rows by sweeps of a block (torch, ScanUtils.cuh; measured: H100)"
)


def _reduce(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    source = next(iter(op.inputs), None)
    if source is None or not op.outputs:
        return None
    operand = replace(source, shape=(source.numel * len(op.inputs),)) if _pairs(op) else source
    indexed = op.base in ("argmax", "argmin") or (op.base in ("max", "min") and len(op.outputs) > 1)
    return reduction(
        operand,
        maximum(op.outputs[0].numel, 1),
        machine,
        written=traffic(*op.outputs),
        rows=_along_rows(op),
        indexed=indexed,
    )


def _along_rows(op: Op) -> bool:
    """Return whether the contiguous axis is reduced; by default all axes are."""
    dim, source = op.attributes.get("dim"), op.inputs[0]
    axes = dim if isinstance(dim, tuple) else (dim,)
    reduced_axes = [axis % source.rank for axis in axes if isinstance(axis, int) and source.rank]
    if not reduced_axes:
        return True
    steps = source.strides or row_major(source.shape)
    contiguous_axis = next(
        (i for i, step in reversed(list(enumerate(steps))) if step == 1), source.rank - 1
    )
    return contiguous_axis in reduced_axes


def _pairs(op: Op) -> bool:
    """Return whether a reduction reads two tensors of equal size."""
    return op.base in ("dot", "vdot", "dist", "equal") and len(op.inputs) == 2


NAMES = (
    "sum", "mean", "nansum", "prod", "amax", "amin", "aminmax", "max", "min", "argmax",
    "argmin", "all", "any", "norm", "linalg_vector_norm", "var", "std", "var_mean", "std_mean",
    "logsumexp", "count_nonzero", "dot", "vdot", "dist", "trace", "equal", "_aminmax",
    "_is_all_true", "_is_any_true", "linalg__powsum", "hash_tensor",
)  # fmt: skip

SCANS = (
    "cumsum",
    "cumprod",
    "logcumsumexp",
    "_cummax_helper",
    "_cummin_helper",
    "cummax",
    "cummin",
)

RULES: dict[str, Rule] = {
    **{f"aten.{name}": _reduce for name in NAMES},
    **{f"aten.{name}{end}": _scan for name in SCANS for end in ("", "_")},
}

SWEEPS = {
    "reduce": Sweep(
        forward(
            {
                "sum_rows": lambda t, x: x.sum(0),
                "sum_cols": lambda t, x: x.sum(1),
                "sum_all": lambda t, x: x.sum(),
                "max_cols": lambda t, x: x.max(1),
                "cumsum": lambda t, x: x.cumsum(1),
            }
        ),
        MATRIX,
    )
}
