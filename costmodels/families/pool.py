"""Pooling, padding and resampling of images: windows overlap in the cache, memory moves once."""

from __future__ import annotations

from costmodels.benchmarks.bench import Bench, Call, gradient
from costmodels.benchmarks.sweep import Sweep
from costmodels.formulas.elements import ROOFLINE, streaming
from costmodels.formulas.intervals import UNTRACED
from costmodels.formulas.machine import Machine, Rule, first_tensor, shape_text, traffic, work
from irgraph.ir.cost import Kernel
from irgraph.ir.op import Op

SOURCE = (
    "roofline (paper, III-B-1b): what is read and what is written moves once; the gradient of a "
    "maximum by an element rate (traced V100 and RTX 2080 Ti)"
)

MAX_GRADIENT = 0.22
"""Elements per cycle and multiprocessor of the gradient of a maximum, which looks through the
windows that each element was in (traced ResNets: 0.2 on RTX 2080 Ti, 0.27 on V100)."""

SHAPE_ONLY = ("max_pool", "avg_pool")
"""Gradients that use only the shape of the pooled tensor (torch, DilatedMaxPool2d.cu)."""


def _pool(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    target = first_tensor(op)
    if target is None:
        return None
    read = list(op.inputs)
    if op.base.endswith("backward") and any(name in op.base for name in SHAPE_ONLY):
        del read[1:2]
    moved = traffic(*read, *op.outputs)
    time = streaming(machine, moved)
    if op.base.startswith("max_pool") and op.base.endswith("backward"):
        largest = max(t.numel for t in (*op.inputs, *op.outputs))
        time = max(time, machine.cycles(largest / (MAX_GRADIENT * machine.sheet.sms)))
    return (work("pool", f"{op.base} {shape_text(target)}", time, UNTRACED, ROOFLINE),)


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
    *FORWARD, *(f"{name}_backward" for name in FORWARD), "constant_pad_nd", "max_unpool2d",
    "max_unpool3d", "im2col", "col2im",
)  # fmt: skip

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
