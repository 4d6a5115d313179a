"""Convolutions as implicit matrix products, and pooling as moved bytes."""

from __future__ import annotations

import math

from costmodels.elements import ROOFLINE, streaming
from costmodels.machine import SMALL, Machine, Rule, first_tensor, shape_text, traffic, work
from costmodels.tiles import Product, tiled_time
from irgraph.ir.cost import Kernel
from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor

FORMULA = "implicit matrix product (cuDNN), priced as tiles; Winograd kernels can be faster"
ERROR = 0.5


def _implicit(data: Tensor, weight: Tensor, result: Tensor, name: str, machine: Machine) -> Kernel:
    """Return pixels x output channels x (input channels x window), of each group."""
    channels = int(weight.shape[0])
    depth = int(math.prod(weight.shape[1:]))
    groups = max(int(data.shape[1]) // max(int(weight.shape[1]), 1), 1)
    pixels = result.numel // max(channels, 1)
    dtype = machine.sheet.convolution_dtype if data.dtype == "f32" else data.dtype
    product = Product(groups, pixels, max(channels // groups, 1), depth, dtype, "nn")
    memory = machine.stream(traffic(data) + traffic(weight) + traffic(result))
    time = max(tiled_time(product, machine)[0], memory) + SMALL
    return work("conv", f"{name} {shape_text(data)} * {shape_text(weight)}", time, ERROR, FORMULA)


def _forward(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    tensors = [t for t in op.operands if isinstance(t, Tensor)]
    if len(tensors) < 2 or tensors[1].rank < 3 or not op.outputs or _composite(op):
        return None
    kernel = _implicit(tensors[0], tensors[1], op.outputs[0], "conv", machine)
    if len(tensors) < 3:
        return (kernel,)
    bias = streaming(machine, 2 * traffic(op.outputs[0]))
    return kernel, work("elementwise", "add channel bias", bias, 0.2, ROOFLINE)


def _composite(op: Op) -> bool:
    """Tell whether the calls inside are recorded down to a convolution kernel's op."""
    return any(child.name.startswith("aten.") and child.inputs for child in op.body)


def _backward(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price a product for each gradient that was asked for: data, weight, and the bias sum."""
    tensors = [t for t in op.operands if isinstance(t, Tensor)]
    four = [t for t in tensors if t.rank >= 3]
    if len(four) < 3:
        return None
    gradient, data, weight = four[:3]
    kernels = []
    for made in op.outputs:
        if made.shape == data.shape:
            kernels.append(_implicit(data, weight, gradient, "conv data gradient", machine))
        elif made.shape == weight.shape:
            kernels.append(_implicit(data, weight, gradient, "conv weight gradient", machine))
        else:
            time = streaming(machine, traffic(gradient))
            kernels.append(work("reduce", "channel bias sum", time, 0.3, ROOFLINE))
    return tuple(kernels)


def _pool(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    target = first_tensor(op)
    if target is None:
        return None
    moved = sum(map(traffic, (*op.inputs, *op.outputs)))
    name = f"{op.base} {shape_text(target)}"
    return (work("conv", name, streaming(machine, moved), 0.4, ROOFLINE),)


POOLS = (
    "max_pool2d_with_indices", "max_pool2d_with_indices_backward", "avg_pool2d",
    "avg_pool2d_backward", "_adaptive_avg_pool2d", "_adaptive_avg_pool2d_backward",
    "upsample_nearest2d", "upsample_nearest2d_backward", "upsample_bilinear2d",
    "upsample_bilinear2d_backward", "constant_pad_nd",
)  # fmt: skip

RULES: dict[str, Rule] = {
    **dict.fromkeys(
        ("aten.convolution", "aten._convolution", "aten.cudnn_convolution",
         "aten.convolution_overrideable"),
        _forward,
    ),
    **dict.fromkeys(("aten.convolution_backward", "aten.cudnn_convolution_backward"), _backward),
    **{f"aten.{name}": _pool for name in POOLS},
}  # fmt: skip
