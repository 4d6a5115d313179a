"""``irgraph passes``: the library of transformations."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from irgraph.cli.common import JsonOption, PassPathOption, console, write_json


def passes(
    name: Annotated[str | None, typer.Argument(help="Show the source of this pass.")] = None,
    pass_path: PassPathOption = None,
    json: JsonOption = False,
) -> None:
    """List the passes, or show one."""
    from irgraph.manager import describe_passes, find_pass

    folders = tuple(pass_path or ())
    if name is not None:
        sys.stdout.write(find_pass(name, folders).text)
        return
    rows = describe_passes(folders)
    if json:
        write_json(rows)
        return
    from rich.table import Table

    table = Table("pass", "parameters", "what it does", title="passes", title_justify="left")
    for row in rows:
        table.add_row(row["name"], row["parameters"], row["description"])
    console().print(table)
