"""Softmax and its gradient, over the last axis."""

from __future__ import annotations

from collections.abc import Mapping

from costmodels.benchmarks.sweep import MATRIX, Function, Sweep, backward, forward
from costmodels.formulas.blocks.softmax_rows import (
    BLOCK,
    MAX_REGISTER_VALUES,
    backward_time,
    forward_time,
)
from costmodels.formulas.elements import ROOFLINE, streaming
from costmodels.formulas.intervals import CLOSE, FEW, UNTRACED
from costmodels.formulas.machine import Machine, Rule, first_tensor, shape_text, traffic, work
from costmodels.formulas.serial import has_gpu_laws, rate_error
from costmodels.learnable.family import LearnedFamily, Query
from costmodels.learnable.launch import borrowed_launches
from costmodels.learnable.rowwise import SETTINGS, SIZES, rowwise, shape
from irgraph.ir.cost import Kernel
from irgraph.ir.op import Op
from irgraph.ir.points.point_values import maximum, to_int
from irgraph.ir.tensor import Tensor

SOURCE = (
    "bytes, or the values that a lane or a block holds of a row (torch, PersistentSoftmax.cuh; "
    "measured on H100); softmax's gradient after a product of both; trained for softmax forward "
    "in f32"
)

ROWS = "bytes, or what a lane or a block holds of a row (measured: H100 SXM 80 GB, torch 2.11)"


def _softmax(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price one pass: the operand (or both operands of the gradient) and the result move once."""
    target = first_tensor(op)
    if target is None:
        return None
    nbytes = traffic(*op.inputs, *op.outputs)
    name = f"{op.base} {shape_text(target)}"
    columns = to_int(target.shape[-1]) if target.rank else 1
    rows = target.numel // maximum(columns, 1)
    learned = machine.learned_kernel(
        "softmax", name, op=op.base, rows=rows, cols=columns, dtype=target.dtype
    )
    if learned:
        return (learned,)
    if (
        not has_gpu_laws(machine)
        or op.base not in (*FORWARD, *BACKWARD)
        or not _over_rows(op, target)
    ):
        return (work("softmax", name, streaming(machine, nbytes), UNTRACED, ROOFLINE),)
    error, is_too_long = maximum(rate_error(machine), FEW), columns > BLOCK * MAX_REGISTER_VALUES
    if op.base in FORWARD:
        time = forward_time(rows, columns, target.itemsize, "log" in op.base, machine)
        extra = maximum(nbytes - 2 * traffic(target), 0)
        time += machine.stream(extra) + machine.start
        return (work("softmax", name, time, error, ROWS, outside=is_too_long),)
    time = backward_time(rows, columns, target.itemsize, machine) + machine.start
    kernel = work("softmax", name, time, error, ROWS, outside=is_too_long)
    if "log" in op.base:
        return (kernel,)
    product = streaming(machine, 3 * traffic(target))
    return work("softmax", f"product {shape_text(target)}", product, CLOSE, ROOFLINE), kernel


def _over_rows(op: Op, target: Tensor) -> bool:
    """Return whether a softmax is over the last axis, which is the default."""
    axis = op.attributes.get("dim")
    return not isinstance(axis, int) or axis in (-1, target.rank - 1)


FORWARD = ("_softmax", "_log_softmax", "_safe_softmax")
BACKWARD = ("_softmax_backward_data", "_log_softmax_backward_data")

NAMES = ("_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data",
         "_masked_softmax", "_masked_softmax_backward", "_safe_softmax")  # fmt: skip

RULES: dict[str, Rule] = {f"aten.{name}": _softmax for name in NAMES}

_FUNCTIONS: Mapping[str, Function] = {
    "softmax": lambda t, x: t.softmax(x, -1),
    "log_softmax": lambda t, x: t.log_softmax(x, -1),
}

SWEEPS = {"softmax": Sweep({**forward(_FUNCTIONS), **backward(_FUNCTIONS)}, MATRIX)}


def _query(arguments: Mapping[str, float | str]) -> Query | None:
    """Return softmax forward over the last axis, the only measured op."""
    return Query("softmax", shape(arguments)) if arguments["op"] == "_softmax" else None


LEARNED = LearnedFamily(
    "softmax",
    ("softmax",),
    SIZES,
    rowwise,
    _query,
    SETTINGS,
    borrowed_launches,
    similar="elementwise",
)
