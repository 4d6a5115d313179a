"""The page of the command line, from the commands themselves."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from typer.main import get_command

from irgraph.cli.discovery import PANELS, entries
from irgraph.cli.main import app

HEAD = """# The command line

What `irgraph COMMAND --help` says, of every command. Exit codes: 0 success; 1 the answer is no;
2 wrong usage; 3 usable after repairs; 4 unusable input.
"""


def page() -> str:
    """Return the page: a section a panel, a part a command, tables of arguments and options."""
    group: Any = get_command(app)
    parts = [HEAD]
    context = group.context_class(group, info_name="irgraph")
    for panel in PANELS:
        parts.append(f"\n## {panel.capitalize()}\n")
        names = [entry.name for entry in entries().values() if entry.panel == panel]
        for name in names:
            parts += _command(group.get_command(context, name), f"irgraph {name}", 3)
    return "\n".join(parts)


def _command(command: Any, path: str, level: int) -> Iterator[str]:  # noqa: ANN401  (click's)
    """Yield the lines about a command, and about those of its group."""
    context = command.context_class(command, info_name=path)
    yield f"\n{'#' * level} {path}\n"
    yield _escaped(re.sub(r"\n(?!\n)\s*", " ", command.help or "").replace("\b", ""))
    usage = " ".join(command.collect_usage_pieces(context))
    yield f"\n    {path} {usage}\n"
    rows = [row for one in command.get_params(context) if (row := _record(one, context))]
    if rows:
        yield "| option | what |\n|---|---|"
        for name, what in rows:
            yield f"| `{_line(name)}` | {_escaped(_line(what))} |"
    for name in command.list_commands(context) if hasattr(command, "list_commands") else ():
        yield from _command(command.get_command(context, name), f"{path} {name}", level + 1)


def _record(parameter: Any, context: Any) -> tuple[str, str] | None:  # noqa: ANN401  (click's)
    """Return a parameter's names and help; ``None`` for ``--help`` and what is hidden."""
    if parameter.name == "help":
        return None
    found: tuple[str, str] | None = parameter.get_help_record(context)
    return found


def _line(text: str) -> str:
    return " ".join(text.split())


def _escaped(text: str) -> str:
    """Return plain text as Markdown that shows it as it is; what is in backticks stays code."""
    parts = re.split(r"(`[^`]*`)", text)
    parts[::2] = [re.sub(r"([<>*_|\[\]])", r"\\\1", part) for part in parts[::2]]
    return "".join(parts)
