"""Looks up the curve of a collective: in measured tables if possible, else by NCCL's own model."""

from __future__ import annotations

import math
from functools import cache, lru_cache
from pathlib import Path

import msgspec

from costmodels.collectives.curve import CurveTable, Form
from costmodels.collectives.nccl import COLLECTIVES, Fabric, Ring, nccl_time
from irgraph.diagnostics import fail, suggestion
from irgraph.diagnostics.json_keys import refuse_duplicate_keys
from irgraph.diagnostics.units import BANDWIDTH, range_error
from irgraph.files import read_input

SUBSTITUTES = {
    "broadcast": ("reduce", "all_gather_base"),
    "reduce": ("all_gather_base",),
    "all_gather": ("all_gather_base",),
    "all_to_all": ("all_to_allv",),
}
"""Substitutes for collectives not measured on a platform: they use the same links."""

RANK_SCALING_ERROR = 0.20
"""Mean absolute relative error of a measured curve scaled to another number of ranks of one machine
by the ratio of NCCL's model, if both were measured (``irgraph evaluate collectives``)."""

MACHINE_SCALING_ERROR = 0.17
"""Mean absolute relative error of a curve scaled from one machine to two."""

MODEL_ERROR = 0.30
"""Mean absolute relative error of NCCL's model alone, on platforms without measurements."""

SIZES = tuple(2.0**power for power in range(9, 31))
"""Sizes in bytes of a table that is computed by NCCL's model."""

SUFFIX = ".json"


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A shipped curve, with the platform and ranks that it was measured on.

    ``local`` is the number of ranks on one machine, ``error`` the mean absolute relative error of
    leave-one-out predictions, ``largest`` the largest message in bytes (0 if it was not
    published), ``sizes`` and ``times`` its points; without points it is a line.
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
        points = CurveTable(self.sizes, self.times) if self.sizes else None
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

    It is ``2 (n - 1) / n`` for all-reduce, 1 for broadcast and reduce, else ``(n - 1) / n``.
    """
    if collective in ("broadcast", "reduce"):
        return 1.0
    return (2.0 if collective == "all_reduce" else 1.0) * (ranks - 1) / ranks


def platforms() -> tuple[str, ...]:
    """Return the names of the measured platforms."""
    return tuple(sorted(_fabrics()))


def fabric_of(name: str) -> Fabric:
    """Return the links of a platform, or the links in a ``.json`` file.

    Raises ``IrgraphError`` (exit code 2) for an unknown platform or an invalid file.
    """
    if name.endswith(SUFFIX):
        return _from_file(name)
    if name in _fabrics():
        return _fabrics()[name]
    names = ", ".join(platforms())
    message = (
        f"no collectives were measured on {name!r}{suggestion(name, platforms())}; known: {names}"
    )
    raise fail(message, hint="describe its links in a file: docs/costs.md", exit_code=2)


def find_curve(collective: str, ranks: int, platform: str = "v100", local: int = 0) -> Form:
    """Return the time of a collective among ``ranks`` on a platform, or on the fabric of a file.

    A measured curve takes precedence; else the nearest measured layout is scaled by the ratio of
    NCCL's own model; without any measurement the model is used alone. ``local`` ranks share a
    machine (0: all). Raises ``IrgraphError`` if there is no curve (``missing_curve_reason``).
    """
    reason = missing_curve_reason(collective, platform, several=0 < local < ranks)
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
    best = min(_measured_records(collective, fabric), key=distance, default=None)
    if best is None:
        times = tuple(nccl_time(collective, ring, size) for size in SIZES)
        source = f"NCCL's own model over {fabric.name}: nobody measured it"
        return Form(0.0, 0.0, MODEL_ERROR, source, 0.0, CurveTable(SIZES, times), measured=False)
    if (best.ranks, best.local) == (ranks, local) and best.collective in (
        collective,
        *SUBSTITUTES.get(collective, ())[:1],
    ):
        return best.form
    return scale_to_ranks(best, collective, ring)


def scale_to_ranks(best: Record, collective: str, ring: Ring) -> Form:
    """Return a measured curve scaled to other ranks by the ratio of NCCL's own model."""
    other = Ring(best.ranks, best.local, ring.fabric)
    sizes = best.sizes or SIZES
    times = tuple(
        best.form.time(size)
        * nccl_time(collective, ring, size)
        / nccl_time(best.collective, other, size)
        for size in sizes
    )
    same_machines = ring.machines == other.machines
    source = f"{best.source}, carried from {best.ranks} ranks by NCCL's own model"
    error = best.error + (RANK_SCALING_ERROR if same_machines else MACHINE_SCALING_ERROR)
    return Form(
        0.0, 0.0, error, source, best.largest, CurveTable(sizes, times), measured=same_machines
    )


def missing_curve_reason(collective: str, platform: str, *, several: bool = False) -> str:
    """Return the reason why a collective has no curve on a platform, ``""`` if it has one.

    ``several``: the ranks are on more than one machine. Raises ``IrgraphError`` if a file of links
    cannot be read.
    """
    if not platform.endswith(SUFFIX) and platform not in platforms():
        names = ", ".join(platforms())
        guess = suggestion(platform, platforms())
        return f"no collectives were measured on {platform!r}{guess}; known: {names}"
    fabric = fabric_of(platform)
    if collective not in COLLECTIVES:
        return f"nobody measured {collective} on {fabric.name}; known: {', '.join(COLLECTIVES)}"
    if several and not fabric.nic_gbs:
        return f"nobody says how fast the network between several machines of {fabric.name} is"
    return ""


def _measured_records(collective: str, fabric: Fabric) -> list[Record]:
    """Return the curves of a collective, or else of its first measured substitute."""
    platform_records = [
        record
        for record in _shipped_records()
        if record.platform == fabric.name
        or (record.platform == fabric.like and record.local == record.ranks)
    ]
    for name in (collective, *SUBSTITUTES.get(collective, ())):
        matches = [record for record in platform_records if record.collective == name]
        if matches:
            return matches
    return []


LINK_GBS, NIC_GBS = (1.0, 2000.0), (0.1, 2000.0)
"""Smallest and largest GB/s of links between cards, and of a card's share of the network."""


def _from_file(name: str) -> Fabric:
    try:
        return _read(name, Path(name).stat().st_mtime_ns)
    except OSError as error:
        raise fail(f"fabric: cannot read {name}: {error.strerror}", exit_code=2) from None


@lru_cache(8)
def _read(name: str, mtime_ns: int) -> Fabric:
    """Return the fabric in a file, cached by its modification time."""
    try:
        data = read_input(name)
        fabric = msgspec.json.decode(data, type=Fabric)
        refuse_duplicate_keys(data)
    except (OSError, ValueError, RecursionError) as error:
        hint = "its fields are in docs/costs.md"
        raise fail(f"fabric {name}: {error}", hint=hint, exit_code=2) from None
    reason = range_error("link_gbs", fabric.link_gbs, *LINK_GBS, BANDWIDTH)
    if fabric.nic_gbs:
        reason = reason or range_error("nic_gbs", fabric.nic_gbs, *NIC_GBS, BANDWIDTH)
    if reason:
        raise fail(f"fabric {name}: {reason}", exit_code=2)
    if fabric.like and fabric.like not in platforms():
        raise fail(f"fabric {name}: like: no platform is called {fabric.like!r}", exit_code=2)
    return msgspec.structs.replace(fabric, name=f"{fabric.name} ({name})")


@cache
def _fabrics() -> dict[str, Fabric]:
    file = Path(__file__).with_name("fabrics.json")
    return {f.name: f for f in msgspec.json.decode(file.read_bytes(), type=list[Fabric])}


@cache
def _shipped_records() -> tuple[Record, ...]:
    file = Path(__file__).with_name("fitted.json")
    return tuple(msgspec.json.decode(file.read_bytes(), type=list[Record]))
