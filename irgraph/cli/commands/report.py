"""``irgraph report``: the result of another command as one HTML file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from irgraph.cli.common import print_error, writable_path
from irgraph.cli.discovery import CommandEntry, entries

PANEL = "predict"


class ReportCommand(TyperCommand):
    """A command whose first argument starts the command line of another command."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401  (Typer's signature)
        super().__init__(*args, **kwargs)
        self.allow_interspersed_args = False


COMMAND = ReportCommand

_HTML = re.compile(r"^    html: HtmlOption", re.MULTILINE)
"""Pattern of the option of commands that write reports."""


def report(
    words: Annotated[
        list[str], typer.Argument(metavar="COMMAND...", help="A command and its arguments.")
    ],
    output: Annotated[
        str,
        typer.Option(
            "-o", "--output", metavar="FILE", help="Write the report here.", callback=writable_path
        ),
    ] = "report.html",
) -> None:
    """Write a command's result as one HTML file: irgraph report predict model.ir.

    The same as the command with --html FILE; it opens in a browser, without network.
    """
    from irgraph.cli.main import main
    from irgraph.diagnostics import fail, suggestion

    name = words[0]
    names = [entry.name for entry in commands_with_reports()]
    if name not in names:
        hint = f"commands with reports: {', '.join(names)}"
        raise fail(f"no report of {name!r}{suggestion(name, names)}", hint=hint, exit_code=2)
    path = Path(output)
    previous_mtime = path.stat().st_mtime_ns if path.exists() else -1
    code = main([*words, "--html", output])
    if path.exists() and path.stat().st_mtime_ns != previous_mtime:
        print_error(f"the report: {output}")
    raise typer.Exit(code)


def commands_with_reports() -> Iterator[CommandEntry]:
    """Yield the commands that write reports, by their source text, without importing them."""
    for entry in entries().values():
        spec = find_spec(entry.module)
        source = Path(spec.origin).read_text(encoding="utf-8") if spec and spec.origin else ""
        if _HTML.search(source):
            yield entry
