"""Bytes of an embedding table's rows in narrow formats, in the layouts of FBGEMM and torch.

The formulas are FBGEMM's ``unpadded_row_size_in_bytes`` and ``padded_row_size_in_bytes``
(https://github.com/pytorch/FBGEMM, ``fbgemm_gpu/embedding_common.h``).
"""

from __future__ import annotations

from msgspec import Struct

ROW_ALIGNMENT, TABLE_ALIGNMENT = 16, 128
"""Alignment of rows and of tables on a device in FBGEMM's inference kernels, in bytes."""


class RowFormat(Struct, frozen=True):
    """Storage format of a row's elements.

    Attributes:
        name: such as ``i4``; floating formats have the name of the element type.
        bits: bits of one element.
        scales: bytes of a row's own scale and bias, as torch packs them: two f32 after a row of
            ``i8``, two f16 after a row of ``i4`` or ``i2``.
        op: the format in the names of torch's operators, ``""`` if no operator exists.
    """

    name: str
    bits: int
    scales: int = 0
    op: str = ""

    @property
    def elements_per_byte(self) -> int:
        """Number of elements in a byte: the width of a row is a multiple of it."""
        return max(8 // self.bits, 1)

    @property
    def packed(self) -> bool:
        """Whether a row is stored as bytes with a scale and a bias, not as typed elements."""
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

    ``scales`` are the bytes of its scale and bias if they differ from torch's: FBGEMM's kernels
    with two f16 have 4 bytes after a row of ``i8`` as well.

    Raises:
        ValueError: the format does not exist, or the elements do not fill whole bytes.
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
    """Return the bytes of a row padded to the alignment; raises as ``row_bytes``."""
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
    """Return the number of columns of a row in torch's tensor; raises as ``row_bytes``."""
    return row_bytes(name, width) if FORMATS[name].packed else width


def _round_up(size: int, step: int) -> int:
    return -(-size // step) * step
