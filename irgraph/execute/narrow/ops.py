"""Reference implementations of quantised ops, and how their parameters are prepared.

Lookups in packed rows are torch's own kernels, and so is the product of integers
(``aten::_int_mm``), which gives the same sums on every device.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from irgraph.execute.narrow.rows import quantised, scale_of
from irgraph.execute.torch_values import Torch
from irgraph.ir.narrow.ops import EIGHTS, LARGEST_I8
from irgraph.ir.narrow.prepared import ROWS, SCALE, WEIGHT, Prepared

SMALLEST = 1e-12
"""Least largest element of a row of which a scale is taken: a row of zeros has one, too."""


def prepare(one: Prepared, source: Torch) -> Torch:
    """Return what a prepared parameter holds of its source [rows, columns]."""
    if one.part == ROWS:
        return quantised(source, one.format)
    if one.part == SCALE:
        return scale_of(source.float())
    steps, scales = rounded(source)
    if one.part != WEIGHT:
        return scales
    outputs, inputs = source.shape
    return torch.nn.functional.pad(steps, (0, -inputs % EIGHTS, 0, -outputs % EIGHTS)).t()


def rounded(values: Torch) -> tuple[Torch, Torch]:
    """Return rows as integers of -127 to 127, and each row's scale: its largest element / 127.

    That is symmetric quantisation by row, as of torchao's dynamic ``i8``.
    """
    held = values.float()
    scales = held.abs().amax(1).clamp(min=SMALLEST) / LARGEST_I8
    steps = (held / scales.unsqueeze(1)).round().clamp(-LARGEST_I8, LARGEST_I8)
    return steps.to(torch.int8), scales


def quantize_rows(self: torch.Tensor, columns: int) -> Torch:
    """Return rows as integers, filled up to so many columns, and each row's scale."""
    steps, scales = rounded(self)
    return torch.nn.functional.pad(steps, (0, columns - steps.shape[1])), scales


def dequantize_rows(
    self: torch.Tensor,
    rows: torch.Tensor,
    columns: torch.Tensor,
    bias: torch.Tensor | None = None,
) -> Torch:
    """Return sums of integers [M, N or more] times the scales of rows and columns, plus a bias."""
    kept = self[:, : len(columns)].to(torch.float32)
    scaled = kept * rows.unsqueeze(1) * columns
    return scaled if bias is None else scaled + bias


def embedding_bag_rows(
    weight: torch.Tensor,
    indices: torch.Tensor,
    offsets: torch.Tensor | None = None,
    scale: torch.Tensor | None = None,
    per_sample_weights: torch.Tensor | None = None,
    include_last_offset: bool = False,
) -> Torch:
    """Return sums [bags, D] in f32 of rows in a short type; without offsets a bag is a row."""
    if offsets is None:
        bags, each = indices.shape
        offsets = torch.arange(0, bags * each, each)
        include_last_offset = False
    found = torch.ops.aten._embedding_bag(
        weight.float(), indices.reshape(-1), offsets.to(indices.dtype), False, 0, False,
        per_sample_weights, include_last_offset,
    )[0]  # fmt: skip
    return found if scale is None else found * scale


QUANTIZED: dict[str, Callable[..., Torch]] = {
    f"irgraph.{function.__name__}": function
    for function in (quantize_rows, dequantize_rows, embedding_bag_rows)
}
"""Implementation of each of our quantised ops; arguments go by the schema's names."""
