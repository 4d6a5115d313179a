"""Ops of quantised models: lookups that dequantise inside, and products of integers.

Lookups in packed rows are torch's own. A linear layer in ``i8`` is three calls: its rows are
rounded, each by its largest element (dynamic quantisation), torch multiplies the integers, and the
sums are scaled back.
"""

from __future__ import annotations

from irgraph.ir.narrow.rows import FORMATS

LOOKUPS = {
    known.name: f"quantized.embedding_bag_{known.op}_rowwise_offsets"
    for known in FORMATS.values()
    if known.op
}
"""Torch's lookups in packed rows by format; other formats are looked up by ``ROWS_LOOKUP``."""

ROWS_LOOKUP = "irgraph.embedding_bag_rows"
"""Sums of rows in a short floating type, in f32, as FBGEMM's inference kernels do."""

FORMAT_OF = {name: kind for kind, name in LOOKUPS.items()}
"""Row formats by the lookup."""

QUANTIZE, DEQUANTIZE, PRODUCT = "irgraph.quantize_rows", "irgraph.dequantize_rows", "aten._int_mm"
"""What a linear layer in ``i8`` calls."""

LARGEST_I8 = 127
"""The integer that the largest element of a row, and of an output's weights, becomes."""

EIGHTS = 8
"""Columns and depth of an integer product on devices are multiples of it (``aten::_int_mm``)."""

LEAST_ROWS = 17
"""The fewest rows that ``aten::_int_mm`` takes on devices."""

TOLERANCE = {"rows": 1e-4, "i8": 1e-2}
"""Largest difference, over a tensor's largest value, of a quantised model from one that computes
the same in f32 from values that the formats can hold: of lookups, and where layers round
activations (a value between two integers may go to either)."""


def quantizes(name: str) -> bool:
    """Return whether an op of this name belongs to a quantised model."""
    return name in FORMAT_OF or name in (ROWS_LOOKUP, QUANTIZE, DEQUANTIZE)


def eights(size: int) -> int:
    """Return a size filled up to a whole number of eights."""
    return -(-int(size) // EIGHTS) * EIGHTS
