"""Convolutions in one to three dimensions as implicit matrix products."""

from __future__ import annotations

import math

from costmodels.elements import ROOFLINE, streaming
from costmodels.machine import SMALL, Machine, Rule, shape_text, traffic, work
from costmodels.tiles import Product, tiled_time
from irgraph.ir.cost import Kernel
from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor

SOURCE = (
    "implicit matrix product on the tiles of products; depthwise by flop and bytes; transposed as "
    "the data gradient; trained for 3 x 3 in two dimensions, f32"
)

FORMULA = "implicit matrix product (cuDNN), priced as tiles; Winograd kernels can be faster"
DEPTHWISE = "max(flop / quarter of the plain cores' peak, bytes / DRAM bandwidth), each moved once"
DEPTHWISE_SHARE = 0.25
"""Share of the peak that one channel a group reaches: two loads for each multiply and add, and no
reuse of a factor over channels (torch, DepthwiseConv2d.cu); nothing was measured."""

ERROR = 0.5


def _implicit(data: Tensor, weight: Tensor, result: Tensor, name: str, machine: Machine) -> Kernel:
    """Return pixels x output channels x (input channels x window), of each group."""
    channels = int(weight.shape[0])
    depth = int(math.prod(weight.shape[1:]))
    groups = max(int(data.shape[1]) // max(int(weight.shape[1]), 1), 1)
    pixels = result.numel // max(channels, 1)
    memory = machine.stream(traffic(data) + traffic(weight) + traffic(result))
    name = f"{name} {shape_text(data)} * {shape_text(weight)}"
    if groups > 1 and weight.shape[1] == 1:
        peak = machine.sheet.peak("f32")[0] * DEPTHWISE_SHARE
        time = max(2.0 * result.numel * depth / peak / 1e3, memory) + SMALL
        return work("conv", name, time, ERROR, DEPTHWISE, outside=True)
    dtype = machine.sheet.convolution_dtype if data.dtype == "f32" else data.dtype
    product = Product(groups, pixels, max(channels // groups, 1), depth, dtype, "nn")
    time = max(tiled_time(product, machine)[0], memory) + SMALL
    return work("conv", name, time, ERROR, FORMULA, outside=groups > 1 or weight.rank != 4)


def _forward(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    tensors = [t for t in op.operands if isinstance(t, Tensor)]
    if len(tensors) < 2 or tensors[1].rank < 3 or not op.outputs or _composite(op):
        return None
    data, weight, result = *tensors[:2], op.outputs[0]
    if _transposed(op):
        kernel = _implicit(result, weight, data, "transposed conv", machine)
    else:
        told = _learned(op, data, weight, machine)
        kernel = told or _implicit(data, weight, result, "conv", machine)
    if len(tensors) < 3:
        return (kernel,)
    bias = streaming(machine, 2 * traffic(result))
    return kernel, work("elementwise", "add channel bias", bias, 0.2, ROOFLINE)


def _transposed(op: Op) -> bool:
    """Tell a transposed convolution: the data gradient of the one from its result to its data."""
    return op.attributes.get("transposed") is True or "transpose" in op.base


def _learned(op: Op, data: Tensor, weight: Tensor, machine: Machine) -> Kernel | None:
    """Ask the trained model: dense 3 x 3 windows that keep the size of square images."""
    result = op.outputs[0]
    square = data.rank == 4 and data.shape[2] == data.shape[3] > 1
    same = data.shape[2:] == result.shape[2:] and tuple(weight.shape[2:]) == (3, 3)
    dense = weight.shape[1] == data.shape[1]
    if not (square and same and dense) or _spread(op):
        return None
    name = f"conv {shape_text(data)} * {shape_text(weight)}"
    sizes = {"batch": data.shape[0], "in_channels": data.shape[1], "input_size": data.shape[2]}
    sizes |= {"out_channels": weight.shape[0], "kernel_size": 3, "stride": 1, "padding": 1}
    return machine.ask("conv2d", name, dtype=data.dtype, **{k: int(v) for k, v in sizes.items()})


def _spread(op: Op) -> bool:
    """Tell whether the window has gaps."""
    dilation = op.attributes.get("dilation", 1)
    return any(step != 1 for step in (dilation if isinstance(dilation, tuple) else (dilation,)))


def _composite(op: Op) -> bool:
    """Tell whether the calls inside are recorded down to a convolution kernel's op."""
    return any(child.name.startswith("aten.") and child.inputs for child in op.body)


def _backward(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price a product for each gradient that was asked for: data, weight, and the bias sum.

    A recording that does not list results had those of data and weight.
    """
    four = [t for t in op.operands if isinstance(t, Tensor) and t.rank >= 3]
    if len(four) < 3:
        return None
    gradient, data, weight = four[:3]
    if op.base in DATA_FIRST:
        data, gradient = gradient, data
    ends = (gradient, weight, data) if _transposed(op) else (data, weight, gradient)
    kernels = []
    for made in op.outputs or (data, weight):
        if made.shape == data.shape:
            kernels.append(_implicit(*ends, "conv data gradient", machine))
        elif made.shape == weight.shape:
            kernels.append(_implicit(*ends, "conv weight gradient", machine))
        else:
            time = streaming(machine, traffic(gradient))
            kernels.append(work("reduce", "channel bias sum", time, 0.3, ROOFLINE))
    return tuple(kernels)


DATA_FIRST = ("cudnn_convolution_backward", "cudnn_convolution_transpose_backward")
"""Gradients of older releases, which take the data before its gradient."""

RULES: dict[str, Rule] = {
    **dict.fromkeys(
        ("aten.convolution", "aten._convolution", "aten.cudnn_convolution",
         "aten.convolution_overrideable", "aten.cudnn_convolution_transpose",
         "aten._conv_depthwise2d", "aten.conv_depthwise3d"),
        _forward,
    ),
    **dict.fromkeys(
        ("aten.convolution_backward", *(f"aten.{name}" for name in DATA_FIRST)), _backward
    ),
}  # fmt: skip
