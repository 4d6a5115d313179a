"""``irgraph devices`` and ``irgraph hosts``: what predictions can be made for."""

from __future__ import annotations

from irgraph.cli.common import JsonOption, console, write_json


def devices(json: JsonOption = False) -> None:
    """List the shipped device sheets, one for each variant of a card."""
    from costmodels.sheet import device_rows

    _print("devices", device_rows(), json)


def hosts(json: JsonOption = False) -> None:
    """List the shipped tables of host overheads."""
    from costmodels.host import host_rows

    _print("hosts", host_rows(), json)


def _print(title: str, rows: list[dict[str, str]], as_json: bool) -> None:
    if as_json:
        write_json(rows)
        return
    from rich.table import Table

    table = Table(*rows[0], title=title, title_justify="left")
    for row in rows:
        table.add_row(*row.values())
    console().print(table)
