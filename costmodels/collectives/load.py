"""Looks up the shipped curve of a collective, for any number of ranks."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path

import msgspec

from costmodels.collectives.curve import Form, Table
from irgraph.diagnostics import fail, near

LIKE = {"broadcast": "reduce", "all_to_all": "all_to_allv", "all_gather": "all_gather_base"}
"""Substitutes for collectives not measured on a platform: they move as much data."""

SCALED = 0.21
"""Mean absolute error of curves scaled from one number of ranks to another, where both were
measured: 8 to 12 % between two, four and eight A100 of one machine, 19 % (all-to-all) and 92 %
(all-reduce) from four to eight V100, whose links form another network."""


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A curve that ships: a ``Form``'s figures, and what they were measured on.

    ``local`` is the number of ranks on one machine, ``largest`` the largest message in bytes (0
    where that was not published), ``sizes`` and ``times`` its points, if they go before the form.
    """

    platform: str
    ranks: int
    local: int
    collective: str
    alpha: float
    per_byte: float
    per_root: float = 0.0
    error: float = 0.0
    largest: float = 0.0
    source: str = ""
    sizes: tuple[float, ...] = ()
    times: tuple[float, ...] = ()


def traffic(collective: str, ranks: int) -> float:
    """Return the share of a message that every link carries (bus over algorithm bandwidth).

    ``2 (n - 1) / n`` of it for all-reduce, ``(n - 1) / n`` for the others, 1 from or to one rank.
    """
    if collective in ("broadcast", "reduce"):
        return 1.0
    return (2.0 if collective == "all_reduce" else 1.0) * (ranks - 1) / ranks


def platforms() -> tuple[str, ...]:
    """Return the names of the platforms that were measured."""
    return tuple(sorted({record.platform for record in _shipped()}))


def find_curve(collective: str, ranks: int, platform: str = "v100", local: int = 0) -> Form:
    """Return the time of a collective among ``ranks`` on a platform.

    The measured number of ranks that is nearest (as a ratio) is taken, its bandwidth scaled by
    what each link carries. ``local`` ranks share a machine (0: all). Raises ``IrgraphError`` for
    a platform or a collective that nobody measured.
    """
    reason = lacking(collective, platform, several=0 < local < ranks)
    if reason:
        raise fail(reason, exit_code=2)
    if ranks < 2:
        return Form(0.0, 0.0, source="a single rank exchanges nothing")
    local = min(local or ranks, ranks)

    def distance(record: Record) -> tuple[float, float]:
        inside = abs(math.log(record.local / record.ranks) - math.log(local / ranks))
        return inside, abs(math.log(record.ranks / ranks))

    best = min(_measured(collective, platform), key=distance)
    scale = traffic(collective, ranks) / traffic(best.collective, best.ranks)
    own = (best.ranks, best.local) == (ranks, local)
    source = best.source if own else f"{best.source}, scaled from {best.ranks} ranks"
    error = best.error if own else best.error + SCALED
    slopes = best.per_byte * scale, best.per_root * scale
    points = Table(best.sizes, best.times) if own and best.sizes else None
    return Form(best.alpha, *slopes, error, source, best.largest, points)


def lacking(collective: str, platform: str, *, several: bool = False) -> str:
    """Return why a collective has no curve on a platform, ``""`` if it has one.

    ``several`` asks for ranks on more than one machine.
    """
    if platform not in platforms():
        known = ", ".join(platforms())
        guess = near(platform, platforms())
        return f"no collectives were measured on {platform!r}{guess}; known: {known}"
    found = _measured(collective, platform)
    names = sorted({r.collective for r in _shipped() if r.platform == platform})
    if not found:
        return f"nobody measured {collective} on {platform}; known: {', '.join(names)}"
    if several and all(r.local == r.ranks for r in found):
        return f"nobody measured {collective} between several machines of {platform}"
    return ""


def _measured(collective: str, platform: str) -> list[Record]:
    """Return the curves of a collective, or else of one that moves as much."""
    mine = [r for r in _shipped() if r.platform == platform]
    own = [r for r in mine if r.collective == collective]
    return own or [r for r in mine if r.collective == LIKE.get(collective)]


@cache
def _shipped() -> tuple[Record, ...]:
    file = Path(__file__).with_name("fitted.json")
    return tuple(msgspec.json.decode(file.read_bytes(), type=list[Record]))
