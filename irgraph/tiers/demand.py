"""Demand of lookups on a tier: reads and bytes."""

from __future__ import annotations

from msgspec import Struct

from irgraph.tiers.tier import Tier


class Demand(Struct, frozen=True):
    """Reads of a tier, in one step or in one second.

    Attributes:
        reads: units that are read.
        nbytes: bytes that cross the link.
        row_bytes: bytes of the rows that are looked up.
    """

    reads: float = 0.0
    nbytes: float = 0.0
    row_bytes: float = 0.0

    def __add__(self, other: Demand) -> Demand:
        """Return the sum of both demands."""
        return Demand(
            self.reads + other.reads, self.nbytes + other.nbytes, self.row_bytes + other.row_bytes
        )

    @property
    def amplification(self) -> float:
        """Bytes that cross the link for each byte of the rows."""
        return self.nbytes / self.row_bytes if self.row_bytes else 1.0


def demand(tier: Tier, row: int, rows: float, *, sub_block: bool = False) -> Demand:
    """Return the demand on a tier of reading ``rows`` rows of ``row`` bytes.

    A row starts at a unit or is within one: rows are padded so that they cross as few units as
    possible. With ``sub_block`` only the part of a block with the row crosses the link, if the tier
    supports this; its reads per second stay the same.
    """
    return Demand(rows * tier.units(row), rows * tier.transferred(row, sub_block), rows * row)
