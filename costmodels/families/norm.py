"""Layer, batch and group normalisation."""

from __future__ import annotations

import math
from collections.abc import Mapping

from msgspec.structs import replace

from costmodels.benchmarks.sweep import Function, Sweep, backward, forward
from costmodels.formulas.blocks.channel_norms import BACKWARD, FORWARD, thread_steps
from costmodels.formulas.blocks.channel_norms import LAW as CHANNELS_LAW
from costmodels.formulas.blocks.channel_norms import result_time as channels_time
from costmodels.formulas.blocks.channel_norms import sums_time as batch_sums_time
from costmodels.formulas.blocks.group_norms import LAW as GROUPS_LAW
from costmodels.formulas.blocks.group_norms import (
    NormGroups,
    factors_time,
    moments_time,
    result_time,
    sums_time,
)
from costmodels.formulas.blocks.image_norms import (
    BACKWARD_PASSES,
    CACHED_FORMULA,
    FORWARD_PASSES,
    blocks_time,
    cached_channels_time,
)
from costmodels.formulas.blocks.row_norms import (
    JOIN,
    PART_ROWS,
    VECTOR,
    columns_time,
    is_summed_in_parts,
    norm_time,
)
from costmodels.formulas.blocks.row_norms import LAW as ROWS_LAW
from costmodels.formulas.elements import ROOFLINE, channels_last, streaming, transposed_copy
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
from costmodels.formulas.serial import MEASURED_ON, START, has_gpu_laws, rate_error
from costmodels.learnable.family import LearnedFamily, Query
from costmodels.learnable.launch import borrowed_launches
from costmodels.learnable.rowwise import SETTINGS, SIZES, rowwise, shape
from irgraph.ir.cost import Kernel
from irgraph.ir.op import Op
from irgraph.ir.points.point_values import maximum, to_int
from irgraph.ir.tensor import Tensor, canonical_strides

SOURCE = (
    "roofline (paper, III-B-1b) over the passes that statistics need; layer and group norm, "
    "and batch norm of matrices, by the blocks of rows, groups or channels (H100, torch 2.11); "
    "batch norm of images by elements of the block that each channel has; trained for layer norm "
    "forward in f32"
)

FORMULA = f"{ROOFLINE}; two passes, as their statistics need"

FEW_LAST, FEW_CHANNELS = 2.6, 32
"""Factor on the streaming time of batch norm with channels last, and the maximum number of channels
with that factor: torch assigns 32 channels to a column of at most 128 blocks; fewer blocks then run
(Normalization.cuh, ``flexible_launch_configs``). Fitted to steps of the same networks in that
layout; the times of 33 to 64 channels show no such factor."""

NARROW = "bytes / DRAM bandwidth x 2.6 over at most 32 channels, fitted to steps of six networks"

CHANNELS = f"{FORMULA}; a block a channel, by elements a cycle (traced cuDNN kernels)"


def _row_order_copies(tensors: tuple[Tensor, ...], machine: Machine) -> tuple[Kernel, ...]:
    """Price the copies of tensors that are not row-major: torch's kernels over rows require that.

    A vision transformer of torchvision normalises such tensors throughout: its embedding is a
    permuted image, and sums preserve its order.
    """
    strided = [
        t for t in tensors if not (machine.paper or canonical_strides(t.shape, t.strides) is None)
    ]
    return tuple(transposed_copy(t, replace(t, strides=None), machine) for t in strided)


def _norm(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price layer normalisation forward, and the copy of data that is not row-major."""
    kernel = _norm_of_rows(op, machine)
    return None if kernel is None else (*_row_order_copies(op.inputs[:1], machine), kernel)


def _norm_of_rows(op: Op, machine: Machine) -> Kernel | None:
    """Price layer normalisation forward: statistics remain on the chip, one read and one write.

    Models were trained on wide rows in whole vectors; for others the larger of both estimates
    counts. On Hopper torch's own kernels were measured: models were trained on other libraries'.
    """
    target = first_tensor(op)
    if target is None:
        return None
    name = f"{op.base} {shape_text(target)}"
    rows, columns = _rows(op, target)
    sizes: dict[str, float | str] = {"rows": rows, "cols": columns, "dtype": target.dtype}
    learned = machine.learned_kernel("layer_norm", name, **sizes)
    learned = learned or machine.kernel_of_model(
        "transformer", name, "norm", {**sizes, "op": "norm"}
    )
    is_rms = op.base == "_fused_rms_norm"  # sums squares alone, as a gradient sums two products
    is_measured = has_gpu_laws(machine) and machine.sheet.architecture == MEASURED_ON and not is_rms
    is_trained = learned and not (learned.outside or columns % VECTOR)
    if learned and not is_measured and (is_trained or not has_gpu_laws(machine)):
        return learned
    if not has_gpu_laws(machine):
        return work("norm", name, streaming(machine, 2 * traffic(target)), UNTRACED, ROOFLINE)
    time = norm_time(rows, columns, target.itemsize, machine, gradient=is_rms)
    if learned and not is_measured and learned.time >= time:
        return learned
    return work("norm", name, time, BORROWED if is_rms else rate_error(machine), ROWS_LAW)


def _rows(op: Op, target: Tensor) -> tuple[int, int]:
    """Return the numbers of normalised rows and of their columns."""
    last = target.shape[-1:]
    normalized_shape = op.attributes.get("normalized_shape")
    sides = normalized_shape if isinstance(normalized_shape, tuple) and normalized_shape else last
    columns = math.prod(to_int(side) for side in sides if isinstance(side, int))
    return target.numel // maximum(columns, 1), columns


def _passes(op: Op, name: str, target: Tensor, passes: int, machine: Machine) -> Kernel:
    time = streaming(machine, passes * traffic(target))
    return work("norm", f"{op.base}{name} {shape_text(target)}", time, UNTRACED, FORMULA)


def _one_pass(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price one pass over operands and results."""
    target = first_tensor(op)
    if target is None:
        return None
    time = streaming(machine, traffic(*op.inputs, *op.outputs))
    return (work("norm", f"{op.base} {shape_text(target)}", time, UNTRACED, ROOFLINE),)


def _two_passes(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price batch norm: passes over the data, or the blocks of its channels if they take longer.

    With given statistics (``training = false``) the data is read and written once; cuDNN's kernel
    for channels last (``bn_fw_inf_1C11_kernel_NHWC``) processes elements individually.
    """
    target = first_tensor(op)
    if target is None:
        return None
    backward = op.base.endswith(("backward", "backward_impl"))
    if not backward and op.attributes.get("training") is False:
        return (_by_statistics(op, target, machine),)
    if has_gpu_laws(machine) and _runs_torch_kernels(op, target):
        return _channels(op, target, machine)
    passes = BACKWARD_PASSES if backward else FORWARD_PASSES
    kernel = _passes(op, "", target, passes, machine)
    cached_time = cached_channels_time(target, 2 if backward else 1, machine)
    block_time = blocks_time(target, passes, machine)
    if _is_narrow(target, machine):
        time = streaming(machine, FEW_LAST * passes * traffic(target))
        return (work("norm", kernel.name, time, BORROWED, NARROW, outside=True),)
    if cached_time:
        return (work("norm", kernel.name, cached_time, FEW, CACHED_FORMULA),)
    padded_channels = _padded_channels(op, target, machine)
    if padded_channels > target.shape[1]:
        time = streaming(machine, passes * traffic(target) * padded_channels / target.shape[1])
        return (work("norm", kernel.name, time, UNTRACED, PADDED_FORMULA),)
    if block_time <= kernel.time:
        return (kernel,)
    return (work("norm", kernel.name, block_time, FEW, CHANNELS),)


COLUMN_CHANNELS, COLUMN_ARCHITECTURES = 64, ("hopper",)
"""Channels of a column of blocks, full or not, of cuDNN's kernels for channels last, and the
architectures that run them: by the grids of ``batchnorm_fwtr_nhwc_semiPersist`` on an H100 (cuDNN
9: 2 columns for 120 channels, 3 for 184, 15 for 960). Older cards show no such rounding (steps of
networks on an RTX 3090)."""

PADDED_FORMULA = f"{FORMULA}; channels in whole columns of 64 (grids of cuDNN's kernels)"


def _padded_channels(op: Op, target: Tensor, machine: Machine) -> int:
    """Return the number of channels, padded to the blocks of cuDNN's channels-last kernels."""
    channels = to_int(target.shape[1]) if target.rank > 1 else 0
    has_columns = machine.sheet.architecture in COLUMN_ARCHITECTURES and op.base.startswith("cudnn")
    if not (has_columns and has_gpu_laws(machine)) or not channels_last(target):
        return channels
    return -(-channels // COLUMN_CHANNELS) * COLUMN_CHANNELS


def _by_statistics(op: Op, target: Tensor, machine: Machine) -> Kernel:
    """Price batch norm with given statistics."""
    kernel = _passes(op, "", target, 2, machine)
    is_elementwise = op.base.startswith("cudnn") and channels_last(target) and has_gpu_laws(machine)
    if not is_elementwise:
        return kernel
    time = streaming(machine, 2 * traffic(target), elements=target.numel)
    return work("norm", kernel.name, time, FEW, ELEMENTWISE_FORMULA)


ELEMENTWISE_FORMULA = f"{ROOFLINE}; each element alone, as where offsets are computed"


def _runs_torch_kernels(op: Op, target: Tensor) -> bool:
    """Return whether torch's own kernels run over rows of channels: cuDNN accepts no matrices."""
    return target.rank == 2 and not op.base.startswith("cudnn")


def _channels(op: Op, target: Tensor, machine: Machine) -> tuple[Kernel, ...]:
    """Price torch's kernels over rows of channels: the sums, small kernels, and the result."""
    backward = op.base.endswith(("backward", "backward_impl"))
    law = BACKWARD if backward else FORWARD
    channels = to_int(target.shape[1])
    rows, size = target.numel // maximum(channels, 1), target.itemsize
    _, shares_rows = thread_steps(rows, channels)
    tiny = [" fill"] if shares_rows else []
    tiny += [] if backward else [" deviations"]
    times = [(" sums", batch_sums_time(law, rows, channels, size, machine))]
    times += [(name, START) for name in tiny]
    times += [("", channels_time(law, rows, channels, size, machine))]
    name, error = shape_text(target), rate_error(machine)
    return tuple(
        work("norm", f"{op.base}{kind} {name}", time, error, CHANNELS_LAW) for kind, time in times
    )


def _is_narrow(target: Tensor, machine: Machine) -> bool:
    """Return whether torch's kernel for channels last has few blocks because of few channels."""
    return has_gpu_laws(machine) and channels_last(target) and target.shape[1] <= FEW_CHANNELS


def _rows_backward(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price a gradient over rows: of the data, and of weight and bias if requested.

    Data and gradient that are not row-major are copied first.
    """
    kernels = _gradients(op, machine)
    return (
        None
        if kernels is None
        else (*_row_order_copies(op.inputs[:DATA_TENSORS], machine), *kernels)
    )


DATA_TENSORS = 2
"""Number of operands of a gradient's call with the data's size, which come first."""


def _gradients(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price the kernels of a gradient over row-major data."""
    target = first_tensor(op)
    if target is None:
        return None
    (rows, columns), needs_weights = (
        _rows(op, target),
        any(t.numel < target.numel for t in op.outputs),
    )
    if not has_gpu_laws(machine):
        data, weight = (_passes(op, name, target, n, machine) for name, n in ROW_PASSES)
        return (data, weight) if needs_weights else (data,)
    time = norm_time(rows, columns, target.itemsize, machine, gradient=True)
    name = f"{op.base} {shape_text(target)}"
    data = work("norm", name, time, rate_error(machine), ROWS_LAW)
    return (data, *_weights(op, target, machine)) if needs_weights else (data,)


ROW_PASSES = (("", 3), (" of weight", 2))
"""Names of the kernels of a gradient over rows, with the number of times they move the data."""


def _weights(op: Op, target: Tensor, machine: Machine) -> tuple[Kernel, ...]:
    """Price the gradients of weight and bias: blocks of columns over all rows, or parts of them."""
    rows, columns = _rows(op, target)
    kernel = _passes(op, " of weight", target, 2, machine)
    if is_summed_in_parts(rows, columns, machine):
        sum_time = JOIN + machine.stream(-(-rows // PART_ROWS) * columns * 4)
        sum_kernel = work("norm", f"{op.base} of weight, joined", sum_time, BORROWED, FORMULA)
        return kernel, sum_kernel, sum_kernel
    block_time = columns_time(rows, columns, machine) + SMALL
    if block_time <= kernel.time:
        return (kernel,)
    return (work("norm", kernel.name, block_time, FEW, COLUMNS),)


COLUMNS = f"{FORMULA}; a block for 32 columns, by elements a cycle (pytorch pull request 87814)"


def _group(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price group norm: sums over rows, factors of each channel, and the result.

    The gradient reads data and gradient twice, for its sums and for the result.
    """
    target = first_tensor(op)
    if target is None:
        return None
    if not has_gpu_laws(machine):
        return _group_passes(op, target, machine)
    data, backward = _groups(op, target), op.base.endswith("backward")
    first_time = sums_time(data, machine) if backward else moments_time(data, machine)
    last_time = result_time(data, 3 if backward else 2, machine)
    is_scaled = backward or len(op.inputs) > 1
    factor_times = ((factors_time(data, machine) if backward else START),) if is_scaled else ()
    weight_times = (START, START) if backward and len(op.inputs) > GROUP_TENSORS else ()
    times = [
        (" sums", first_time),
        *((" factors", time) for time in (*factor_times, *weight_times)),
    ]
    shape, error = shape_text(target), max(rate_error(machine), FEW)
    return tuple(
        work("norm", f"{op.base}{name} {shape}", time, error, GROUPS_LAW)
        for name, time in (*times, ("", last_time))
    )


GROUP_TENSORS, GROUPS = 4, 32
"""Number of operands of group norm's gradient without a weight, and the default number of groups if
the call does not specify it, from most models."""


def _groups(op: Op, target: Tensor) -> NormGroups:
    """Return the groups of a call, from the sizes in its attributes."""
    sizes = [op.attributes.get(name) for name in ("N", "C", "group")]
    batch, channels = target.shape[0], target.shape[1] if target.rank > 1 else 1
    defaults = (batch, channels, GROUPS)
    n, c, groups = (
        to_int(s if isinstance(s, int) else k) for s, k in zip(sizes, defaults, strict=True)
    )
    group_channels = maximum(-(-c // maximum(groups, 1)), 1)
    blocks = maximum(n * groups, 1)
    return NormGroups(
        blocks, group_channels, -(-target.numel // (blocks * group_channels)), target.itemsize
    )


def _group_passes(op: Op, target: Tensor, machine: Machine) -> tuple[Kernel, ...]:
    """Price group norm by the bytes that it moves alone."""
    backward = op.base.endswith("backward")
    factors = work("norm", f"{op.base} factors", SMALL, UNTRACED, FORMULA)
    sums = _passes(op, " sums", target, 2 if backward else 1, machine)
    return sums, factors, _passes(op, "", target, 3 if backward else 2, machine)


def _joined_statistics(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price the statistics of all ranks, from a row of numbers of each: a short kernel."""
    return (work("norm", op.base, SMALL, UNTRACED, FORMULA),)


def _add_norm(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price a sum and its layer norm in one kernel: two reads, and writes of the sum and norm.

    Narrow rows take at least the time of torch's norm.
    """
    target = first_tensor(op)
    if target is None or not op.inputs:
        return None
    time = streaming(machine, traffic(*op.inputs[:2]) + 2 * traffic(target))
    if has_gpu_laws(machine):
        rows, columns = _rows(op, target)
        time = maximum(time, norm_time(rows, columns, target.itemsize, machine, gradient=False))
    return (work("norm", f"{op.base} {shape_text(target)}", time, UNTRACED, ROOFLINE),)


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
"""Normalisation with given statistics, and the halves of a synchronised batch norm."""

RULES: dict[str, Rule] = {
    "aten.native_layer_norm": _norm,
    "aten._fused_rms_norm": _norm,
    "irgraph.add_layer_norm": _add_norm,
    "aten.batch_norm_gather_stats_with_counts": _joined_statistics,
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
    lambda arguments: Query("ln", shape(arguments)),
    SETTINGS,
    borrowed_launches,
    similar="elementwise",
    measured_as=("norm",),
)
