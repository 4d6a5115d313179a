"""Layer, batch and group normalisation."""

from __future__ import annotations

from collections.abc import Mapping

from costmodels.benchmarks.sweep import Function, Sweep, backward, forward
from costmodels.formulas.elements import ROOFLINE, channels_last, streaming
from costmodels.formulas.intervals import BORROWED, FEW, UNTRACED
from costmodels.formulas.machine import (
    SMALL,
    Machine,
    Rule,
    first_tensor,
    shape_text,
    traffic,
    work,
)
from costmodels.learnable.family import LearnedFamily, Query
from costmodels.learnable.launch import borrowed
from costmodels.learnable.rowwise import SETTINGS, SIZES, rowwise, shape
from irgraph.ir.cost import Kernel
from irgraph.ir.op import Op
from irgraph.ir.points.many import most, whole
from irgraph.ir.tensor import Tensor

SOURCE = (
    "roofline (paper, III-B-1b) over the passes that statistics need; batch norm by elements of "
    "the block that each channel has; trained for layer norm forward in f32"
)

FORWARD_PASSES, BACKWARD_PASSES = 3, 5
"""Times that the data is moved: read for the statistics, read and written to normalise; the
gradient reads data and gradient twice, for the sums and for the result, and writes once."""

FORMULA = f"{ROOFLINE}; two passes, as their statistics need"

ALONE, SHARED = 1.75, 3.3
"""Elements a cycle and pass of a batch norm's block that has a multiprocessor to itself, and of all
blocks that share one. In training cuDNN (``1C11`` kernels), and torch's own kernels, have one block
for each channel unless channels are last: 64 channels leave 44 of an A100's 108 multiprocessors
idle. Traced alone, over 64 channels: 1.4 (V100) and 1.75 (A100) backward, 1.7 and 2.2 forward in
f32; on A100 1.9 and 1.6 in f16, so that narrower elements gain nothing. Shared: a step of ResNet-50
on A100 in f16 (public torch profile, batch 128, NCHW), over all layers with more channels."""

CROWD, LONELY = 64, 0.42
"""Channels below which a block gets faster, and the power of their number by which: the fewer
blocks run, the more of the memory each has. Fitted to steps of six networks with few channels that
``irgraph evaluate steps`` does not compare (timm, trained on an RTX 3090, NCHW: docs/costs.md)."""

FEW_LAST, FEW_CHANNELS = 2.6, 32
"""How many times its bytes batch norm takes with channels last over at most so many of them: torch
gives 32 channels to a column of at most 128 blocks, so that fewer run (Normalization.cuh,
``flexible_launch_configs``). Fitted to steps of the same networks in that layout; what 33 to 64
channels take of them shows no such factor."""

NARROW = "bytes / DRAM bandwidth x 2.6 over at most 32 channels, fitted to steps of six networks"

CHANNELS = f"{FORMULA}; a block a channel, by elements a cycle (traced cuDNN kernels)"


def _norm(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price layer normalisation forward: statistics stay on the chip, one read and one write."""
    target = first_tensor(op)
    if target is None:
        return None
    name = f"{op.base} {shape_text(target)}"
    columns = whole(target.shape[-1]) if target.rank else 1
    rows = target.numel // most(columns, 1)
    sizes: dict[str, float | str] = {"rows": rows, "cols": columns, "dtype": target.dtype}
    learned = machine.ask("layer_norm", name, **sizes)
    learned = learned or machine.ask_other("transformer", name, "norm", {**sizes, "op": "norm"})
    if learned:
        return (learned,)
    return (work("norm", name, streaming(machine, 2 * traffic(target)), UNTRACED, ROOFLINE),)


def _passes(op: Op, name: str, target: Tensor, passes: int, machine: Machine) -> Kernel:
    time = streaming(machine, passes * traffic(target))
    return work("norm", f"{op.base}{name} {shape_text(target)}", time, UNTRACED, FORMULA)


def _one_pass(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price one pass over what is read and written."""
    target = first_tensor(op)
    if target is None:
        return None
    time = streaming(machine, traffic(*op.inputs, *op.outputs))
    return (work("norm", f"{op.base} {shape_text(target)}", time, UNTRACED, ROOFLINE),)


def _two_passes(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price batch norm: passes over the data, or the blocks of its channels where they take longer.

    By given statistics (``training = false``) the data is read and written once.
    """
    target = first_tensor(op)
    if target is None:
        return None
    backward = op.base.endswith(("backward", "backward_impl"))
    if not backward and op.attributes.get("training") is False:
        return (_passes(op, "", target, 2, machine),)
    passes = BACKWARD_PASSES if backward else FORWARD_PASSES
    moved, blocks = _passes(op, "", target, passes, machine), _blocks(target, passes, machine)
    if _is_narrow(target, machine):
        time = streaming(machine, FEW_LAST * passes * traffic(target))
        return (work("norm", moved.name, time, BORROWED, NARROW, outside=True),)
    if blocks <= moved.time:
        return (moved,)
    return (work("norm", moved.name, blocks, FEW, CHANNELS),)


def _is_narrow(target: Tensor, machine: Machine) -> bool:
    """Return whether torch's kernel for channels last has few blocks for want of channels."""
    gpu = not (machine.paper or machine.sheet.is_host)
    return gpu and channels_last(target) and target.shape[1] <= FEW_CHANNELS


def _blocks(target: Tensor, passes: int, machine: Machine) -> float:
    """Return microseconds of a block for each channel; 0 where rows of channels are contiguous."""
    if machine.paper or machine.sheet.is_host or target.rank < 3 or channels_last(target):
        return 0.0
    channels = max(int(target.shape[1]), 1)
    alone = ALONE * max(CROWD / channels, 1.0) ** LONELY
    rate = min(alone, SHARED / -(-channels // machine.sheet.sms))
    return machine.cycles(passes * target.numel / channels / rate) + SMALL


def _rows_backward(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price a gradient over rows: that of the data, and that of weight and bias if asked for."""
    target = first_tensor(op)
    if target is None:
        return None
    data = _passes(op, "", target, 3, machine)
    if not any(made.numel < target.numel for made in op.outputs):
        return (data,)
    weight = _passes(op, " of weight", target, 2, machine)
    columns = _columns(target, machine)
    if op.base != "native_layer_norm_backward" or columns <= weight.time:
        return data, weight
    return data, work("norm", weight.name, columns, FEW, COLUMNS)


COLUMN_BLOCK, COLUMN_RATE = 32, 3.2
"""Columns of a block that sums layer norm's gradients over all rows, and the elements that it sums
up in a cycle: 3.7 and 2.7 (256 and 512 columns, 6,000 rows, f32, on an A100 at 1,410 MHz; after
pytorch/pytorch#87814, in releases from 2.0, 5.0 and 2.4)."""

COLUMNS = f"{FORMULA}; a block for 32 columns, by elements a cycle (pytorch pull request 87814)"


def _columns(target: Tensor, machine: Machine) -> float:
    """Return microseconds of a block for each 32 columns, 0 where the software has others."""
    if machine.paper or machine.sheet.is_host or not machine.software.norm_by_columns:
        return 0.0
    columns = whole(target.shape[-1]) if target.rank else 1
    blocks = -(-columns // COLUMN_BLOCK)
    rounds = -(-blocks // machine.sheet.sms)
    rows = target.numel // most(columns, 1)
    return machine.cycles(rounds * rows * COLUMN_BLOCK / COLUMN_RATE) + SMALL


def _group(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price group norm: sums over rows, factors of each channel, and the result element by element.

    The gradient reads data and gradient for its sums, and again for the result.
    """
    target = first_tensor(op)
    if target is None:
        return None
    backward = op.base.endswith("backward")
    factors = work("norm", f"{op.base} factors", SMALL, UNTRACED, FORMULA)
    sums = _passes(op, " sums", target, 2 if backward else 1, machine)
    return sums, factors, _passes(op, "", target, 3 if backward else 2, machine)


def _add_norm(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price a sum and its layer norm in one kernel: two reads, and writes of the sum and norm."""
    target = first_tensor(op)
    if target is None or not op.inputs:
        return None
    nbytes = traffic(*op.inputs[:2]) + 2 * traffic(target)
    name = f"{op.base} {shape_text(target)}"
    return (work("norm", name, streaming(machine, nbytes), UNTRACED, ROOFLINE),)


TWO_PASSES = (
    "native_batch_norm", "native_batch_norm_backward",
    "_native_batch_norm_legit", "_batch_norm_with_update", "batch_norm_backward",
    "cudnn_batch_norm", "cudnn_batch_norm_backward",
)  # fmt: skip

ROWS_BACKWARD = ("native_layer_norm_backward", "_fused_rms_norm_backward")

ONE_PASS = (
    "_native_batch_norm_legit_no_training", "_batch_norm_no_update", "batch_norm_elemt",
    "batch_norm_backward_elemt", "batch_norm_stats", "batch_norm_backward_reduce",
    "_weight_norm_interface", "_weight_norm_interface_backward",
)  # fmt: skip
"""Normalisation by given statistics, and the halves of a synchronised batch norm."""

RULES: dict[str, Rule] = {
    "aten.native_layer_norm": _norm,
    "aten._fused_rms_norm": _norm,
    "irgraph.add_layer_norm": _add_norm,
    **{f"aten.{name}": _two_passes for name in TWO_PASSES},
    **{f"aten.{name}": _rows_backward for name in ROWS_BACKWARD},
    **{f"aten.{name}": _one_pass for name in ONE_PASS},
    **dict.fromkeys(("aten.native_group_norm", "aten.native_group_norm_backward"), _group),
}

_FUNCTIONS: Mapping[str, Function] = {
    "layer_norm": lambda t, x: t.nn.functional.layer_norm(x, x.shape[-1:]),
    "batch_norm": lambda t, x: t.nn.functional.batch_norm(x, None, None, training=True),
    "group_norm": lambda t, x: t.nn.functional.group_norm(x.unsqueeze(0), 1),
}

SWEEPS = {
    "norm": Sweep(
        {**forward(_FUNCTIONS), **backward(_FUNCTIONS)},
        {"rows": (32, 2**15), "cols": (16, 2**12)},
    )
}

LEARNED = LearnedFamily(
    "layer_norm",
    ("ln",),
    SIZES,
    rowwise,
    lambda asked: Query("ln", shape(asked)),
    SETTINGS,
    borrowed,
    similar="elementwise",
    measured_as=("norm",),
)
