"""Losses and their gradients."""

from __future__ import annotations

import math

from costmodels.benchmarks.bench import Bench, Call
from costmodels.benchmarks.sweep import MATRIX, Sweep
from costmodels.families.fill import fill_kernel
from costmodels.families.reduce import reduction
from costmodels.formulas.elements import ROOFLINE, streaming
from costmodels.formulas.intervals import BORROWED, CLOSE, EXACT
from costmodels.formulas.machine import Machine, Rule, shape_text, traffic, work
from irgraph.ir.cost import Kernel
from irgraph.ir.op import Op
from irgraph.ir.points.point_values import map_points, maximum, minimum, to_int
from irgraph.ir.tensor import Tensor

SOURCE = (
    "roofline (paper, III-B-1b) of an element-wise kernel, and a reduction; traced for BCE and MSE"
)


def _elements(op: Op, name: str, tensor: Tensor, tensors: int, machine: Machine) -> Kernel:
    time = streaming(machine, tensors * traffic(tensor))
    return work("loss", f"{op.base} {name}{shape_text(tensor)}", time, CLOSE, ROOFLINE)


def _forward(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price a loss: values, their mean, and (2021) the copy of the mean to its result."""
    source = next(iter(op.inputs), None)
    if source is None or not op.outputs:
        return None
    values = _elements(op, "", source, 3, machine)
    if op.outputs[0].numel == source.numel > 1:
        return (values,)
    kernels = (values, *reduction(source, 1, machine))
    if machine.software.loss_fills and op.base == "binary_cross_entropy":
        copy = work("copy", "copy 1", 1.5, EXACT, ROOFLINE, launch="memcpy")
        return (*kernels, copy)
    return kernels


def _backward(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price a loss's gradient: BCE divides by the count afterwards; MSE fills first (2021)."""
    if not op.outputs or op.outputs[0] is None:
        return None
    result = op.outputs[0]
    main = _elements(op, "", result, 4, machine)
    if op.base == "binary_cross_entropy_backward":
        return (main, _elements(op, "mean ", result, 2, machine))
    if machine.software.loss_fills:
        return (fill_kernel(result, machine), main)
    return (main,)


def _with_logits(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price BCE of logits, which torch composes: log-sigmoid, two products, a sum, the mean.

    If its inner calls were recorded, they are priced instead.
    """
    if not op.inputs or op.body:
        return None
    source = op.inputs[0]
    parts = tuple(_elements(op, f"{i} ", source, 3, machine) for i in range(1, 5))
    return (*parts, *reduction(source, 1, machine))


def _nll(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price NLL: one block iterates over all rows and picks the class of each.

    The block has a thread for 16 rows, from 32 threads to 1024 (torch, Loss.cu). The gradient is
    cleared before.
    """
    backward = op.base.endswith("backward")
    tensors = op.outputs if backward else op.inputs[1:2]
    if not tensors:
        return None
    if "2d" in op.base:
        return (_elements(op, "", tensors[0], 2, machine),)
    rows = tensors[0].numel
    if backward:
        rows = rows // maximum(to_int(tensors[0].shape[-1]), 1) if tensors[0].rank > 1 else 1
    threads = minimum(maximum(map_points(_power_of_two, rows / 16), 32), 1024)
    time = machine.start + math.ceil(rows / threads) * PICK_TIME
    walk = work("loss", f"{op.base} {rows} rows", time, BORROWED, PICK_FORMULA)
    return (fill_kernel(tensors[0], machine), walk) if backward else (walk,)


def _power_of_two(value: float) -> int:
    return int(2 ** round(math.log2(max(value, 1))))


def _ctc(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price the loss of alignments: one block for each sample processes the frames in sequence.

    The gradient processes them in reverse, and then sums over all frames and classes (torch,
    LossCTC.cu).
    """
    scores = next((t for t in op.inputs if t.rank == 3), None)
    if scores is None:
        return None
    frames, batch = to_int(scores.shape[0]), to_int(scores.shape[1])
    time = machine.start + frames * PICK_TIME * maximum(batch / machine.sheet.sms, 1.0)
    walk = work("loss", f"{op.base} {frames} frames", time, BORROWED, WALK_FORMULA)
    if not op.base.endswith("backward"):
        return (walk,)
    return (walk, _elements(op, "", scores, 3, machine))


WALK_FORMULA = "frames x two dependent reads (torch, LossCTC.cu; the reads as traced for nll_loss)"

PICK_TIME = 0.6
"""Microseconds to read a row's class and then its value (traced on RTX 2080 Ti and V100: 12 us for
512 rows, 4 for 128, 3 for 32)."""

PICK_FORMULA = "rows a thread of the one block x two dependent reads (torch, Loss.cu; traced)"


RULES: dict[str, Rule] = {
    **dict.fromkeys(
        ("aten.mse_loss", "aten.binary_cross_entropy", "aten.smooth_l1_loss", "aten.huber_loss",
         "aten.soft_margin_loss", "aten.multi_margin_loss"),
        _forward,
    ),
    **dict.fromkeys(
        ("aten.mse_loss_backward", "aten.binary_cross_entropy_backward",
         "aten.smooth_l1_loss_backward", "aten.huber_loss_backward",
         "aten.multi_margin_loss_backward"),
        _backward,
    ),
    "aten.binary_cross_entropy_with_logits": _with_logits,
    **dict.fromkeys(
        ("aten.nll_loss_forward", "aten.nll_loss_backward", "aten.nll_loss2d_forward",
         "aten.nll_loss2d_backward"),
        _nll,
    ),
    "aten._ctc_loss": _ctc,
    "aten._ctc_loss_backward": _ctc,
}  # fmt: skip


def _bench(bench: Bench) -> Call:
    functions, op = bench.torch.nn.functional, bench.case.op
    predictions = bench.values(bench["rows"], bench["cols"])
    if op == "cross_entropy":
        classes = bench.rows(bench["cols"], bench["rows"])
        return lambda: functions.cross_entropy(predictions, classes)
    targets = bench.values(bench["rows"], bench["cols"])
    if op == "mse_loss":
        return lambda: functions.mse_loss(predictions, targets)
    return lambda: functions.binary_cross_entropy_with_logits(predictions, targets)


SWEEPS = {"loss": Sweep(dict.fromkeys(("cross_entropy", "mse_loss", "bce"), _bench), MATRIX)}
