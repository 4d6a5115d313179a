"""Convolutions of channels-first images on Hopper, where cuDNN 9 must pad or join channels.

Its kernels for matrix units read channels last, at multiples of 16 bytes. Other channels are padded
while images are converted (``nchwToNhwcKernel``), and a separate kernel pads weights or joins their
groups (``tensorTransformGeneric``), regardless of their size. If that takes longer than computing
on the plain cores, cuDNN does not convert (``implicit_convolve_sgemm``, ``dgrad_engine``). Windows
of one element without stride are a separate product of each image, which uses other kernels if
pixels or channels are odd (``costmodels.formulas.hopper.products``).

Constants: H100 SXM 80 GB, torch 2.11, cuDNN 9.19; 125 convolutions, plain and transposed, whose
channels are no multiple of 8: 16 % off on average in f16, 18 % in TF32.
"""

from __future__ import annotations

import math

from msgspec import Struct
from msgspec.structs import replace

from costmodels.formulas.elements import channels_last
from costmodels.formulas.intervals import BORROWED, UNKNOWN
from costmodels.formulas.machine import SMALL, Machine, shape_text, traffic, work
from costmodels.formulas.products import unaligned_product
from costmodels.formulas.tiles import Product, tiled_time
from irgraph.ir.cost import Kernel
from irgraph.ir.dtypes import ITEMSIZE
from irgraph.ir.points.point_values import maximum, minimum, to_int
from irgraph.ir.tensor import Tensor

TARGET = "sm_90"
BORDER = 16
"""Required alignment of a pixel's channels, in bytes."""

NOTE = "padded and turned for matrix units, or on the plain cores (cuDNN 9.19, H100)"


class LayoutConversion(Struct, frozen=True):
    """Constants of a convolution whose channels are padded.

    Attributes:
        start: microseconds in which all its kernels start and end.
        images: share of DRAM bandwidth at which images are converted, read and written padded.
        weights: share of DRAM bandwidth of weights.
        tiles: factor on the time of tiles.
    """

    start: float
    images: float
    weights: float
    tiles: float


CONVERSIONS = {
    "f16": LayoutConversion(16.7, 0.45, 0.09, 1.12),
    "tf32": LayoutConversion(15.0, 0.63, 0.14, 1.14),
}
FITTING_START = 6.0
"""Microseconds of the start if channels fit and weights need no padding: three kernels, the
convolution and two that convert images (an assumption)."""

ODD_GROUPS = {
    "f16": LayoutConversion(25.0, 0.3, 0.09, 2.0),
    "tf32": LayoutConversion(35.0, 0.63, 0.14, 3.0),
}
"""Constants without groups or with groups whose channels fit, ``CONVERSIONS`` (a traced RegNet-Y in
f16, 24 channels each, is predicted 10 % too long), and with other groups (123 rows, four groups
each: 40 % off on average)."""


class CudaCoreLaw(Struct, frozen=True):
    """Constants of kernels on the plain cores, without a conversion.

    Attributes:
        start: microseconds in which they start and end.
        depth: microseconds for each multiply-add of a result, in sequence.
        share: share of the plain cores' peak.
    """

    start: float
    depth: float
    share: float


CUDA_CORE_LAWS = {
    "conv": CudaCoreLaw(5.0, 0.0125, 0.15),
    "gradient": CudaCoreLaw(12.0, 0.0, 0.11),
    "grouped": CudaCoreLaw(12.0, 0.0, 0.045),
}
ROWS, COLUMNS, SLICE = 128, 32, 8
"""Tile to whose multiples results are padded, and slice of depth."""


def convolution_on_hopper(
    data: Tensor, weight: Tensor, result: Tensor, name: str, machine: Machine
) -> tuple[Kernel, ...]:
    """Return the kernels of a convolution or gradient that no other module prices."""
    applies = machine.sheet.target == TARGET and not machine.software.slow_grouped_last
    if not applies or machine.paper or data.rank > 4 or channels_last(data):
        return ()
    is_pointwise = set(weight.shape[2:]) == {1} and data.shape[2:] == result.shape[2:]
    if is_pointwise and weight.shape[1] == data.shape[1]:
        kernel = _product(data, weight, result, name, machine)
    else:
        kernel = _padded(data, weight, result, name, machine)
    return () if kernel is None else (kernel,)


def _product(
    data: Tensor, weight: Tensor, result: Tensor, name: str, machine: Machine
) -> Kernel | None:
    """Return a one-element window with rows not aligned to 16 bytes as a product of each image.

    A weight's gradient sums up the products of all images in f32. Images are converted if that is
    faster.
    """
    batch, inner, *_ = (to_int(size) for size in data.shape)
    outer, pixels = to_int(weight.shape[0]), to_int(math.prod(data.shape[2:]))
    if pixels == 1:
        return None
    forms = {
        "conv": (outer, pixels, inner, "nn"),
        "conv weight gradient": (outer, inner, pixels, "tn"),
    }
    rows, columns, depth, letters = forms.get(name, (inner, pixels, outer, "nt"))
    kernel = unaligned_product(Product(batch, rows, columns, depth, data.dtype, letters), machine)
    if kernel is None:
        return None
    sums = machine.stream(2.0 * batch * rows * columns * ITEMSIZE["f32"]) + SMALL
    time = kernel.time + sums if "weight" in name else kernel.time
    padded = _padded(data, weight, result, name, machine, fitting=True)
    assert padded is not None
    return replace(kernel, family="conv", time=minimum(time, padded.time))


def _padded(
    data: Tensor,
    weight: Tensor,
    result: Tensor,
    name: str,
    machine: Machine,
    *,
    fitting: bool = False,
) -> Kernel | None:
    """Return a convolution, or one of its gradients, whose channels cuDNN pads or joins.

    Return ``None`` for those that other formulas price: with channels that fit (unless
    ``fitting``), or with one channel in a group.
    """
    dtype = machine.sheet.convolution_dtype if data.dtype == "f32" else data.dtype
    type_name = "f16" if dtype == "bf16" else dtype
    conversion = CONVERSIONS.get(type_name)
    inner = to_int(weight.shape[1])
    groups = maximum(to_int(data.shape[1]) // maximum(inner, 1), 1)
    if conversion is None or (inner == 1 and groups > 1):
        return None
    outer = to_int(weight.shape[0]) // groups
    step = BORDER // ITEMSIZE[data.dtype]
    fits = inner % step == 0 and outer % step == 0
    if groups == 1 and fits and not fitting:
        return None
    if groups > 1 and not fits:
        conversion = ODD_GROUPS[type_name]
    pixels = result.numel // maximum(to_int(result.shape[1]), 1)
    window = to_int(math.prod(weight.shape[2:]))
    padded_outer, padded_inner = -(-outer // step) * step, -(-inner // step) * step
    product = Product(
        groups, pixels, padded_outer, padded_inner * window, dtype, "nn", traffic(data, result)
    )
    images = traffic(data) * (1 + padded_inner / inner) + traffic(result) * (
        1 + padded_outer / outer
    )
    weights = traffic(weight) * (1 + padded_inner * padded_outer / (inner * outer))
    units_time = machine.stream(images, conversion.images) + machine.stream(
        weights, conversion.weights
    )
    units_time += FITTING_START if groups == 1 and fits else conversion.start
    units_time += conversion.tiles * tiled_time(product, machine)[0]
    form = "grouped" if groups > 1 else "conv" if name == "conv" else "gradient"
    time = minimum(
        units_time,
        _cuda_core_time(CUDA_CORE_LAWS[form], groups, pixels, outer, inner * window, machine),
    )
    time = maximum(time, machine.stream(traffic(data, weight, result)) + SMALL)
    text = f"{name} {shape_text(data)} * {shape_text(weight)}"
    spread = BORROWED if groups == 1 or fits else UNKNOWN
    return work("conv", text, time, spread, NOTE)


def _cuda_core_time(
    law: CudaCoreLaw, groups: int, pixels: int, outer: int, depth: int, machine: Machine
) -> float:
    """Return microseconds on the plain cores."""
    area = -(-pixels // ROWS) * ROWS * -(-outer // COLUMNS) * COLUMNS
    flop = 2.0 * groups * area * -(-depth // SLICE) * SLICE
    rate = machine.sheet.peak("f32")[0] * law.share * 1e3
    return law.start + law.depth * depth + flop / rate
