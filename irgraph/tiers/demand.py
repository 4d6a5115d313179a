"""What lookups ask of a tier: reads and bytes."""

from __future__ import annotations

from msgspec import Struct

from irgraph.tiers.tier import Tier


class Demand(Struct, frozen=True):
    """Reads of a tier, in one step or in one second.

    Attributes:
        reads: units that are read.
        nbytes: bytes that cross the link.
        wanted: bytes of the rows that were looked up.
    """

    reads: float = 0.0
    nbytes: float = 0.0
    wanted: float = 0.0

    def __add__(self, other: Demand) -> Demand:
        """Return both together."""
        return Demand(
            self.reads + other.reads, self.nbytes + other.nbytes, self.wanted + other.wanted
        )

    @property
    def amplification(self) -> float:
        """Bytes that cross the link for one that is wanted."""
        return self.nbytes / self.wanted if self.wanted else 1.0


def demand(tier: Tier, row: int, rows: float, *, sub_block: bool = False) -> Demand:
    """Return what reading rows of so many bytes asks of a tier.

    A row starts at a unit, or lies within one: rows are padded so that none crosses an edge that it
    need not. With ``sub_block`` only the part of a block that holds the row crosses the link, where
    the tier can do that; its reads a second stay the same.
    """
    return Demand(rows * tier.units(row), rows * tier.transferred(row, sub_block), rows * row)
