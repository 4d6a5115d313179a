"""References of quantised ops: rounding of rows, scaled sums, lookups in short types.

Lookups in packed rows are torch's own kernels, and so are the products: of integers
(``aten::_int_mm``, which gives the same sums on every device), in f8 (``aten::_scaled_mm``), and
with weights in ``i4`` (``aten::_weight_int4pack_mm_for_cpu``).
"""

from __future__ import annotations

from typing import Any, TypeAlias

import torch

from irgraph.ir.dtypes import FROM_TORCH
from irgraph.ir.narrow.ops import GROUP, MAX_VALUES
from irgraph.ops.references.rows import torch_type

Torch: TypeAlias = Any

MIN_LARGEST = 1e-12
"""Minimum of a row's largest element for its scale, so that rows of zeros have one as well."""


def round_rows(values: Torch, kind: str = "i8") -> tuple[Torch, Torch]:
    """Return rows in ``i8`` or an f8 type, and each row's scale.

    A row's largest element is mapped to the largest number of the type, 127 in ``i8``: symmetric
    quantisation by row, as in torchao's dynamic ``i8`` and f8.
    """
    wide = values.float()
    largest = wide.abs().amax(1).clamp(min=MIN_LARGEST)
    scales = largest / MAX_VALUES[kind]
    steps = steps_of(wide / scales.unsqueeze(1), kind)
    return steps, scales


def steps_of(values: Torch, kind: str) -> Torch:
    """Return scaled values rounded to the nearest numbers of a type, clamped to its range."""
    max_value = MAX_VALUES[kind]
    steps = values.round() if kind == "i8" else values
    return steps.clamp(-max_value, max_value).to(torch_type(kind))


def pad(values: Torch, sizes: tuple[int, ...]) -> Torch:
    """Return a matrix padded with zeros; torch itself does not pad f8."""
    kind = values.dtype
    return torch.nn.functional.pad(values.view(torch.int8), sizes).view(kind)


def quantize_rows(
    self: torch.Tensor,
    columns: int,
    dtype: torch.dtype = torch.int8,
) -> Torch:
    """Return rows in a narrow type, padded to a number of columns, and each row's scale."""
    torch_name = str(dtype or torch.int8)
    kind = FROM_TORCH[torch_name.removeprefix("torch.")]
    steps, scales = round_rows(self, kind)
    padding = columns - steps.shape[1]
    return pad(steps, (0, padding)), scales


def quantize_static(
    self: torch.Tensor,
    columns: int,
    scale: float,
) -> Torch:
    """Return rows as integers in steps of one scale, padded to a number of columns.

    Values beyond 127 steps are clamped.
    """
    steps = steps_of(self.float() / scale, "i8")
    padding = columns - self.shape[1]
    return pad(steps, (0, padding))


def dequantize_columns(
    self: torch.Tensor,
    columns: torch.Tensor,
    scale: float,
    bias: torch.Tensor | None = None,
) -> Torch:
    """Return sums of integers [M, N or more] times a scale of all rows and the columns' scales."""
    sums = self[:, : len(columns)].to(torch.float32)
    scaled = sums * scale * columns
    return scaled if bias is None else scaled + bias


def linear_i4(
    self: torch.Tensor,
    weight: torch.Tensor,
    scales: torch.Tensor,
) -> Torch:
    """Return rows in bf16 [M, K] times a weight in ``i4`` [N, K / 2], bf16 [M, N]."""
    halves = torch.stack([weight & 15, weight >> 4], -1)
    steps = halves.flatten(1).to(torch.int32)
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(steps, 1)
    multiply = torch.ops.aten._weight_int4pack_mm_for_cpu
    return multiply(self.contiguous(), packed, GROUP, scales.contiguous())


def dequantize_rows(
    self: torch.Tensor,
    rows: torch.Tensor,
    columns: torch.Tensor,
    bias: torch.Tensor | None = None,
) -> Torch:
    """Return sums of integers [M, N or more] times the scales of rows and columns, plus a bias."""
    sums = self[:, : len(columns)].to(torch.float32)
    scaled = sums * rows.unsqueeze(1) * columns
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
        bags, bag_size = indices.shape
        offsets = torch.arange(0, bags * bag_size, bag_size)
        include_last_offset = False
    sums = torch.ops.aten._embedding_bag(
        weight.float(),
        indices.reshape(-1),
        offsets.to(indices.dtype),
        False,
        0,
        False,
        per_sample_weights,
        include_last_offset,
    )[0]
    return sums if scale is None else sums * scale


def bag_means(
    self: torch.Tensor,
    indices: torch.Tensor,
    offsets: torch.Tensor,
    include_last_offset: bool = False,
) -> Torch:
    """Return sums of bags divided by their lengths; sums of empty bags are unchanged."""
    bounds = offsets
    if not include_last_offset:
        end = offsets.new_tensor([indices.numel()])
        bounds = torch.cat([offsets, end])
    lengths = bounds.diff().clamp(min=1)
    return self / lengths.unsqueeze(1)
