"""Tiers and platforms as files: figures, each with its source."""

from __future__ import annotations

import math
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import Struct

from irgraph.diagnostics import SourceSpan, fail, suggestion
from irgraph.diagnostics.json_keys import refuse_duplicate_keys

PIPE, DIES = "pipe", "dies"
"""Queueing of reads: in one queue of a controller that starts them at a steady rate, or in a queue
of the die with their page."""

MAX_FIGURE = 1e18
"""Upper bound of the figures of a tier, in their units."""


class SourcedFigure(Struct, frozen=True, forbid_unknown_fields=True):
    """A number and its source.

    Attributes:
        value: in the unit at the end of the field's name.
        source: its publication, such as a datasheet or a review.
    """

    value: float
    source: str


class Tier(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One kind of memory or storage for tables or rows of them.

    Attributes:
        name: in statements and options.
        aliases: its other names.
        note: a description of the hardware, if the name is ambiguous.
        kind: memory of the ``device`` that computes; ``memory`` of the host, from where rows are
            copied; ``link`` over which kernels read memory of the host row by row; ``storage``.
        queueing: ``pipe`` or ``dies``.
        capacity_gb: capacity of one device in 1e9 bytes; ``None`` if platforms specify it.
        latency_us: of a single read, microseconds.
        iops: maximum random reads per second; ``None`` if only bandwidth limits them.
        read_gbs: maximum read bandwidth in 1e9 bytes per second.
        write_gbs: maximum write bandwidth in 1e9 bytes per second.
        granularity_bytes: the smallest unit of a read.
        sub_block_bytes: the smallest unit that crosses the link if a read requests part of a
            block; ``None`` if it cannot.
        depth: number of reads that software has in flight.
        idle_watts, active_watts: power of one device, without reads and at its best rate.
        price_usd: of one device.
        dwpd: drive writes per day: capacities that may be written each day of its warranty.
        error: half of the 90 % interval of times of reads, as a share.
    """

    name: str
    kind: Literal["device", "memory", "link", "storage"]
    queueing: Literal["pipe", "dies"]
    latency_us: SourcedFigure
    read_gbs: SourcedFigure
    granularity_bytes: SourcedFigure
    depth: SourcedFigure
    error: SourcedFigure
    aliases: tuple[str, ...] = ()
    note: str = ""
    capacity_gb: SourcedFigure | None = None
    iops: SourcedFigure | None = None
    write_gbs: SourcedFigure | None = None
    sub_block_bytes: SourcedFigure | None = None
    idle_watts: SourcedFigure | None = None
    active_watts: SourcedFigure | None = None
    price_usd: SourcedFigure | None = None
    dwpd: SourcedFigure | None = None

    @property
    def rate(self) -> float:
        """Maximum number of random reads of one unit per second."""
        by_bytes = 1e9 * self.read_gbs.value / self.granularity_bytes.value
        return by_bytes if self.iops is None else min(self.iops.value, by_bytes)

    @property
    def dies(self) -> float:
        """Number of parallel servers: by Little's law, the rate times the latency."""
        return max(self.rate * self.latency_us.value / 1e6, 1.0)

    def units(self, row: int) -> int:
        """Return the number of units of an aligned row of ``row`` bytes."""
        return math.ceil(row / self.granularity_bytes.value)

    def transferred(self, row: int, sub_block: bool = False) -> int:
        """Return the bytes that cross the link for one row."""
        unit = self.granularity_bytes.value
        if sub_block and self.sub_block_bytes is not None:
            unit = min(unit, self.sub_block_bytes.value)
        return int(math.ceil(row / unit) * unit)


class TierDevices(Struct, frozen=True, forbid_unknown_fields=True):
    """Devices of a tier in a host.

    Attributes:
        tier: its name.
        count: number of devices.
        capacity_gb: of one device, if the tier does not specify it.
        tables_gb: total capacity for tables and caches, if less than the capacity of all devices.
    """

    tier: str
    count: int = 1
    capacity_gb: float | None = None
    tables_gb: float | None = None


class Platform(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A kind of host.

    Attributes:
        name: in options.
        aliases: its other names.
        note: a description of the hardware.
        base_watts: power of a host without its slow tiers.
        base_usd: price of a host without its slow tiers.
        fast: fast memory, for tables that are on no other tier, and for caches.
        slow: other tiers.
        device: sheet of the device that computes.
        devices: number of devices of a host, each with its own requests.
        host: table of host overheads.
    """

    name: str
    base_watts: SourcedFigure
    fast: TierDevices
    device: str
    slow: tuple[TierDevices, ...] = ()
    devices: int = 1
    host: str = "default"
    aliases: tuple[str, ...] = ()
    note: str = ""
    base_usd: SourcedFigure | None = None


T = TypeVar("T", Tier, Platform)


def read_tier(text: str | bytes, source: str) -> Tier:
    """Return the tier of a JSON text; raise ``IrgraphError`` (exit code 2) if it is invalid."""
    return _read(text, source, Tier)


def read_platform(text: str | bytes, source: str) -> Platform:
    """Return the platform of a JSON text; raise ``IrgraphError`` (exit code 2) if it is invalid."""
    platform = _read(text, source, Platform)
    for piece in (platform.fast, *platform.slow):
        sizes = (piece.count, piece.capacity_gb or 0, piece.tables_gb or 0)
        if piece.count < 1 or not all(0 <= size < MAX_FIGURE for size in sizes):
            raise _file_error(source, f"{piece.tier}: counts and capacities are positive numbers")
    if platform.devices < 1:
        raise _file_error(source, "devices: at least one computes")
    return platform


def _read(text: str | bytes, source: str, record_type: type[T]) -> T:
    try:
        raw = msgspec.json.decode(text)
        refuse_duplicate_keys(text)
        _check_names(raw, source, record_type)
        record = msgspec.convert(raw, record_type)
    except (ValueError, RecursionError) as error:
        kind = "tier" if record_type is Tier else "platform"
        hint = f"`irgraph tiers` shows what ships; docs/tiers.md has the fields of a {kind}"
        raise fail(f"not a {kind}: {error}", SourceSpan(source), hint=hint, exit_code=2) from None
    for name in record.__struct_fields__:
        value = getattr(record, name)
        if isinstance(value, SourcedFigure):
            _check_figure(name, value, source)
    return record


def _check_names(raw: Any, source: str, record_type: type[T]) -> None:  # noqa: ANN401  (any JSON)
    fields = record_type.__struct_fields__
    for name in raw if isinstance(raw, dict) else ():
        if name not in fields:
            raise _file_error(source, f"no field is called {name!r}{suggestion(name, fields)}")


POSITIVE = ("latency_us", "iops", "read_gbs", "granularity_bytes", "depth", "capacity_gb")
"""Figures that must be larger than 0: divisors of others, and the capacity."""


def _check_figure(name: str, figure: SourcedFigure, source: str) -> None:
    minimum = 1e-9 if name in POSITIVE else 0.0
    if not minimum <= figure.value < MAX_FIGURE:
        raise _file_error(source, f"{name}: {figure.value:g} is not possible")
    if not figure.source.strip():
        raise _file_error(source, f"{name}: its source is missing")


def _file_error(source: str, message: str) -> Exception:
    return fail(message, SourceSpan(source), exit_code=2)
