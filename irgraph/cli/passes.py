"""``irgraph passes``: the library of transformations."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from irgraph.cli.common import JsonOption, PassPathOption, console, say, write_json


def passes(
    name: Annotated[
        str | None, typer.Argument(help="Show the parameters and source of this pass.")
    ] = None,
    pass_path: PassPathOption = None,
    json: JsonOption = False,
) -> None:
    """List the passes, or show one: its parameters, where it lies, and its source."""
    from irgraph.manager import describe_passes

    folders = tuple(pass_path or ())
    if name is not None:
        _show(name, folders, json)
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
    for row in rows:
        if row["hides"]:
            say(f"note: {row['name']} is that of {row['source']}; it hides {row['hides']}")


def _show(name: str, folders: tuple[str, ...], as_json: bool) -> None:
    """Print one pass."""
    from irgraph.language import load_pass
    from irgraph.manager import find_pass, shadowed_passes

    file = find_pass(name, folders)
    declared = load_pass(name, folders)
    hidden = [str(path) for path in shadowed_passes(folders).get(name, ())]
    parameters = [
        {
            "name": parameter.name,
            "type": parameter.type,
            "default": None if parameter.default is None else str(parameter.default),
        }
        for parameter in declared.parameters
    ]
    if as_json:
        write_json(
            {
                "name": name,
                "description": declared.description,
                "parameters": parameters,
                "source": file.source,
                "hides": hidden,
                "text": file.text,
            }
        )
        return
    sys.stdout.write(f"# {declared.description}\n# from {file.source}\n")
    for parameter in parameters:
        default = parameter["default"]
        said = "must be given" if default is None else f"{default} by default"
        sys.stdout.write(f"# parameter {parameter['name']}: {parameter['type']}, {said}\n")
    for path in hidden:
        sys.stdout.write(f"# hides {path}: folders given by --pass-path go before the library\n")
    sys.stdout.write(file.text)
