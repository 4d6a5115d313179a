"""Row formats of embedding tables: bytes by FBGEMM's formula, bits by torch's own operators."""

from __future__ import annotations

import pytest
import torch

from irgraph.ir.narrow.rows import (
    FORMATS,
    columns_of,
    padded_row_bytes,
    row_bytes,
    table_bytes,
)
from irgraph.ops.references.rows import from_format, scale_of, to_format

PACKED = {"i8": "byte", "i4": "4bit", "i2": "2bit"}


@pytest.mark.parametrize(
    ("name", "width", "scales", "unpadded"),
    [
        ("f32", 128, None, 512),
        ("f16", 128, None, 256),
        ("bf16", 128, None, 256),
        ("f8e4m3", 128, None, 128),
        ("i8", 128, None, 136),
        ("i8", 128, 4, 132),
        ("i4", 128, None, 68),
        ("i2", 128, None, 36),
        ("i4", 72, None, 40),
        ("i2", 8, None, 6),
    ],
)
def test_rows_have_the_bytes_of_fbgemm(
    name: str, width: int, scales: int | None, unpadded: int
) -> None:
    # fbgemm_gpu/embedding_common.h: 4D, 2D, 2D, D, D + s, D / 2 + s, D / 4 + s
    assert row_bytes(name, width, scales) == unpadded
    assert padded_row_bytes(name, width, scales=scales) == (unpadded + 15) // 16 * 16


def test_shares_of_f32_that_were_published() -> None:
    # 13.89 % of f32 (arXiv 1911.02079) is that of 72 columns
    assert row_bytes("i4", 128) / row_bytes("f32", 128) == pytest.approx(0.1328, abs=5e-5)
    assert row_bytes("i4", 72) / row_bytes("f32", 72) == pytest.approx(0.1389, abs=5e-5)
    assert row_bytes("i4", 8) / row_bytes("f32", 8) == 0.25


def test_a_table_ends_at_a_whole_line() -> None:
    assert table_bytes("i4", 3, 128) == 256  # three rows of 80
    assert table_bytes("i2", 1, 8, alignment=1) == 128


@pytest.mark.parametrize(("name", "width"), [("i4", 7), ("i2", 6), ("i3", 8)])
def test_rows_that_do_not_fill_bytes_are_refused(name: str, width: int) -> None:
    with pytest.raises(ValueError, match=r"format|multiple"):
        row_bytes(name, width)


def tables() -> dict[str, torch.Tensor]:
    """Return tables that a quantiser might get wrong."""
    torch.manual_seed(0)
    shape = (200, 64)
    constant = torch.full(shape, -3.7)
    constant[:, 5] += torch.arange(200) * 1e-6
    return {
        "normal": torch.randn(shape),
        "uniform": torch.rand(shape),
        "trained": torch.randn(shape) * torch.logspace(-6, 2, 200).unsqueeze(1),
        "constant": constant,
        "zero": torch.zeros(shape),
        "tiny": torch.randn(shape) * 1e-9,
        "far": 1000 + torch.randn(shape) * 1e-2,
        "ties": torch.arange(64).repeat(200, 1) * 0.5 + torch.arange(200).unsqueeze(1),
    }


@pytest.mark.parametrize("kind", tables())
@pytest.mark.parametrize("name", PACKED)
def test_every_bit_is_that_of_torch(kind: str, name: str) -> None:
    values = tables()[kind]
    ops = torch.ops.quantized
    packed = getattr(ops, f"embedding_bag_{PACKED[name]}_prepack")(values)
    assert torch.equal(to_format(values, name), packed)
    unpacked = getattr(ops, f"embedding_bag_{PACKED[name]}_unpack")(packed)
    assert torch.equal(from_format(packed, name), unpacked)
    assert packed.shape[1] == columns_of(name, 64) == row_bytes(name, 64)


# normalised L2 errors measured with torch 2.13: 4096 rows N(0, 1) of 64 elements
MEASURED = {"f16": 2.07e-4, "bf16": 1.66e-3, "i8": 5.27e-3, "i4": 8.96e-2, "i2": 0.450}

BITS = {"f8e4m3": 3, "f8e5m2": 2}
"""Bits of their mantissas."""


@pytest.mark.parametrize("name", FORMATS)
def test_errors_are_those_measured_with_torch(name: str) -> None:
    torch.manual_seed(1)
    values = torch.randn(4096, 64)
    scale = scale_of(values, name) if name.startswith("f8") else None
    back = from_format(to_format(values, name), name, scale)
    error = float((values - back).norm() / values.norm())
    if name == "f32":
        assert error == 0
    elif name in BITS:
        # between the relative spacing over two and over four, by root 3
        half = 2.0 ** -(BITS[name] + 1)
        assert half / 2 / 3**0.5 < error < half / 3**0.5
    else:
        assert error == pytest.approx(MEASURED[name], rel=0.02)
