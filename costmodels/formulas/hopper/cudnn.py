"""Convolutions of channels-first images on Hopper, where cuDNN 9 must pad or join channels.

Its kernels for matrix units read channels last, at multiples of 16 bytes. Others are padded while
images are turned (``nchwToNhwcKernel``), and weights are padded or their groups joined by a kernel
of its own (``tensorTransformGeneric``), however small they are. Where that takes longer than
computing on the plain cores does, cuDNN leaves all where it is (``implicit_convolve_sgemm``,
``dgrad_engine``). Windows of one element without stride are products of each image's own, which
take other kernels where pixels or channels are odd (``costmodels.formulas.hopper.products``).

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
from costmodels.formulas.products import odd_product
from costmodels.formulas.tiles import Product, tiled_time
from irgraph.ir.cost import Kernel
from irgraph.ir.dtypes import ITEMSIZE
from irgraph.ir.points.point_values import maximum, minimum, to_int
from irgraph.ir.tensor import Tensor

TARGET = "sm_90"
BORDER = 16
"""Bytes at whose multiples channels of a pixel begin."""

NOTE = "padded and turned for matrix units, or on the plain cores (cuDNN 9.19, H100)"


class LayoutConversion(Struct, frozen=True):
    """What goes with a convolution whose channels are padded.

    Attributes:
        start: microseconds in which all its kernels start and end.
        images: share of DRAM bandwidth at which images are turned, read and written padded.
        weights: the same of weights.
        tiles: how many times what tiles cost the convolution takes.
    """

    start: float
    images: float
    weights: float
    tiles: float


TURNINGS = {
    "f16": LayoutConversion(16.7, 0.45, 0.09, 1.12),
    "tf32": LayoutConversion(15.0, 0.63, 0.14, 1.14),
}
FITTING = 6.0
"""Microseconds of the start where channels fit, so that weights need not be padded: three kernels,
the convolution and two that turn images (an assumption)."""

ODD_GROUPS = {
    "f16": LayoutConversion(25.0, 0.3, 0.09, 2.0),
    "tf32": LayoutConversion(35.0, 0.63, 0.14, 3.0),
}
"""Without groups, or with groups whose channels fit (a traced RegNet-Y in f16, 24 channels each,
comes out 10 % too long), and with others (123 rows, four groups each: 40 % off on average)."""


class CudaCoreLaw(Struct, frozen=True):
    """Kernels on the plain cores that turn nothing.

    Attributes:
        start: microseconds in which they start and end.
        depth: microseconds for each multiply-add of a result, which follow each other.
        share: of the plain cores' peak.
    """

    start: float
    depth: float
    share: float


PLAINS = {
    "conv": CudaCoreLaw(5.0, 0.0125, 0.15),
    "gradient": CudaCoreLaw(12.0, 0.0, 0.11),
    "grouped": CudaCoreLaw(12.0, 0.0, 0.045),
}
ROWS, COLUMNS, SLICE = 128, 32, 8
"""Tile to whose multiples their results are padded, and slice of depth."""


def on_hopper(
    data: Tensor, weight: Tensor, result: Tensor, name: str, machine: Machine
) -> tuple[Kernel, ...]:
    """Return the kernels of a convolution, or of one of its gradients, that others do not price."""
    known = machine.sheet.target == TARGET and not machine.software.slow_grouped_last
    if not known or machine.paper or data.rank > 4 or channels_last(data):
        return ()
    alone = set(weight.shape[2:]) == {1} and data.shape[2:] == result.shape[2:]
    if alone and weight.shape[1] == data.shape[1]:
        found = _product(data, weight, result, name, machine)
    else:
        found = _padded(data, weight, result, name, machine)
    return () if found is None else (found,)


def _product(
    data: Tensor, weight: Tensor, result: Tensor, name: str, machine: Machine
) -> Kernel | None:
    """Return a window of one element whose rows begin off 16 bytes as products, image by image.

    A weight's gradient sums up those of all images in f32. Images are turned where that is faster.
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
    made = odd_product(Product(batch, rows, columns, depth, data.dtype, letters), machine)
    if made is None:
        return None
    sums = machine.stream(2.0 * batch * rows * columns * ITEMSIZE["f32"]) + SMALL
    time = made.time + sums if "weight" in name else made.time
    turned = _padded(data, weight, result, name, machine, fitting=True)
    assert turned is not None
    return replace(made, family="conv", time=minimum(time, turned.time))


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

    Nothing for those that other formulas price: whose channels fit (unless ``fitting`` are wanted,
    too), or are one in a group.
    """
    dtype = machine.sheet.convolution_dtype if data.dtype == "f32" else data.dtype
    kind_of = "f16" if dtype == "bf16" else dtype
    kind = TURNINGS.get(kind_of)
    inner = to_int(weight.shape[1])
    groups = maximum(to_int(data.shape[1]) // maximum(inner, 1), 1)
    if kind is None or (inner == 1 and groups > 1):
        return None
    outer = to_int(weight.shape[0]) // groups
    step = BORDER // ITEMSIZE[data.dtype]
    fits = inner % step == 0 and outer % step == 0
    if groups == 1 and fits and not fitting:
        return None
    if groups > 1 and not fits:
        kind = ODD_GROUPS[kind_of]
    pixels = result.numel // maximum(to_int(result.shape[1]), 1)
    window = to_int(math.prod(weight.shape[2:]))
    wide, deep = -(-outer // step) * step, -(-inner // step) * step
    product = Product(groups, pixels, wide, deep * window, dtype, "nn", traffic(data, result))
    images = traffic(data) * (1 + deep / inner) + traffic(result) * (1 + wide / outer)
    weights = traffic(weight) * (1 + deep * wide / (inner * outer))
    turned = machine.stream(images, kind.images) + machine.stream(weights, kind.weights)
    turned += FITTING if groups == 1 and fits else kind.start
    turned += kind.tiles * tiled_time(product, machine)[0]
    form = "grouped" if groups > 1 else "conv" if name == "conv" else "gradient"
    time = minimum(turned, _plain(PLAINS[form], groups, pixels, outer, inner * window, machine))
    time = maximum(time, machine.stream(traffic(data, weight, result)) + SMALL)
    text = f"{name} {shape_text(data)} * {shape_text(weight)}"
    spread = BORROWED if groups == 1 or fits else UNKNOWN
    return work("conv", text, time, spread, NOTE)


def _plain(
    kind: CudaCoreLaw, groups: int, pixels: int, outer: int, depth: int, machine: Machine
) -> float:
    """Return microseconds on the plain cores."""
    area = -(-pixels // ROWS) * ROWS * -(-outer // COLUMNS) * COLUMNS
    flop = 2.0 * groups * area * -(-depth // SLICE) * SLICE
    rate = machine.sheet.peak("f32")[0] * kind.share * 1e3
    return kind.start + kind.depth * depth + flop / rate
