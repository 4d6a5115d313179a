"""Kernels that cuDNN adds to a convolution's product, or runs instead: transposes, Winograd."""

from __future__ import annotations

import math

from costmodels.formulas.elements import channels_last
from costmodels.formulas.intervals import BORROWED
from costmodels.formulas.machine import SMALL, Machine, shape_text, traffic, work
from irgraph.ir.cost import Kernel
from irgraph.ir.tensor import Tensor

KINDS = ("conv", "data gradient", "weight gradient")
PLAIN_CORES = {"1": (1.46, 1.5, 1.9), "3": (0.63, 0.63, 0.79), "strided": (1.5, 2.2, 1.75)}
"""Factors on the time of tiles for ``KINDS`` in f32 on plain cores: windows of one element, of
3 x 3 (Winograd), and any with a stride. Geometric means of cuDNN's convolutions in DeepBench's
training split (V100, cuDNN 7.6: 1.4, 1.5, 2.2; 0.65, 0.67, 0.75; 1.7, 2.8, 2.7) and of a traced
ResNet-50 (V100, torch: 1.5, 1.5, 1.7; 0.61, 0.6, 0.81; 1.4, 1.9, 1.3). Channels come first:
a window of one element is a product for each image, whose few pixels fill tiles badly."""

CONVERSION_NOTE = (
    "cuDNN's transposes to channels last and back, each tensor moved once at DRAM bandwidth"
)
WEIGHT_CONVERSION_FACTOR = 5.0
"""Cost of converting a byte of a weight, in bytes of an image. In a public Kineto trace (A100,
ResNet-50, batch 32, TF32) images are converted at 1.2 to 1.34 TB/s, weights of 512 x 512 x 3 x 3
at 0.26."""
CONVERSION_SHARE = 0.5
"""Share of forward convolutions whose result is converted back, and of weight gradients: in that
trace 36 of 72, and 51 of 93. Other kernels read channels last and write the requested layout."""
PLAIN_CONVERSION_SHARE = 0.42
"""Share of weight gradients of windows of one element whose image and gradient are converted: 11 of
33 in that trace, 17 of 33 of the same model in f16 (public torch profile, A100, batch 128). The
others are products (``reduce_wgrad_nchw_helper`` sums up their parts)."""

PLAIN_CHANNELS = 64
"""Minimum number of input and output channels for which older libraries convert the images of plain
products, too: an RTX 3090 runs mobile networks, which have fewer, in inference as fast as without
conversion (within 2 % for timm's mobilenetv3_large_100), unlike ResNets."""


def tile_factor(data: Tensor, weight: Tensor, result: Tensor, name: str, machine: Machine) -> float:
    """Return the factor on the time of tiles for a dense convolution, always 1 except in f32.

    ``name`` distinguishes a convolution from the gradients of its data and its weight.
    """
    sheet = machine.sheet
    on_units = sheet.is_host or sheet.peak(sheet.convolution_dtype)[1]
    if machine.paper or on_units or data.dtype != "f32" or data.rank != 4 or channels_last(data):
        return 1.0
    window = {str(int(side)) for side in weight.shape[2:]}
    is_strided = math.prod(data.shape[2:]) > 2 * math.prod(result.shape[2:])
    kind = "strided" if is_strided else window.pop() if len(window) == 1 else ""
    gradient = "data gradient" if name.startswith("transposed") else name
    kind_index = next((n for n, text in enumerate(KINDS) if n and text in gradient), 0)
    return PLAIN_CORES.get(kind, (1.0, 1.0, 1.0))[kind_index]


def layout_conversions(
    data: Tensor, weight: Tensor, result: Tensor, name: str, machine: Machine
) -> tuple[Kernel, ...]:
    """Return the transposes around a convolution of images whose channels are not last.

    Kernels on matrix units read channels last. A window of one element without stride is a plain
    product, except for some weight gradients, and with older libraries; fewer than four channels,
    and depthwise convolutions, have kernels of other kinds.
    """
    dtype = machine.sheet.convolution_dtype if data.dtype == "f32" else data.dtype
    is_plain = set(weight.shape[2:]) == {1} and data.shape[2:] == result.shape[2:]
    if data.rank != 4 or int(weight.shape[1]) < 4 or channels_last(data):
        return ()
    converted_share = _plain_converted_share(weight, name, machine) if is_plain else 1.0
    if converted_share == 0:
        return ()
    if machine.paper or not machine.sheet.peak(dtype)[1]:
        return ()
    images = {"conv": (data, CONVERSION_SHARE, result), "conv weight gradient": (data, 1.0, result)}
    first, share, second = images.get(name, (result, 1.0, data))
    weights = WEIGHT_CONVERSION_FACTOR * (
        CONVERSION_SHARE if name == "conv weight gradient" else 1.0
    )
    nbytes = traffic(first) + share * traffic(second) + weights * traffic(weight)
    nbytes *= converted_share
    text = f"turn {shape_text(data)} to channels last"
    return (work("conv", text, machine.stream(2.0 * nbytes) + SMALL, BORROWED, CONVERSION_NOTE),)


def _plain_converted_share(weight: Tensor, name: str, machine: Machine) -> float:
    """Return the share of convolutions with one-element windows whose images are converted."""
    min_share = PLAIN_CONVERSION_SHARE if name == "conv weight gradient" else 0.0
    has_few_channels = min(int(size) for size in weight.shape[:2]) < PLAIN_CHANNELS
    return min_share if has_few_channels else max(machine.software.plain_converted_share, min_share)
