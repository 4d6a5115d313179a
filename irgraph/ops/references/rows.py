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
        return (wide / scale_of(wide, name)).to(torch_type(name))
    if not FORMATS[name].packed:
        return wide.to(torch_type(name))
    return _byte_rows(wide) if name == "i8" else _packed_rows(wide, FORMATS[name].bits)


def expand(table: Torch, mapping: Torch) -> Torch:
    """Return a pruned table with a row for each index: zeros if the mapping has none."""
    expanded = table.new_zeros(len(mapping), table.shape[1])
    present = mapping >= 0
    expanded[present] = table[mapping[present].long()]
    return expanded


def from_format(rows: Torch, name: str, scale: Torch = None) -> Torch:
    """Return rows in a format as f32 [E, D]; ``scale`` is the scale of a table in f8."""
    if name in SCALED:
        return rows.to(torch.float32) * scale
    if not FORMATS[name].packed:
        return rows.to(torch.float32)
    bits, scales = FORMATS[name].bits, FORMATS[name].scales
    packed = rows[:, :-scales]
    steps = torch.stack([packed >> shift & 2**bits - 1 for shift in range(0, 8, bits)], -1)
    kind = torch.float32 if scales == 8 else torch.float16
    factors = rows[:, -scales:].contiguous().view(kind).double()
    # the kernels multiply and add with one rounding: in f64 the product is exact
    return (steps.flatten(1).double() * factors[:, :1] + factors[:, 1:]).float()


def scale_of(values: Torch, name: str) -> Torch:
    """Return the power of two, f32 [1], that scales a table's largest element into an f8 type.

    FBGEMM's tables in f8 have one exponent bias for all rows and do not contain a scale.
    """
    largest = values.abs().amax().clamp(min=torch.finfo(torch.float32).tiny)
    return torch.exp2(torch.ceil(torch.log2(largest / MAX_VALUES[name]))).view(1)


def _byte_rows(values: Torch) -> Torch:
    """Return rows of bytes, followed by scale and bias in f32."""
    low, high = values.amin(1, keepdim=True), values.amax(1, keepdim=True)
    span = high - low
    steps = ((values - low) * (255.0 / (span + EPSILON))).round().to(torch.uint8)
    scales = torch.cat([span / 255.0, low], 1).contiguous().view(torch.uint8)
    return torch.cat([steps, scales], 1)


def _packed_rows(values: Torch, bits: int) -> Torch:
    """Return rows of packed fractions of bytes, followed by scale and bias in f16."""
    max_step = 2**bits - 1
    low = values.amin(1, keepdim=True).half().float()
    span = values.amax(1, keepdim=True) - low
    scale = torch.where(span == 0, 1.0, span / max_step).half().float()
    unusable = (scale == 0) | (1 / scale).isinf()
    scale = torch.where(unusable, 1.0, scale)
    steps = ((values - low) * (1 / scale)).round().clamp(0, max_step).to(torch.uint8)
    groups = steps.unflatten(1, (-1, 8 // bits))
    packed = torch.zeros_like(groups[..., 0])
    for position in range(8 // bits):
        packed |= groups[..., position] << position * bits
    scales = torch.cat([scale.half(), low.half()], 1).contiguous().view(torch.uint8)
    return torch.cat([packed, scales], 1)
