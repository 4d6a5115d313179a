"""Looks up tiers and platforms: shipped, of installed packages, and from files."""

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

TIERS = "irgraph.tiers"
"""Group of entry points of packages whose folders contain tiers."""

PLATFORMS = "irgraph.platforms"
"""Group of entry points of packages whose folders contain platforms."""

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
    """Return a platform, as ``load_tier`` returns a tier; its tiers are validated as well."""
    platform = _load(name, "platform", _platforms, read_platform)
    for piece in (platform.fast, *platform.slow):
        _check_size(platform, piece, load_tier(piece.tier))
    if load_tier(platform.fast.tier).kind in ("storage", "link"):
        message = (
            f"{platform.name}: fast memory is read as the device's own, and {platform.fast.tier}"
        )
        raise fail(f"{message} is not: it is a slower tier", exit_code=2)
    if platform.fast.tables_gb == 0:
        raise fail(f"{platform.name}: no fast memory is left for tables (tables_gb)", exit_code=2)
    return platform


def _check_size(platform: Platform, piece: TierDevices, tier: Tier) -> None:
    """Raise ``IrgraphError`` (exit code 2) if neither file specifies the capacity of a tier."""
    if piece.tables_gb is None and not piece.capacity_gb and tier.capacity_gb is None:
        message = f"{platform.name}: how much {tier.name} holds is not said"
        raise fail(message, hint="give capacity_gb or tables_gb beside its name", exit_code=2)


def _load(
    name: str,
    kind: str,
    shipped: Callable[[], Mapping[str, T]],
    read: Callable[[str, str], T],
) -> T:
    if name.endswith(".json") or "/" in name:
        return read(read_text(name), name)
    by_name: dict[str, T] = {}
    names: list[str] = []
    for entry in shipped().values():
        names += _names(entry)
        by_name |= dict.fromkeys(map(_normalized_name, _names(entry)), entry)
    if _normalized_name(name) in by_name:
        return by_name[_normalized_name(name)]
    message = f"no {kind} is called {name!r}{suggestion(name, names)}"
    hint = f"{kind}s: {', '.join(sorted(shipped()))}; a path to a .json file of your own works too"
    raise fail(message, hint=hint, exit_code=2)


@cache
def _tiers() -> dict[str, Tier]:
    return _shipped_and_installed("devices", TIERS, "tier", read_tier)


@cache
def _platforms() -> dict[str, Platform]:
    return _shipped_and_installed("platforms", PLATFORMS, "platform", read_platform)


def _shipped_and_installed(
    folder: str, group: str, kind: str, read: Callable[[str, str], T]
) -> dict[str, T]:
    """Return the tiers or platforms that ship or are installed, by name."""
    files: Iterable[Path] = sorted((Path(__file__).parent / folder).glob("*.json"))
    entries: list[T] = [read(path.read_text("utf-8"), path.name) for path in files]
    for plugin in plugins(group):
        existing_names = {_normalized_name(name) for entry in entries for name in _names(entry)}
        for path in plugin.files(".json"):
            added: T = read(path.read_text("utf-8"), str(path))
            plugin.refuse_duplicates(map(_normalized_name, _names(added)), existing_names, kind)
            entries.append(added)
    return {_names(entry)[0]: entry for entry in entries}


def _names(entry: Tier | Platform) -> tuple[str, ...]:
    """Return the name of a tier or a platform, followed by its aliases."""
    return (entry.name, *entry.aliases)


def _normalized_name(name: str) -> str:
    return re.sub(r"[-_ ]", "", name).lower()
