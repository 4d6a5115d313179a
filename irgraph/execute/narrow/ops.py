"""Reference implementations of quantised ops, and preparation of their parameters.

Lookups in packed rows are torch's own kernels, and so are the products: of integers
(``aten::_int_mm``, which gives the same sums on every device), in f8 (``aten::_scaled_mm``), and
with weights in ``i4`` (``aten::_weight_int4pack_mm_for_cpu``).
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from irgraph.execute.narrow.rows import scale_of, to_format
from irgraph.execute.torch_values import DTYPES, Torch
from irgraph.ir.dtypes import FROM_TORCH
from irgraph.ir.narrow.ops import GROUP, LAYER_FORMATS, MAX_VALUES, UNSCALED
from irgraph.ir.narrow.prepared import ROWS, SCALE, WEIGHT, Prepared

MIN_LARGEST = 1e-12
"""Minimum of a row's largest element for its scale, so that rows of zeros have one as well."""


def prepare(prepared: Prepared, source: Torch) -> Torch:
    """Return the value of a prepared parameter, from its source [rows, columns]."""
    if prepared.part == ROWS:
        return to_format(source, prepared.format)
    if prepared.part == SCALE:
        return scale_of(source.float(), prepared.format)
    source = source[slice(*prepared.rows)]
    if prepared.format == "i4":
        steps, scales = quantize_groups(source)
        return _pack_halves(steps) if prepared.part == WEIGHT else scales
    if prepared.format in UNSCALED:
        return source.to(DTYPES[prepared.format]).t()
    steps, scales = round_rows(source, prepared.format)
    if prepared.part != WEIGHT:
        return scales
    layer_format, (outputs, inputs) = LAYER_FORMATS[prepared.format], source.shape
    return _pad(
        steps, (0, -inputs % layer_format.depth_step, 0, -outputs % layer_format.output_step)
    ).t()


def round_rows(values: Torch, kind: str = "i8") -> tuple[Torch, Torch]:
    """Return rows in ``i8`` or an f8 type, and each row's scale.

    A row's largest element is mapped to the largest number of the type, 127 in ``i8``: symmetric
    quantisation by row, as in torchao's dynamic ``i8`` and f8.
    """
    wide, max_value = values.float(), MAX_VALUES[kind]
    scales = wide.abs().amax(1).clamp(min=MIN_LARGEST) / max_value
    return steps_of(wide / scales.unsqueeze(1), kind), scales


def steps_of(values: Torch, kind: str) -> Torch:
    """Return scaled values rounded to the nearest numbers of a type, clamped to its range."""
    max_value = MAX_VALUES[kind]
    steps = values.round() if kind == "i8" else values
    return steps.clamp(-max_value, max_value).to(DTYPES[kind])


def squared_error(values: Torch, largest: float) -> float:
    """Return the sum of squared errors of values in ``i8`` with a given range."""
    step = largest / MAX_VALUES["i8"]
    nearest = steps_of(values / step, "i8").float() * step
    return float((nearest - values).double().square().sum())


def quantize_groups(source: Torch) -> tuple[Torch, Torch]:
    """Return a weight [N, K] in steps of 0 to 15, and bf16 scales and zeros [K / 32, N, 2].

    Both sizes are padded. A step q represents (q - 8) * scale + zero, as in torch's kernels.
    """
    layer_format, (outputs, inputs) = LAYER_FORMATS["i4"], source.shape
    padded = torch.nn.functional.pad(
        source.float(),
        (0, -inputs % layer_format.depth_step, 0, -outputs % layer_format.output_step),
    )
    groups = padded.unflatten(1, (-1, GROUP))
    low, high = groups.amin(2), groups.amax(2)
    scale = ((high - low) / 15).clamp(min=MIN_LARGEST).bfloat16()
    zero = (low + 8 * scale.float()).bfloat16()
    distances = (groups - zero.float().unsqueeze(2)) / scale.float().unsqueeze(2)
    steps = (distances + 8).round().clamp(0, 15).to(torch.uint8)
    return steps.flatten(1), torch.stack([scale, zero], -1).transpose(0, 1).contiguous()


def round_to_groups(source: Torch) -> Torch:
    """Round a weight [N, K] to ``i4`` and back to f32."""
    steps, scales = quantize_groups(source)
    factors = scales.float().transpose(0, 1).unsqueeze(2)
    values = (steps.unflatten(1, (-1, GROUP)).float() - 8) * factors[..., 0] + factors[..., 1]
    return values.flatten(1)[: source.shape[0], : source.shape[1]].contiguous()


def _pack_halves(steps: Torch) -> Torch:
    """Return steps of four bits packed in pairs, the first one in the low half of a byte."""
    return steps[:, ::2] | steps[:, 1::2] << 4


def _pad(values: Torch, sizes: tuple[int, ...]) -> Torch:
    """Return a matrix padded with zeros; torch itself does not pad f8."""
    kind = values.dtype
    return torch.nn.functional.pad(values.view(torch.int8), sizes).view(kind)


def quantize_rows(self: torch.Tensor, columns: int, dtype: torch.dtype = torch.int8) -> Torch:
    """Return rows in a narrow type, padded to a number of columns, and each row's scale."""
    kind = FROM_TORCH[str(dtype or torch.int8).removeprefix("torch.")]
    steps, scales = round_rows(self, kind)
    return _pad(steps, (0, columns - steps.shape[1])), scales


def quantize_static(self: torch.Tensor, columns: int, scale: float) -> Torch:
    """Return rows as integers in steps of one scale, padded to a number of columns.

    Values beyond 127 steps are clamped.
    """
    return _pad(steps_of(self.float() / scale, "i8"), (0, columns - self.shape[1]))


def dequantize_columns(
    self: torch.Tensor, columns: torch.Tensor, scale: float, bias: torch.Tensor | None = None
) -> Torch:
    """Return sums of integers [M, N or more] times a scale of all rows and the columns' scales."""
    scaled = self[:, : len(columns)].to(torch.float32) * scale * columns
    return scaled if bias is None else scaled + bias


def linear_i4(self: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor) -> Torch:
    """Return rows in bf16 [M, K] times a weight in ``i4`` [N, K / 2], bf16 [M, N]."""
    steps = torch.stack([weight & 15, weight >> 4], -1).flatten(1).to(torch.int32)
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
    end = offsets.new_tensor([indices.numel()])
    ends = offsets if include_last_offset else torch.cat([offsets, end])
    return self / ends.diff().clamp(min=1).unsqueeze(1)


QUANTIZED: dict[str, Callable[..., Torch]] = {
    f"irgraph.{function.__name__}": function
    for function in (
        quantize_rows,
        dequantize_rows,
        quantize_static,
        dequantize_columns,
        linear_i4,
        embedding_bag_rows,
        bag_means,
    )
}
"""Implementation of each quantised op of irgraph; arguments are passed by the schema's names."""
