"""``irgraph passes``: the library of transformations."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from irgraph.cli.common import JsonOption, PassPathOption, console, print_error, write_json
from irgraph.diagnostics import visible_text

PANEL = "transform"

PRECEDENCE_NOTE = "the first folder with a name wins; those of --pass-path come before the library"
"""Reason why one file of a pass hides another."""


def passes(
    name: Annotated[
        str | None, typer.Argument(help="Show the parameters and source of this pass.")
    ] = None,
    space: Annotated[
        str | None,
        typer.Option(
            "--space", metavar="MODEL", help="List the legal parameter values on this model."
        ),
    ] = None,
    pass_path: PassPathOption = None,
    json: JsonOption = False,
) -> None:
    """List the passes, or show one: its parameters, its file and its source."""
    from irgraph.diagnostics import fail
    from irgraph.manage.run import describe_passes

    folders = tuple(pass_path or ())
    if space is not None:
        if name is None:
            raise fail("--space: name the pass", exit_code=2)
        _space(name, space, folders, json)
        return
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
            note = f"note: {row['name']} is from {row['source']}; it hides {row['hides']}"
            print_error(f"{note}: {PRECEDENCE_NOTE}")


def _space(name: str, model: str, folders: tuple[str, ...], as_json: bool) -> None:
    """Print the instances of a pass that change a model, one for each distinct result."""
    from irgraph.cli.common import read_model, show_progress
    from irgraph.manage.run import find_pass
    from irgraph.manage.space import space

    find_pass(name, folders)
    graph = read_model(model)
    with show_progress(f"trying {name}"):
        pass_space = space(name, graph, pass_path=folders)
    calls = [str(instance) for instance in pass_space.instances]
    if as_json:
        write_json(calls)
        return
    sys.stdout.write("".join(f"{call}\n" for call in calls))
    if not calls:
        print_error(f"{name} changes nothing in {model}")


def _show(name: str, folders: tuple[str, ...], as_json: bool) -> None:
    """Print one pass."""
    from irgraph.language import load_pass
    from irgraph.manage.run import find_pass, shadowed_passes

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
        default_text = "required" if default is None else f"{default} by default"
        sys.stdout.write(f"# parameter {parameter['name']}: {parameter['type']}, {default_text}\n")
    for path in hidden:
        sys.stdout.write(f"# hides {path}: {PRECEDENCE_NOTE}\n")
    sys.stdout.write(visible_text(file.text))
