"""Tiers and platforms as files: figures, each with its source."""

from __future__ import annotations

import math
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import Struct

from irgraph.diagnostics import SourceSpan, fail, suggestion

PIPE, DIES = "pipe", "dies"
"""How reads wait: behind one another in a controller that starts them at a steady rate; or each
for the die that holds its page."""

MOST = 1e18
"""No figure of a tier is larger, in its unit."""


class Figure(Struct, frozen=True, forbid_unknown_fields=True):
    """A number and where it comes from.

    Attributes:
        value: in the unit that the field's name ends with.
        source: who published it, such as a datasheet or a review.
    """

    value: float
    source: str


class Tier(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One kind of memory or storage that tables, or rows of them, can lie on.

    Attributes:
        name: as statements and options call it.
        aliases: other names of it.
        note: what the file stands for, where the name leaves that open.
        kind: memory of the ``device`` that computes; ``memory`` of the host, from where rows are
            copied; ``link`` over which kernels read memory of the host row by row; ``storage``.
        queueing: ``pipe`` or ``dies``.
        capacity_gb: 1e9 bytes of one piece; none where the platform says how much there is.
        latency_us: of one read alone, microseconds.
        iops: random reads a second that it reaches at best; none where bandwidth alone bounds it.
        read_gbs: 1e9 bytes a second that it reads at best.
        write_gbs: the same of writes.
        granularity_bytes: the smallest unit that a read takes from it.
        sub_block_bytes: the smallest unit that crosses the link where a read asks for part of a
            block; none where it cannot.
        depth: reads that software keeps in flight.
        idle_watts, active_watts: power of one piece, without reads and at its best rate.
        price_usd: of one piece.
        dwpd: drive writes a day, capacities that may be written each day of its warranty.
        error: half a 90 % interval of times of reads, as a share.
    """

    name: str
    kind: Literal["device", "memory", "link", "storage"]
    queueing: Literal["pipe", "dies"]
    latency_us: Figure
    read_gbs: Figure
    granularity_bytes: Figure
    depth: Figure
    error: Figure
    aliases: tuple[str, ...] = ()
    note: str = ""
    capacity_gb: Figure | None = None
    iops: Figure | None = None
    write_gbs: Figure | None = None
    sub_block_bytes: Figure | None = None
    idle_watts: Figure | None = None
    active_watts: Figure | None = None
    price_usd: Figure | None = None
    dwpd: Figure | None = None

    @property
    def rate(self) -> float:
        """Random reads of one unit a second at best."""
        by_bytes = 1e9 * self.read_gbs.value / self.granularity_bytes.value
        return by_bytes if self.iops is None else min(self.iops.value, by_bytes)

    @property
    def dies(self) -> float:
        """Places that serve reads side by side: by Little's law, its rate times its latency."""
        return max(self.rate * self.latency_us.value / 1e6, 1.0)

    def units(self, row: int) -> int:
        """Return how many units a row of so many bytes takes, where it starts at one."""
        return math.ceil(row / self.granularity_bytes.value)

    def transferred(self, row: int, sub_block: bool = False) -> int:
        """Return the bytes that cross the link for one row."""
        unit = self.granularity_bytes.value
        if sub_block and self.sub_block_bytes is not None:
            unit = min(unit, self.sub_block_bytes.value)
        return int(math.ceil(row / unit) * unit)


class TierDevices(Struct, frozen=True, forbid_unknown_fields=True):
    """Pieces of a tier in a host.

    Attributes:
        tier: its name.
        count: how many.
        capacity_gb: of one piece, where the tier leaves it open.
        tables_gb: what all together keep for tables and caches, where that is not all.
    """

    tier: str
    count: int = 1
    capacity_gb: float | None = None
    tables_gb: float | None = None


class Platform(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A kind of host.

    Attributes:
        name: as options call it.
        aliases: other names of it.
        note: what it stands for.
        base_watts: power of a host without its slow tiers.
        base_usd: price of a host without its slow tiers.
        fast: where tables lie that need no other tier, and caches.
        slow: other tiers.
        device: sheet of the device that computes.
        devices: how many of them a host has, each with its own requests.
        host: table of host overheads.
    """

    name: str
    base_watts: Figure
    fast: TierDevices
    device: str
    slow: tuple[TierDevices, ...] = ()
    devices: int = 1
    host: str = "v100"
    aliases: tuple[str, ...] = ()
    note: str = ""
    base_usd: Figure | None = None


T = TypeVar("T", Tier, Platform)


def read_tier(text: str | bytes, source: str) -> Tier:
    """Return the tier of a JSON text; raise ``IrgraphError`` (exit code 2) with what is wrong."""
    return _read(text, source, Tier)


def read_platform(text: str | bytes, source: str) -> Platform:
    """Return the platform of a JSON text; raise ``IrgraphError`` (exit code 2) likewise."""
    found = _read(text, source, Platform)
    for piece in (found.fast, *found.slow):
        sizes = (piece.count, piece.capacity_gb or 0, piece.tables_gb or 0)
        if piece.count < 1 or not all(0 <= size < MOST for size in sizes):
            raise _wrong(source, f"{piece.tier}: counts and capacities are positive numbers")
    if found.devices < 1:
        raise _wrong(source, "devices: at least one computes")
    return found


def _read(text: str | bytes, source: str, wanted: type[T]) -> T:
    try:
        raw = msgspec.json.decode(text)
        _check_names(raw, source, wanted)
        found = msgspec.convert(raw, wanted)
    except (ValueError, RecursionError) as error:
        what = "tier" if wanted is Tier else "platform"
        hint = f"`irgraph tiers` shows what ships; docs/tiers.md has the fields of a {what}"
        raise fail(f"not a {what}: {error}", SourceSpan(source), hint=hint, exit_code=2) from None
    for name in found.__struct_fields__:
        value = getattr(found, name)
        if isinstance(value, Figure):
            _check_figure(name, value, source)
    return found


def _check_names(raw: Any, source: str, wanted: type[T]) -> None:  # noqa: ANN401  (any JSON)
    known = wanted.__struct_fields__
    for name in raw if isinstance(raw, dict) else ():
        if name not in known:
            raise _wrong(source, f"no field is called {name!r}{suggestion(name, known)}")


POSITIVE = ("latency_us", "iops", "read_gbs", "granularity_bytes", "depth", "capacity_gb")
"""Figures that divide others, or without which nothing fits."""


def _check_figure(name: str, figure: Figure, source: str) -> None:
    least = 1e-9 if name in POSITIVE else 0.0
    if not least <= figure.value < MOST:
        raise _wrong(source, f"{name}: {figure.value:g} is not possible")
    if not figure.source.strip():
        raise _wrong(source, f"{name}: its source is missing")


def _wrong(source: str, message: str) -> Exception:
    return fail(message, SourceSpan(source), exit_code=2)
