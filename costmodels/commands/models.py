"""``irgraph models``: the trained kernel models, their errors and their devices."""

from __future__ import annotations

from irgraph.cli.common import JsonOption, console, write_json

PANEL = "cost models"


def models(json: JsonOption = False) -> None:
    """List the trained models of kernel families with their held-out errors."""
    from costmodels.learned.catalog import model_rows

    rows = model_rows()
    if json:
        write_json(rows)
        return
    from rich.table import Table

    names = list(rows[0])[:-1]
    table = Table(*names, title="trained models", title_justify="left", caption=CAPTION)
    for row in rows:
        table.add_row(*(str(row[name]) for name in names))
    console().print(table)


CAPTION = (
    "GMAE on held-out measurements, launch included; long: from 0.1 ms on. unseen: half a 90 % "
    "interval on a device that training has not seen."
)
"""Explanation of the columns."""
