"""Converts rows of embedding tables to narrow formats and back, as torch and FBGEMM do.

Both directions are bitwise equal to torch's operators ``quantized::embedding_bag_byte_prepack``,
``_4bit_``, ``_2bit_`` and their ``_unpack``, which follow FBGEMM's ``QuantUtils.cc``.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import torch

from irgraph.ir.dtypes import TORCH
from irgraph.ir.narrow.ops import MAX_VALUES
from irgraph.ir.narrow.rows import FORMATS

Torch: TypeAlias = Any

SCALED = ("f8e4m3", "f8e5m2")
"""Formats of rows whose elements are multiplied by one scale of the table."""

EPSILON = 1e-8
"""Number that FBGEMM adds to a row's range before dividing by it (``kEpsilon``, ``i8`` only)."""


def torch_type(name: str) -> torch.dtype:
    """Return torch's element type of a name."""
    dtype: torch.dtype = getattr(torch, TORCH[name])
    return dtype


def to_format(values: Torch, name: str) -> Torch:
    """Return rows [E, D] of f32 in a format: bytes [E, columns], or elements [E, D] of its type.

    Elements in f8 must be multiplied by ``scale_of(values, name)``.
    """
    wide = values.to(torch.float32)
    if name in SCALED:
        scaled = wide / scale_of(wide, name)
        return scaled.to(torch_type(name))
    if not FORMATS[name].packed:
        return wide.to(torch_type(name))
    if name == "i8":
        return _byte_rows(wide)
    return _packed_rows(wide, FORMATS[name].bits)


def expand(table: Torch, mapping: Torch) -> Torch:
    """Return a pruned table with a row for each index: zeros if the mapping has none."""
    expanded = table.new_zeros(len(mapping), table.shape[1])
    present = mapping >= 0
    expanded[present] = table[mapping[present].long()]
    return expanded


def from_format(
    rows: Torch,
    name: str,
    scale: Torch = None,
) -> Torch:
    """Return rows in a format as f32 [E, D]; ``scale`` is the scale of a table in f8."""
    if name in SCALED:
        return rows.to(torch.float32) * scale
    if not FORMATS[name].packed:
        return rows.to(torch.float32)
    bits = FORMATS[name].bits
    scales = FORMATS[name].scales
    max_step = 2**bits - 1
    packed = rows[:, :-scales]
    columns = [packed >> shift & max_step for shift in range(0, 8, bits)]
    steps = torch.stack(columns, -1).flatten(1)
    kind = torch.float32 if scales == 8 else torch.float16
    scale_bytes = rows[:, -scales:].contiguous()
    factors = scale_bytes.view(kind).double()
    # the kernels multiply and add with one rounding: in f64 the product is exact
    scaled = steps.double() * factors[:, :1]
    return (scaled + factors[:, 1:]).float()


def scale_of(values: Torch, name: str) -> Torch:
    """Return the power of two, f32 [1], that scales a table's largest element into an f8 type.

    FBGEMM's tables in f8 have one exponent bias for all rows and do not contain a scale.
    """
    smallest_number = torch.finfo(torch.float32).tiny
    largest = values.abs().amax().clamp(min=smallest_number)
    power = torch.log2(largest / MAX_VALUES[name])
    return torch.exp2(power.ceil()).view(1)


def _byte_rows(values: Torch) -> Torch:
    """Return rows of bytes, followed by scale and bias in f32."""
    low = values.amin(1, keepdim=True)
    span = values.amax(1, keepdim=True) - low
    factor = 255.0 / (span + EPSILON)
    steps = ((values - low) * factor).round()
    return _with_scales(steps.to(torch.uint8), span / 255.0, low)


def _with_scales(steps: Torch, scale: Torch, bias: Torch) -> Torch:
    """Return rows of bytes, followed by the bytes of a scale and a bias."""
    factors = torch.cat([scale, bias], 1).contiguous()
    return torch.cat([steps, factors.view(torch.uint8)], 1)


def _packed_rows(values: Torch, bits: int) -> Torch:
    """Return rows of packed fractions of bytes, followed by scale and bias in f16."""
    max_step = 2**bits - 1
    low = values.amin(1, keepdim=True).half().float()
    span = values.amax(1, keepdim=True) - low
    scale = torch.where(span == 0, 1.0, span / max_step)
    scale = scale.half().float()
    unusable = (scale == 0) | (1 / scale).isinf()
    scale = torch.where(unusable, 1.0, scale)
    factor = 1 / scale
    steps = ((values - low) * factor).round().clamp(0, max_step)
    steps_per_byte = 8 // bits
    groups = steps.to(torch.uint8).unflatten(1, (-1, steps_per_byte))
    packed = torch.zeros_like(groups[..., 0])
    for position in range(steps_per_byte):
        step = groups[..., position]
        packed |= step << position * bits
    return _with_scales(packed, scale.half(), low.half())
