"""Bytes of an embedding table's rows in narrow formats, as FBGEMM and torch lay them out.

The formulas are FBGEMM's ``unpadded_row_size_in_bytes`` and ``padded_row_size_in_bytes``
(https://github.com/pytorch/FBGEMM, ``fbgemm_gpu/embedding_common.h``).
"""

from __future__ import annotations

from msgspec import Struct

ROW_ALIGNMENT, TABLE_ALIGNMENT = 16, 128
"""Bytes that FBGEMM's inference kernels align a row to on a device, and a table."""


class RowFormat(Struct, frozen=True):
    """How a row's elements are kept.

    Attributes:
        name: such as ``i4``; floating formats are called as the element type.
        bits: of one element.
        scales: bytes of a row's own scale and bias, as torch packs them: two f32 behind a row of
            ``i8``, two f16 behind one of ``i4`` and ``i2``.
        op: the part of torch's operators' names that says the format, ``""`` where there are none.
    """

    name: str
    bits: int
    scales: int = 0
    op: str = ""

    @property
    def elements_per_byte(self) -> int:
        """Elements that share a byte: a row has a multiple of so many."""
        return max(8 // self.bits, 1)

    @property
    def packed(self) -> bool:
        """Whether a row is bytes with a scale and a bias, not elements of a type."""
        return self.scales > 0


FORMATS = {
    row_format.name: row_format
    for row_format in (
        RowFormat("f32", 32),
        RowFormat("f16", 16),
        RowFormat("bf16", 16),
        RowFormat("f8e4m3", 8),
        RowFormat("f8e5m2", 8),
        RowFormat("i8", 8, 8, "byte"),
        RowFormat("i4", 4, 4, "4bit"),
        RowFormat("i2", 2, 4, "2bit"),
    )
}
"""All row formats by name, from wide to narrow."""


def row_bytes(name: str, width: int, scales: int | None = None) -> int:
    """Return the bytes of a row of ``width`` elements in a format, without padding.

    ``scales`` are the bytes of its scale and bias where they are not those of torch: FBGEMM's
    kernels with two f16 have 4 behind a row of ``i8`` too.

    Raises:
        ValueError: there is no such format, or the elements do not fill whole bytes.
    """
    row_format = FORMATS.get(name)
    if row_format is None:
        raise ValueError(f"no row format is called {name!r}; there are {', '.join(FORMATS)}")
    step = row_format.elements_per_byte
    if width % step:
        raise ValueError(f"a row in {name} takes a multiple of {step} elements, not {width}")
    scale_bytes = row_format.scales if scales is None or not row_format.packed else scales
    return width * row_format.bits // 8 + scale_bytes


def padded_row_bytes(
    name: str, width: int, alignment: int = ROW_ALIGNMENT, scales: int | None = None
) -> int:
    """Return the bytes of a row with what aligns the next one; raises as ``row_bytes``."""
    return _round_up(row_bytes(name, width, scales), alignment)


def table_bytes(
    name: str,
    rows: int,
    width: int,
    alignment: int = ROW_ALIGNMENT,
    scales: int | None = None,
) -> int:
    """Return the bytes of a table whose rows and end are aligned; raises as ``row_bytes``."""
    return _round_up(rows * padded_row_bytes(name, width, alignment, scales), TABLE_ALIGNMENT)


def columns_of(name: str, width: int) -> int:
    """Return the columns in which torch keeps a row; raises as ``row_bytes``."""
    return row_bytes(name, width) if FORMATS[name].packed else width


def _round_up(size: int, step: int) -> int:
    return -(-size // step) * step
