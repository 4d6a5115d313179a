"""Finding the curve of a collective among those that ship, for any number of ranks."""

from __future__ import annotations

import math
from functools import cache
from importlib import resources

import msgspec

from costmodels.collectives.curve import Form
from irgraph.text.diagnostics import fail, near

LIKE = {"broadcast": "reduce", "all_to_all": "all_to_allv", "all_gather": "all_gather_base"}
"""What stands in for a collective that nobody measured on a platform: it moves as much."""


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A curve that ships: a ``Form``'s figures, and what they were measured on.

    ``local`` is the number of ranks on one machine.
    """

    platform: str
    ranks: int
    local: int
    collective: str
    alpha: float
    per_byte: float
    per_root: float = 0.0
    error: float = 0.0
    source: str = ""


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
    if platform not in platforms():
        known = ", ".join(platforms())
        message = f"no collectives were measured on {platform!r}{near(platform, platforms())}"
        raise fail(message, hint=f"known: {known}", exit_code=2)
    found = [r for r in _shipped() if r.platform == platform]
    names = {r.collective for r in found}
    name = collective if collective in names else LIKE.get(collective, "")
    if name not in names:
        message = f"nobody measured {collective} on {platform}{near(collective, names)}"
        raise fail(message, hint=f"known: {', '.join(sorted(names))}", exit_code=2)
    if ranks < 2:
        return Form(0.0, 0.0, source="a single rank exchanges nothing")
    local = min(local or ranks, ranks)

    def distance(record: Record) -> tuple[float, float]:
        inside = abs(math.log(record.local / record.ranks) - math.log(local / ranks))
        return inside, abs(math.log(record.ranks / ranks))

    best = min((r for r in found if r.collective == name), key=distance)
    scale = traffic(collective, ranks) / traffic(name, best.ranks)
    source = (
        best.source if best.ranks == ranks else f"{best.source}, scaled from {best.ranks} ranks"
    )
    return Form(best.alpha, best.per_byte * scale, best.per_root * scale, best.error, source)


@cache
def _shipped() -> tuple[Record, ...]:
    file = resources.files("costmodels.collectives") / "fitted.json"
    return tuple(msgspec.json.decode(file.read_bytes(), type=list[Record]))
