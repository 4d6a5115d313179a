"""Ops of quantised models: lookups that dequantise inside, and products of narrow types.

Lookups in packed rows are torch's own. A linear layer in ``i8`` or in f8 is three calls: its rows
are rounded, each by its largest element (dynamic quantisation) or all by one calibrated range
(static), torch multiplies, and the sums are scaled back. With weights in ``i4`` the rows are cast
to bf16, with weights in f16 and bf16 to that type, and one call multiplies.
"""

from __future__ import annotations

from msgspec import Struct

from irgraph.ir.narrow.rows import FORMATS

LOOKUPS = {
    row_format.name: f"quantized.embedding_bag_{row_format.op}_rowwise_offsets"
    for row_format in FORMATS.values()
    if row_format.op
}
"""Torch's lookups in packed rows, by format; lookups of other formats are ``ROWS_LOOKUP``."""

ROWS_LOOKUP = "irgraph.embedding_bag_rows"
"""Sums of rows in a short floating type, in f32, as FBGEMM's inference kernels do."""

MEANS = "irgraph.bag_means"
"""Division of bags' sums by their lengths: lookups in narrow rows return sums, not means."""

FORMAT_OF = {name: kind for kind, name in LOOKUPS.items()}
"""Row formats by the lookup."""

QUANTIZE = "irgraph.quantize_rows"
"""Rounds the rows of a layer in ``i8`` with dynamic quantisation."""

PRODUCT = "aten._int_mm"
"""Product of a layer in ``i8``."""

DEQUANTIZE = "irgraph.dequantize_rows"
"""Scales the sums of a layer in ``i8`` with dynamic quantisation."""

STATIC = "irgraph.quantize_static"
"""Rounds rows in static quantisation, with one calibrated scale of all rows."""

SCALED = "irgraph.dequantize_columns"
"""Scales sums in static quantisation."""

PRODUCT_F8 = "aten._scaled_mm"
"""Product in f8."""

PRODUCT_I4 = "irgraph.linear_i4"
"""Product of rows in bf16 with weights in ``i4``: the operation of ``aten::_weight_int4pack_mm`` on
devices, whose packing differs between cards."""

PRODUCT_SHORT = "aten.mm"
"""Product of rows in f16 or bf16 with a weight that was converted to the type beforehand."""

UNSCALED = ("f16", "bf16")
"""Formats of weights without scales."""

GROUP = 32
"""Number of weights in ``i4`` along the depth that share a scale and a zero point: the most
accurate size of those that torch's kernel supports (32, 64, 128, 256)."""


class LayerFormat(Struct, frozen=True):
    """Formats and sizes of a linear layer's product.

    Attributes:
        rows: type of the activations that it multiplies.
        weight: format of its prepared weight.
        sums: type of the product's results.
        product: the op that multiplies.
        depth_step: the depth is padded to a multiple of this.
        output_step: the number of outputs is padded to a multiple of this.
        min_rows: minimum number of rows.
    """

    rows: str
    weight: str
    sums: str
    product: str
    depth_step: int
    output_step: int
    min_rows: int = 1


LAYER_FORMATS = {
    "i8": LayerFormat("i8", "i8", "i32", PRODUCT, 8, 8, 17),
    "f8e4m3": LayerFormat("f8e4m3", "f8e4m3", "f32", PRODUCT_F8, 16, 16),
    "f8e5m2": LayerFormat("f8e5m2", "f8e4m3", "f32", PRODUCT_F8, 16, 16),
    "i4": LayerFormat("bf16", "i4", "bf16", PRODUCT_I4, GROUP, 16),
    "f16": LayerFormat("f16", "f16", "f16", PRODUCT_SHORT, 1, 1),
    "bf16": LayerFormat("bf16", "bf16", "bf16", PRODUCT_SHORT, 1, 1),
}
"""Layer formats by name. Sizes and numbers of rows meet the requirements of torch's kernels:
``aten::_int_mm`` needs multiples of 8 and more than 16 rows, ``aten::_scaled_mm`` multiples of 16.
No unit multiplies e5m2 by e5m2: weights are in e4m3, which has one more digit."""

MAX_VALUES = {"i8": 127.0, "f8e4m3": 448.0, "f8e5m2": 57344.0}
"""Quantised value of the largest element of a row, and of an output's weights, by format."""

TOLERANCE = {"rows": 1e-4, "layers": 1e-2, "f8": 3e-2}
"""Maximum difference, relative to a tensor's largest value, between a quantised model and a model
that computes the same in f32 from values representable in the formats: for lookups, and for layers
that round activations (a value between two integers, or two numbers of f8, may round to either)."""


def round_up(size: int, step: int) -> int:
    """Return a size rounded up to a multiple of a step."""
    return -(-int(size) // step) * step
