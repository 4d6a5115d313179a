"""``irgraph devices`` and ``irgraph hosts``: what predictions can be made for."""

from __future__ import annotations

from irgraph.cli.common import JsonOption, console, write_json


def devices(json: JsonOption = False) -> None:
    """List the shipped device sheets, one for each variant of a card.

    Figures read datasheet / measured; --json gives whole sheets with their sources.
    """
    from costmodels.sheet import device_rows, device_values

    if json:
        write_json(device_values())
    else:
        _print("devices (datasheet / measured)", device_rows())


def hosts(json: JsonOption = False) -> None:
    """List the shipped tables of host overheads; --json gives whole tables."""
    from costmodels.host import host_rows, host_values

    if json:
        write_json(host_values())
    else:
        _print("hosts", host_rows())


def _print(title: str, rows: list[dict[str, str]]) -> None:
    from rich.table import Table

    first, *others = rows[0]
    table = Table(title=title, title_justify="left")
    table.add_column(first, no_wrap=True)
    for name in others:
        table.add_column(name)
    for row in rows:
        table.add_row(*row.values())
    console().print(table)
