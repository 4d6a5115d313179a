"""``irgraph tiers``: tiers of memory and platforms, with the source of each figure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from irgraph.cli.common import JsonOption, print_listing, write_json

if TYPE_CHECKING:
    from irgraph.tiers.tier import Platform, SourcedFigure, Tier

PANEL = "cost models"


def tiers(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[TIER]",
            help="Show this tier (a name or a file): its figures and their sources.",
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """List memory tiers and platforms for embedding tables, or show one tier."""
    from msgspec import to_builtins

    from irgraph.tiers.library import list_platforms, list_tiers, load_platform, load_tier

    if name is not None:
        requested_tier = load_tier(name)
        if json:
            write_json(to_builtins(requested_tier))
        else:
            print_listing(requested_tier.name, _figures(requested_tier))
        return
    all_tiers = [load_tier(tier) for tier in list_tiers()]
    hosts = [load_platform(platform) for platform in list_platforms()]
    if json:
        write_json({"tiers": to_builtins(all_tiers), "platforms": to_builtins(hosts)})
        return
    print_listing("tiers", [_row(tier) for tier in all_tiers])
    print_listing("platforms", [_platform(host) for host in hosts])


def _figures(tier: Tier) -> list[dict[str, str]]:
    """Return a row for each figure of a tier."""
    from irgraph.tiers.tier import SourcedFigure

    rows = []
    for field in tier.__struct_fields__:
        value = getattr(tier, field)
        if isinstance(value, SourcedFigure):
            rows.append({"figure": field, "value": f"{value.value:g}", "source": value.source})
        elif value is None:
            rows.append({"figure": field, "value": "unknown", "source": ""})
    return rows


def _row(tier: Tier) -> dict[str, str]:
    return {
        "name": tier.name,
        "aliases": ", ".join(tier.aliases),
        "kind": tier.kind,
        "GB": _figure_text(tier.capacity_gb),
        "latency us": _figure_text(tier.latency_us),
        "reads/s": f"{tier.rate:.3g}",
        "read GB/s": _figure_text(tier.read_gbs),
        "unit bytes": _figure_text(tier.granularity_bytes),
        "W idle / active": f"{_figure_text(tier.idle_watts)} / {_figure_text(tier.active_watts)}",
        "$": _figure_text(tier.price_usd),
        "DWPD": _figure_text(tier.dwpd),
    }


def _figure_text(figure: SourcedFigure | None) -> str:
    return "-" if figure is None else f"{figure.value:g}"


def _platform(host: Platform) -> dict[str, str]:
    slow = ", ".join(f"{piece.count} x {piece.tier}" for piece in host.slow)
    return {
        "name": host.name,
        "device": f"{host.devices} x {host.device}",
        "fast": f"{host.fast.count} x {host.fast.tier}",
        "slow": slow or "-",
        "W": f"{host.base_watts.value:g}",
        "note": host.note,
    }
