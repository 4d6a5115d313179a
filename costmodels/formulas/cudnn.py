"""What cuDNN adds to the product that a convolution is: transposes, and kernels of other kinds."""

from __future__ import annotations

import math

from costmodels.formulas.elements import channels_last
from costmodels.formulas.intervals import BORROWED
from costmodels.formulas.machine import SMALL, Machine, shape_text, traffic, work
from irgraph.ir.cost import Kernel
from irgraph.ir.tensor import Tensor

KINDS = ("conv", "data gradient", "weight gradient")
PLAIN_CORES = {"1": (1.46, 1.5, 1.9), "3": (0.63, 0.63, 0.79), "strided": (1.5, 2.2, 1.75)}
"""Of ``KINDS`` in f32 on plain cores, how many times what tiles cost: windows of one element, of
3 x 3 (Winograd), and any with a stride. Geometric means of cuDNN's convolutions in DeepBench's
training split (V100, cuDNN 7.6: 1.4, 1.5, 2.2; 0.65, 0.67, 0.75; 1.7, 2.8, 2.7) and of a traced
ResNet-50 (V100, torch: 1.5, 1.5, 1.7; 0.61, 0.6, 0.81; 1.4, 1.9, 1.3). Channels come first, so that
a window of one element is a product for each image, whose few pixels fill tiles badly."""

TURNED = "cuDNN's transposes to channels last and back, each tensor moved once at DRAM bandwidth"
WEIGHT_TURN = 5.0
"""What turning a byte of a weight costs, in bytes of an image. In a public Kineto trace (A100,
ResNet-50, batch 32, TF32) images are turned at 1.2 to 1.34 TB/s, weights of 512 x 512 x 3 x 3 at
0.26."""
OFTEN = 0.5
"""Share of forward convolutions whose result is turned back, and of weight gradients: in that trace
36 of 72, and 51 of 93. Other kernels write what they read in channels last as it is wanted."""
PLAIN_OFTEN = 0.42
"""Share of weight gradients of windows of one element whose image and gradient are turned: 11 of 33
in that trace, 17 of 33 of the same model in f16 (public torch profile, A100, batch 128). The others
are products (``reduce_wgrad_nchw_helper`` sums up their parts)."""

PLAIN_CHANNELS = 64
"""Channels, of what is read and of what is written, from which older libraries turn the images of
plain products, too: an RTX 3090 runs mobile networks, which have fewer, in inference as fast as if
they were not turned (within 2 % for timm's mobilenetv3_large_100), ResNets not."""


def times_tiles(data: Tensor, weight: Tensor, result: Tensor, name: str, machine: Machine) -> float:
    """Return how many times what tiles cost a dense convolution takes: others than 1 in f32 alone.

    ``name`` says whether it is a gradient, and of what.
    """
    sheet = machine.sheet
    units = sheet.is_host or sheet.peak(sheet.convolution_dtype)[1]
    if machine.paper or units or data.dtype != "f32" or data.rank != 4 or channels_last(data):
        return 1.0
    window = {str(int(side)) for side in weight.shape[2:]}
    strided = math.prod(data.shape[2:]) > 2 * math.prod(result.shape[2:])
    kind = "strided" if strided else window.pop() if len(window) == 1 else ""
    gradient = "data gradient" if name.startswith("transposed") else name
    place = next((n for n, text in enumerate(KINDS) if n and text in gradient), 0)
    return PLAIN_CORES.get(kind, (1.0, 1.0, 1.0))[place]


def turns(
    data: Tensor, weight: Tensor, result: Tensor, name: str, machine: Machine
) -> tuple[Kernel, ...]:
    """Return the transposes around a convolution of images whose channels are not last.

    Kernels on matrix units read channels last. A window of one element without stride is a plain
    product, but for some weight gradients, and with older libraries; fewer than four channels, and
    depthwise convolutions, have kernels of other kinds.
    """
    dtype = machine.sheet.convolution_dtype if data.dtype == "f32" else data.dtype
    plain = set(weight.shape[2:]) == {1} and data.shape[2:] == result.shape[2:]
    if data.rank != 4 or int(weight.shape[1]) < 4 or channels_last(data):
        return ()
    turned = _share(weight, name, machine) if plain else 1.0
    if turned == 0:
        return ()
    if machine.paper or not machine.sheet.peak(dtype)[1]:
        return ()
    images = {"conv": (data, OFTEN, result), "conv weight gradient": (data, 1.0, result)}
    first, share, second = images.get(name, (result, 1.0, data))
    weights = WEIGHT_TURN * (OFTEN if name == "conv weight gradient" else 1.0)
    moved = traffic(first) + share * traffic(second) + weights * traffic(weight)
    moved *= turned
    text = f"turn {shape_text(data)} to channels last"
    return (work("conv", text, machine.stream(2.0 * moved) + SMALL, BORROWED, TURNED),)


def _share(weight: Tensor, name: str, machine: Machine) -> float:
    """Return the share of convolutions with windows of one element whose images are turned."""
    least = PLAIN_OFTEN if name == "conv weight gradient" else 0.0
    few = min(int(size) for size in weight.shape[:2]) < PLAIN_CHANNELS
    return least if few else max(machine.software.plain_turned, least)
