"""Looks up the curve of a collective: measured tables first, NCCL's own model beyond them."""

from __future__ import annotations

import math
from functools import cache, lru_cache
from pathlib import Path

import msgspec

from costmodels.collectives.curve import Form, Table
from costmodels.collectives.nccl import KNOWN, Fabric, Ring, tuned
from irgraph.diagnostics import fail, suggestion

LIKE = {
    "broadcast": ("reduce", "all_gather_base"),
    "reduce": ("all_gather_base",),
    "all_gather": ("all_gather_base",),
    "all_to_all": ("all_to_allv",),
}
"""Substitutes for collectives not measured on a platform: they go the same ways."""

SCALED = 0.20
"""Mean absolute error of a measured curve carried to another number of ranks of one machine by the
ratio of NCCL's model, where both were measured (``irgraph evaluate collectives``)."""

ACROSS = 0.17
"""The same, from one machine to two."""

UNMEASURED = 0.30
"""The same of NCCL's model alone, on platforms whose tables it has not seen."""

SIZES = tuple(2.0**power for power in range(9, 31))
"""Bytes at which NCCL's model makes a table."""

SUFFIX = ".json"


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A curve that ships, and what it was measured on.

    ``local`` is the number of ranks on one machine, ``error`` the mean absolute relative error
    where each point was left out in turn, ``largest`` the largest message in bytes (0 where that
    was not published), ``sizes`` and ``times`` its points; without any it is a line.
    """

    platform: str
    ranks: int
    local: int
    collective: str
    source: str
    error: float
    alpha: float = 0.0
    per_byte: float = 0.0
    largest: float = 0.0
    sizes: tuple[float, ...] = ()
    times: tuple[float, ...] = ()

    @property
    def form(self) -> Form:
        """The curve."""
        points = Table(self.sizes, self.times) if self.sizes else None
        return Form(
            self.alpha,
            self.per_byte,
            error=self.error,
            source=self.source,
            largest=self.largest,
            points=points,
        )


def traffic(collective: str, ranks: int) -> float:
    """Return the share of a message that every link carries (bus over algorithm bandwidth).

    ``2 (n - 1) / n`` of it for all-reduce, ``(n - 1) / n`` for the others, 1 from or to one rank.
    """
    if collective in ("broadcast", "reduce"):
        return 1.0
    return (2.0 if collective == "all_reduce" else 1.0) * (ranks - 1) / ranks


def platforms() -> tuple[str, ...]:
    """Return the names of the platforms that were measured."""
    return tuple(sorted(_fabrics()))


def fabric_of(name: str) -> Fabric:
    """Return the links of a platform, or those that a file (``.json``) describes.

    Raises ``IrgraphError`` (exit code 2) for an unknown platform and for a file that is none.
    """
    if name.endswith(SUFFIX):
        return _from_file(name)
    if name in _fabrics():
        return _fabrics()[name]
    known = ", ".join(platforms())
    message = (
        f"no collectives were measured on {name!r}{suggestion(name, platforms())}; known: {known}"
    )
    raise fail(message, hint="describe its links in a file: docs/costs.md", exit_code=2)


def find_curve(collective: str, ranks: int, platform: str = "v100", local: int = 0) -> Form:
    """Return the time of a collective among ``ranks`` on a platform, or a file that describes one.

    What was measured goes first; else the measured layout that is nearest is carried over by the
    ratio of NCCL's own model; where nothing was measured that model stands alone. ``local`` ranks
    share a machine (0: all). Raises ``IrgraphError`` for what has no time (``lacking``).
    """
    reason = lacking(collective, platform, several=0 < local < ranks)
    if reason:
        raise fail(reason, exit_code=2)
    if ranks < 2:
        return Form(0.0, 0.0, source="a single rank exchanges nothing")
    return _curve(collective, ranks, min(local or ranks, ranks), fabric_of(platform))


def _curve(collective: str, ranks: int, local: int, fabric: Fabric) -> Form:
    def distance(record: Record) -> tuple[float, float]:
        inside = abs(math.log(record.local / record.ranks) - math.log(local / ranks))
        return inside, abs(math.log(record.ranks / ranks))

    ring = Ring(ranks, local, fabric)
    best = min(_measured(collective, fabric), key=distance, default=None)
    if best is None:
        times = tuple(tuned(collective, ring, size) for size in SIZES)
        source = f"NCCL's own model over {fabric.name}: nobody measured it"
        return Form(0.0, 0.0, UNMEASURED, source, 0.0, Table(SIZES, times), measured=False)
    if (best.ranks, best.local) == (ranks, local) and best.collective in (
        collective,
        *LIKE.get(collective, ())[:1],
    ):
        return best.form
    return carried(best, collective, ring)


def carried(best: Record, collective: str, ring: Ring) -> Form:
    """Return a measured curve carried to other ranks by the ratio of NCCL's own model."""
    other = Ring(best.ranks, best.local, ring.fabric)
    sizes = best.sizes or SIZES
    times = tuple(
        best.form.time(size) * tuned(collective, ring, size) / tuned(best.collective, other, size)
        for size in sizes
    )
    alike = ring.machines == other.machines
    source = f"{best.source}, carried from {best.ranks} ranks by NCCL's own model"
    error = best.error + (SCALED if alike else ACROSS)
    return Form(0.0, 0.0, error, source, best.largest, Table(sizes, times), measured=alike)


def lacking(collective: str, platform: str, *, several: bool = False) -> str:
    """Return why a collective has no curve on a platform, ``""`` if it has one.

    ``several`` asks for ranks on more than one machine. Raises ``IrgraphError`` for a file of
    links that cannot be read.
    """
    if not platform.endswith(SUFFIX) and platform not in platforms():
        known = ", ".join(platforms())
        guess = suggestion(platform, platforms())
        return f"no collectives were measured on {platform!r}{guess}; known: {known}"
    fabric = fabric_of(platform)
    if collective not in KNOWN:
        return f"nobody measured {collective} on {fabric.name}; known: {', '.join(KNOWN)}"
    if several and not fabric.nic_gbs:
        return f"nobody says how fast the network between several machines of {fabric.name} is"
    return ""


def _measured(collective: str, fabric: Fabric) -> list[Record]:
    """Return the curves of a collective, or else of one that goes the same ways."""
    mine = [
        record
        for record in _shipped()
        if record.platform == fabric.name
        or (record.platform == fabric.like and record.local == record.ranks)
    ]
    for name in (collective, *LIKE.get(collective, ())):
        found = [record for record in mine if record.collective == name]
        if found:
            return found
    return []


SLOWEST, FASTEST = 1e-3, 1e6
"""GB/s of links: no figure of a file is beyond these."""


def _from_file(name: str) -> Fabric:
    try:
        return _read(name, Path(name).stat().st_mtime_ns)
    except OSError as error:
        raise fail(f"fabric: cannot read {name}: {error.strerror}", exit_code=2) from None


@lru_cache(8)
def _read(name: str, changed: int) -> Fabric:
    """Return what a file describes, as it was when it last changed."""
    try:
        fabric = msgspec.json.decode(Path(name).read_bytes(), type=Fabric)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        hint = "its fields are in docs/costs.md"
        raise fail(f"fabric {name}: {error}", hint=hint, exit_code=2) from None
    links = fabric.link_gbs, fabric.nic_gbs or SLOWEST
    if not all(SLOWEST <= speed <= FASTEST for speed in links):
        message = f"link_gbs, and nic_gbs if not 0, lie between {SLOWEST:g} and {FASTEST:,.0f}"
        raise fail(f"fabric {name}: {message}", exit_code=2)
    if fabric.like and fabric.like not in platforms():
        raise fail(f"fabric {name}: like: no platform is called {fabric.like!r}", exit_code=2)
    return msgspec.structs.replace(fabric, name=f"{fabric.name} ({name})")


@cache
def _fabrics() -> dict[str, Fabric]:
    file = Path(__file__).with_name("fabrics.json")
    return {f.name: f for f in msgspec.json.decode(file.read_bytes(), type=list[Fabric])}


@cache
def _shipped() -> tuple[Record, ...]:
    file = Path(__file__).with_name("fitted.json")
    return tuple(msgspec.json.decode(file.read_bytes(), type=list[Record]))
