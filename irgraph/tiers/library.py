"""Looks up tiers and platforms: shipped ones, those of installed packages, and files."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import TypeVar

from irgraph.diagnostics import fail, suggestion
from irgraph.files import read_text
from irgraph.plugins import plugins
from irgraph.tiers.tier import Platform, Tier, TierDevices, read_platform, read_tier

TIERS, PLATFORMS = "irgraph.tiers", "irgraph.platforms"
"""Entry points of these groups name packages whose folders hold more of them."""

T = TypeVar("T", Tier, Platform)


def list_tiers() -> tuple[str, ...]:
    """Return the names of the tiers that ship or are installed, sorted."""
    return tuple(sorted(_tiers()))


def list_platforms() -> tuple[str, ...]:
    """Return the names of the platforms that ship or are installed, sorted."""
    return tuple(sorted(_platforms()))


def load_tier(name: str) -> Tier:
    """Return a tier by name or alias, or a user's own from a ``.json`` file.

    Names are compared without regard to case, ``-``, ``_`` and spaces. Raises ``IrgraphError``
    (exit code 2) for an unknown name, with the nearest one, or an unusable file.
    """
    return _load(name, "tier", _tiers, read_tier)


def load_platform(name: str) -> Platform:
    """Return a platform, as ``load_tier`` returns a tier; its tiers are looked up, too."""
    found = _load(name, "platform", _platforms, read_platform)
    for piece in (found.fast, *found.slow):
        _check_size(found, piece, load_tier(piece.tier))
    if load_tier(found.fast.tier).kind in ("storage", "link"):
        message = f"{found.name}: fast memory is read as the device's own, and {found.fast.tier}"
        raise fail(f"{message} is not: it is a slower tier", exit_code=2)
    if found.fast.tables_gb == 0:
        raise fail(f"{found.name}: no fast memory is left for tables (tables_gb)", exit_code=2)
    return found


def _check_size(platform: Platform, piece: TierDevices, tier: Tier) -> None:
    """Refuse a piece of a tier of which nobody says how much it holds."""
    if piece.tables_gb is None and not piece.capacity_gb and tier.capacity_gb is None:
        message = f"{platform.name}: how much {tier.name} holds is not said"
        raise fail(message, hint="give capacity_gb or tables_gb beside its name", exit_code=2)


def _load(
    name: str,
    what: str,
    shipped: Callable[[], Mapping[str, T]],
    read: Callable[[str, str], T],
) -> T:
    if name.endswith(".json") or "/" in name:
        return read(read_text(name), name)
    known: dict[str, T] = {}
    names: list[str] = []
    for each in shipped().values():
        names += _names(each)
        known |= dict.fromkeys(map(_plain, _names(each)), each)
    if _plain(name) in known:
        return known[_plain(name)]
    message = f"no {what} is called {name!r}{suggestion(name, names)}"
    hint = f"{what}s: {', '.join(sorted(shipped()))}; a path to a .json file of your own works too"
    raise fail(message, hint=hint, exit_code=2)


@cache
def _tiers() -> dict[str, Tier]:
    return _found("devices", TIERS, "tier", read_tier)


@cache
def _platforms() -> dict[str, Platform]:
    return _found("platforms", PLATFORMS, "platform", read_platform)


def _found(folder: str, group: str, what: str, read: Callable[[str, str], T]) -> dict[str, T]:
    """Return the shipped ones and those of installed packages, by name."""
    files: Iterable[Path] = sorted((Path(__file__).parent / folder).glob("*.json"))
    found: list[T] = [read(path.read_text("utf-8"), path.name) for path in files]
    for plugin in plugins(group):
        taken = {_plain(name) for known in found for name in _names(known)}
        for path in plugin.files(".json"):
            added: T = read(path.read_text("utf-8"), str(path))
            plugin.refuse_duplicates(map(_plain, _names(added)), taken, what)
            found.append(added)
    return {_names(known)[0]: known for known in found}


def _names(one: Tier | Platform) -> tuple[str, ...]:
    """Return a tier's or a platform's own name, and the others."""
    return (one.name, *one.aliases)


def _plain(name: str) -> str:
    return re.sub(r"[-_ ]", "", name).lower()
