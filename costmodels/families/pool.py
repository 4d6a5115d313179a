"""Pooling, padding and resampling of images: overlapping windows hit the cache."""

from __future__ import annotations

import math

from costmodels.benchmarks.bench import Bench, Call, gradient
from costmodels.benchmarks.sweep import Sweep
from costmodels.formulas.elements import ROOFLINE, channels_last, streaming
from costmodels.formulas.intervals import BORROWED, EXACT, FEW, UNTRACED
from costmodels.formulas.machine import Machine, Rule, first_tensor, shape_text, traffic, work
from costmodels.formulas.serial import START, block_rounds, has_gpu_laws, step_time
from irgraph.ir.cost import Kernel
from irgraph.ir.op import Op
from irgraph.ir.points.point_values import maximum

SOURCE = (
    "roofline (paper, III-B-1b): what is read and what is written moves once; the gradient of a "
    "maximum, and what it looks through, by element rates (traced RTX 2080 Ti, V100 and A100); "
    "means by their number, linear resampling by steps through all planes (H100, torch 2.11)"
)

MAX_GRADIENT, MAX_GRADIENT_LAST = 0.28, 0.46
"""Elements per cycle and multiprocessor of the gradient of a maximum, which searches all windows of
each element, and of its kernel for channels last. Traced ResNets: 0.25 on RTX 2080 Ti, 0.33 on
V100, 0.28 on A100 in f32; 0.30 and 0.46 on A100 in f16 (public torch profiles)."""

TAPS = 2.0
"""Elements of windows per cycle and multiprocessor of a maximum, in the same steps: 1.65 on RTX
2080 Ti, 2.0 on V100, 2.3 on A100 in f32 and in f16, 2.0 with channels last."""

MEANS = 0.32
"""Means per cycle and multiprocessor of small windows, limited by the computation of their bounds.
Measured for windows of 2 x 2: H100 SXM 80 GB, torch 2.11: 0.31 to 0.32 in f32 and in f16."""

SHAPE_ONLY = ("max_pool", "avg_pool")
"""Names of gradients that use only the shape of the pooled tensor (torch, DilatedMaxPool2d.cu)."""


def _pool(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    target = first_tensor(op)
    if target is None:
        return None
    read = list(op.inputs)
    if op.base.endswith("backward") and any(name in op.base for name in SHAPE_ONLY):
        del read[1:2]
    nbytes = traffic(*read, *op.outputs)
    time = max(streaming(machine, nbytes), _window_time(op, machine))
    name = f"{op.base} {shape_text(target)}"
    walk_time = _plane_walk_time(op, nbytes, machine)
    if walk_time <= time:
        kernel = work("pool", name, time, UNTRACED, ROOFLINE)
        return (*_clear_kernels(op, machine), kernel)
    is_measured = op.base == "upsample_bilinear2d"
    return (work("pool", name, walk_time, FEW if is_measured else BORROWED, WALK),)


def _clear_kernels(op: Op, machine: Machine) -> tuple[Kernel, ...]:
    """Return the fill before the gradient of a maximum; the rates include its bytes."""
    if not (op.base.startswith("max_pool") and op.base.endswith("backward")):
        return ()
    return (
        (work("fill", "clear gradient", START, EXACT, ROOFLINE),) if has_gpu_laws(machine) else ()
    )


PLANE_BY_PLANE = ("upsample_linear1d", "upsample_bilinear2d", "upsample_bicubic2d",
                  "upsample_trilinear3d")  # fmt: skip
"""Kernels with a thread for each pixel of the result's plane, which iterates over all images and
channels (torch, UpSampleBilinear2d.cu and similar files): small planes occupy few
multiprocessors."""

PIXELS = 1024
"""Threads of a block of such a kernel."""

WALK = (
    "a block for 1,024 pixels walks through all planes, by cycles of a step (measured: H100 SXM "
    "80 GB, torch 2.11; others than bilinear ones borrow it)"
)


def _plane_walk_time(op: Op, nbytes: int, machine: Machine) -> float:
    """Return microseconds of the steps over all planes; 0 if channels are last."""
    if op.base not in PLANE_BY_PLANE or not has_gpu_laws(machine) or not (op.inputs and op.outputs):
        return 0.0
    result = op.outputs[0]
    if result.rank < 3 or channels_last(op.inputs[0]):
        return 0.0
    planes = result.shape[0] * result.shape[1]
    blocks = -(-result.numel // maximum(planes * PIXELS, 1))
    return START + planes * block_rounds(machine, blocks, PIXELS) * step_time(machine, nbytes)


def _window_time(op: Op, machine: Machine) -> float:
    """Return microseconds of the windows of a maximum, its gradient or a mean."""
    if not op.base.startswith(SHAPE_ONLY) or machine.paper:
        return 0.0
    means = op.base.startswith("avg_pool")
    if op.base.endswith("backward") and means:
        return 0.0
    if op.base.endswith("backward"):
        largest = max((*op.inputs, *op.outputs), key=lambda tensor: tensor.numel)
        rate = MAX_GRADIENT_LAST if channels_last(largest) else MAX_GRADIENT
        return machine.cycles(largest.numel / (rate * machine.sheet.sms))
    if machine.sheet.is_host or not op.outputs:  # a trace alone may not know the results
        return 0.0
    window = op.attributes.get("kernel_size", 1)
    sides = window if isinstance(window, tuple) else (window,) * (2 if "2d" in op.base else 3)
    taps = math.prod(int(side) for side in sides if isinstance(side, int))
    cycles = max(taps / TAPS, 1 / MEANS if means else 0.0)
    return machine.cycles(op.outputs[0].numel * cycles / machine.sheet.sms)


FORWARD = (
    "max_pool2d_with_indices", "max_pool3d_with_indices", "avg_pool2d", "avg_pool3d",
    "_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "adaptive_max_pool2d", "adaptive_max_pool3d",
    "fractional_max_pool2d", "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d",
    "_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "upsample_linear1d",
    "upsample_bilinear2d", "upsample_bicubic2d", "upsample_trilinear3d",
    "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa", "reflection_pad1d", "reflection_pad2d",
    "reflection_pad3d", "replication_pad1d", "replication_pad2d", "replication_pad3d",
    "grid_sampler_2d", "grid_sampler_3d", "cudnn_grid_sampler", "affine_grid_generator",
)  # fmt: skip

NAMES = (
    *FORWARD,
    *(f"{name}_backward" for name in FORWARD),
    "constant_pad_nd",
    "max_unpool2d",
    "max_unpool3d",
    "im2col",
    "col2im",
)

RULES: dict[str, Rule] = {f"aten.{name}": _pool for name in NAMES}


def _bench(bench: Bench) -> Call:
    functions, op = bench.torch.nn.functional, bench.case.op
    grad = op.endswith("backward")
    image = bench.values(bench["batch"], bench["channels"], bench["side"], bench["side"], grad=grad)
    if op == "avg_pool":
        return lambda: functions.avg_pool2d(image, 2)
    if op == "upsample_bilinear":
        return lambda: functions.interpolate(image, scale_factor=2, mode="bilinear")
    if grad:
        return gradient(bench, functions.max_pool2d(image, 3, 2, 1), image)
    return lambda: functions.max_pool2d(image, 3, 2, 1)


SWEEPS = {
    "pool": Sweep(
        dict.fromkeys(("max_pool", "avg_pool", "max_pool_backward", "upsample_bilinear"), _bench),
        {"batch": (1, 64), "channels": (4, 512), "side": (8, 128)},
    )
}
