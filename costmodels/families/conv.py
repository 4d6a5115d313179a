"""Convolutions in one to three dimensions as implicit matrix products."""

from __future__ import annotations

import math

import numpy as np
from msgspec.structs import replace

from costmodels.benchmarks.bench import Array, Bench, Call, gradient
from costmodels.benchmarks.sweep import Sweep
from costmodels.formulas.cudnn import layout_conversions, tile_factor
from costmodels.formulas.depthwise import depthwise_time
from costmodels.formulas.elements import ROOFLINE, channels_last, streaming
from costmodels.formulas.grouped import (
    BLOCK,
    MAYBE_SLOW,
    SLOW,
    has_fast_kernel,
    may_be_slow,
    slow_kernel_spread,
    slow_time,
)
from costmodels.formulas.hopper.cudnn import convolution_on_hopper
from costmodels.formulas.hopper.depthwise import depthwise_on_hopper
from costmodels.formulas.hopper.grouped import grouped_on_hopper
from costmodels.formulas.hopper.narrow import narrow_on_hopper
from costmodels.formulas.intervals import BORROWED, FEW, NEAR, UNKNOWN
from costmodels.formulas.machine import SMALL, Machine, Rule, members, shape_text, traffic, work
from costmodels.formulas.tiles import Product, tiled_time
from costmodels.learnable.conv_algorithms import (
    algorithm_times,
    convolution,
    fastest_algorithm_time,
)
from costmodels.learnable.family import LearnedFamily, Query
from costmodels.learnable.hardware import Floats, Hardware
from costmodels.learnable.inputs import Inputs, Sizes, log2, multiples, roofline, waves
from costmodels.learnable.launch import growing_launches
from costmodels.learnable.settings import Architecture, Settings
from irgraph.ir.cost import Kernel
from irgraph.ir.op import Op
from irgraph.ir.points.point_values import maximum, to_float, to_int
from irgraph.ir.tensor import Tensor

SOURCE = (
    "implicit matrix product on the tiles of products, in f32 times what cuDNN's kernels take "
    "beside them (DeepBench, traced V100 kernels); depthwise by instructions of torch's kernels, "
    "cuDNN's by flop and bytes, turned to channels last, on Hopper as swept (H100); on matrix "
    "units cuDNN's transposes to channels last and back, on Hopper with what pads channels and "
    "joins groups (H100); transposed as the data gradient; trained for 3 x 3 in two dimensions, f32"
)

FORMULA = "implicit matrix product (cuDNN), priced as tiles, in f32 as measured beside them"


def _implicit(
    data: Tensor, weight: Tensor, result: Tensor, name: str, machine: Machine, *, dilated: bool
) -> Kernel:
    """Return the product pixels x output channels x (input channels x window) of each group."""
    channels = to_int(weight.shape[0])
    depth = to_int(math.prod(weight.shape[1:]))
    groups = max(to_int(data.shape[1]) // max(int(weight.shape[1]), 1), 1)
    pixels = result.numel // max(channels, 1)
    stored = traffic(data) + traffic(weight) + traffic(result)
    memory = machine.stream(stored)
    name = f"{name} {shape_text(data)} * {shape_text(weight)}"
    if groups > 1 and weight.shape[1] == 1:
        time, formula = depthwise_time(data, weight, result, name, machine, dilated=dilated)
        return work("conv", name, time + SMALL, BORROWED, formula, outside=True)
    dtype = machine.sheet.convolution_dtype if data.dtype == "f32" else data.dtype
    if groups > 1 and (slow := slow_time(data, weight, result, name, machine)) is not None:
        spread = slow_kernel_spread(machine)
        return work("conv", name, maximum(slow, memory) + SMALL, spread, SLOW, outside=True)
    joined_groups = (
        BLOCK // int(weight.shape[1])
        if groups > 1 and has_fast_kernel(data, weight, machine)
        else 1
    )
    columns = max(channels // groups, 1) * joined_groups
    product = Product(
        -(-groups // joined_groups), pixels, columns, depth * joined_groups, dtype, "nn", stored
    )
    tiles = tiled_time(product, machine)[0]
    if groups == 1 and not dilated:
        tiles *= tile_factor(data, weight, result, name, machine)
    time = maximum(tiles, memory) + SMALL
    if groups > 1 and may_be_slow(data, weight, name, machine):
        return work("conv", name, time, UNKNOWN, MAYBE_SLOW, outside=True)
    outside = groups > 1 or not _is_measured(data, weight)
    return work("conv", name, time, BORROWED, FORMULA, outside=outside)


MIN_UNIT_CHANNELS = 3
"""Minimum number of input channels of measured convolutions in 16 bits, the colours of an image."""


def _is_measured(data: Tensor, weight: Tensor) -> bool:
    """Return whether dense convolutions of a kind were measured, on any card.

    Those were two-dimensional, in f32 with channels first (DeepBench, traces of V100), in 16 bits
    in both layouts (a ResNet-50 on A100).
    """
    if weight.rank != 4:
        return False
    if data.dtype == "f32":
        return not channels_last(data)
    return int(weight.shape[1]) >= MIN_UNIT_CHANNELS


def _forward(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    tensors = members(op.operands)
    if len(tensors) < 2 or tensors[1].rank < 3 or not op.outputs or _composite(op):
        return None
    data, weight, result = *tensors[:2], op.outputs[0]
    if _transposed(op):
        ends, name = (result, weight, data), "transposed conv"
    else:
        ends, name = (data, weight, result), "conv"
    learned = None if _transposed(op) else _learned(op, data, weight, machine)
    kernels = _kernels(*ends, name, machine, dilated=_dilated(op), learned=learned)
    if len(tensors) < 3:
        return kernels
    bias = streaming(machine, 2 * traffic(result))
    return *kernels, work("elementwise", "add channel bias", bias, NEAR, ROOFLINE)


def _kernels(
    data: Tensor,
    weight: Tensor,
    result: Tensor,
    name: str,
    machine: Machine,
    *,
    dilated: bool,
    learned: Kernel | None = None,
) -> tuple[Kernel, ...]:
    """Return the kernels of a convolution, or of one of its gradients, with their transposes."""
    ends = (data, weight, result)
    if not learned and not dilated:
        for price in (
            grouped_on_hopper,
            narrow_on_hopper,
            convolution_on_hopper,
            depthwise_on_hopper,
        ):
            if kernels := price(*ends, name, machine):
                return kernels
    first = learned or _implicit(*ends, name, machine, dilated=dilated)
    return first, *layout_conversions(*ends, name, machine)


def _transposed(op: Op) -> bool:
    """Return whether a convolution is transposed: it runs as another one's data gradient."""
    return op.attributes.get("transposed") is True or "transpose" in op.base


def _learned(op: Op, data: Tensor, weight: Tensor, machine: Machine) -> Kernel | None:
    """Return the trained model's kernel: dense 3 x 3 windows, square images of constant size."""
    result = op.outputs[0]
    square = data.rank == 4 and data.shape[2] == data.shape[3] > 1
    same = data.shape[2:] == result.shape[2:] and tuple(weight.shape[2:]) == (3, 3)
    dense = weight.shape[1] == data.shape[1]
    if not (square and same and dense) or _dilated(op):
        return None
    name = f"conv {shape_text(data)} * {shape_text(weight)}"
    sizes = {"batch": data.shape[0], "in_channels": data.shape[1], "input_size": data.shape[2]}
    sizes |= {"out_channels": weight.shape[0], "kernel_size": 3, "stride": 1, "padding": 1}
    kernel = machine.learned_kernel(
        "conv2d", name, dtype=data.dtype, **{k: to_int(v) for k, v in sizes.items()}
    )
    if kernel is None or _is_measured(data, weight):
        return kernel
    return replace(kernel, spread=kernel.spread + BORROWED * kernel.time, outside=True)


def _dilated(op: Op) -> bool:
    """Return whether the window is dilated."""
    dilation = op.attributes.get("dilation", 1)
    return any(step != 1 for step in (dilation if isinstance(dilation, tuple) else (dilation,)))


def _composite(op: Op) -> bool:
    """Return whether an op's inner calls include the op of a convolution kernel."""
    return any(child.name.startswith("aten.") and child.inputs for child in op.body)


def _backward(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price a product for each requested gradient: data, weight, and the bias sum.

    A recording without results is assumed to compute the gradients of data and weight.
    """
    images = [t for t in op.operands if isinstance(t, Tensor) and t.rank >= 3]
    if len(images) < 3:
        return None
    gradient, data, weight = images[:3]
    if op.base in DATA_FIRST:
        data, gradient = gradient, data
    ends = (gradient, weight, data) if _transposed(op) else (data, weight, gradient)
    kernels: list[Kernel] = []
    for output in op.outputs or (data, weight):
        if output.shape == data.shape:
            name = "conv data gradient"
        elif output.shape == weight.shape:
            name = "conv weight gradient"
        else:
            name = ""
        if name:
            kernels += _kernels(*ends, name, machine, dilated=_dilated(op))
        else:
            time = streaming(machine, traffic(gradient))
            kernels.append(work("reduce", "channel bias sum", time, FEW, ROOFLINE))
    return tuple(kernels)


DATA_FIRST = ("cudnn_convolution_backward", "cudnn_convolution_transpose_backward")
"""Gradients of older releases, whose first operand is the data and second its gradient."""

RULES: dict[str, Rule] = {
    **dict.fromkeys(
        (
            "aten.convolution",
            "aten._convolution",
            "aten.cudnn_convolution",
            "aten.convolution_overrideable",
            "aten.cudnn_convolution_transpose",
            "aten._conv_depthwise2d",
            "aten.conv_depthwise3d",
        ),
        _forward,
    ),
    **dict.fromkeys(
        ("aten.convolution_backward", *(f"aten.{name}" for name in DATA_FIRST)), _backward
    ),
}

GROUPS = 4
"""Number of groups of the measured grouped convolution, whose channels are a multiple of it."""


def _bench(bench: Bench) -> Call:
    torch, window = bench.torch, bench["window"]
    op, *kinds = bench.case.op.split("_")
    axes = 1 if op == "conv1d" else 2
    grad = "backward" in kinds
    groups = GROUPS if "grouped" in kinds else bench["channels"] if "depthwise" in kinds else 1
    channels = -(-bench["channels"] // groups) * groups
    out = channels if "depthwise" in kinds else -(-bench["out"] // groups) * groups

    def values(*shape: int) -> Array:
        tensor = bench.values(*shape)
        if "last" in kinds:
            tensor = tensor.contiguous(memory_format=torch.channels_last)
        return tensor.requires_grad_() if grad else tensor

    image = values(bench["batch"], channels, *(bench["side"],) * axes)
    wide = (channels, out) if "transposed" in kinds else (out, channels // groups)
    weight = values(*wide, *(window,) * axes)
    if "transposed" in kinds:
        return lambda: torch.conv_transpose2d(image, weight, None, 1, window // 2)
    function = torch.conv1d if axes == 1 else torch.conv2d

    def call() -> object:
        return function(image, weight, None, 1, window // 2, 1, groups)

    return gradient(bench, call(), image, weight) if grad else call


SWEEPS = {
    "conv2d": Sweep(
        dict.fromkeys(
            ("conv2d", "conv2d_depthwise", "conv2d_grouped", "conv2d_transposed",
             "conv2d_backward", "conv2d_depthwise_backward", "conv2d_grouped_backward",
             "conv2d_last", "conv2d_depthwise_last", "conv2d_grouped_last", "conv2d_backward_last",
             "conv2d_depthwise_backward_last", "conv2d_grouped_backward_last"),
            _bench,
        ),
        {"batch": (1, 64), "channels": (4, 1024), "out": (4, 1024), "side": (4, 128),
         "window": (1, 5)},
        ((2, 16, 32, 28, 3), (32, 64, 64, 56, 3)),
        2.0**33,
    ),
    "conv1d": Sweep(
        dict.fromkeys(("conv1d", "conv1d_depthwise"), _bench),
        {"batch": (1, 64), "channels": (4, 512), "out": (4, 512), "side": (16, 2**12),
         "window": (1, 9)},
        max_product=2.0**36,
    ),
}  # fmt: skip

SIZES = (
    "batch", "in_channels", "out_channels", "kernel_size", "input_size", "stride", "padding"
)  # fmt: skip


def _inputs(sizes: Sizes, device: Hardware) -> Inputs:
    """Return inputs of dense float32 convolutions over square images."""
    shape = convolution(sizes)
    inner, outer, side, out = shape.inner, shape.outer, shape.side, shape.out
    flops = 2 * shape.pixels * outer * shape.depth
    base, common = roofline(flops, shape.outside + 4 * shape.depth * outer, device)
    columns = [log2(inner), log2(side), log2(out), log2(shape.depth), *common]
    columns += _choices(algorithm_times(shape, device), base)
    for step in (2, 4, 6, 8, 16):
        columns += [log2(np.ceil(out / step) * step / out), *multiples(out, step)]
    for channels in (inner, outer):
        columns += [*multiples(channels, 2, 4), log2(np.ceil(channels / 8) * 8 / channels)]
    columns += [log2(np.ceil(outer / 32) * 32 / outer)]
    columns += [*waves(shape.pixels, outer, np.ones_like(outer), device), device.dual]
    personal = [log2(shape.batch), log2(outer), log2(shape.pixels)]
    return Inputs(base, columns, personal, log2(flops), device.indicators)


def _choices(times: list[Floats], base: Floats) -> list[Floats]:
    """Return ratios of algorithms to the base, of the second to the best, and of pairs of them."""
    ordered = np.sort(times, 0)
    ratios = [np.clip(log2(time / base), -6, 6) for time in (*times, ordered[0])]
    ratios += [np.minimum(log2(ordered[1] / ordered[0]), 2)]
    implicit, fused, *_, separate = times
    return [*ratios, log2(fused / separate), log2(implicit / separate), log2(implicit / fused)]


LEARNED = LearnedFamily(
    "conv2d",
    ("conv",),
    SIZES,
    _inputs,
    lambda arguments: Query("conv", {name: to_float(arguments[name]) for name in SIZES}),
    Settings(steps=2500, batch=256, decay=0.3, architecture=Architecture(64, 3, 8)),
    growing_launches(lambda data, device: fastest_algorithm_time(data.sizes, device), "linear"),
    similar="gemm",
)
