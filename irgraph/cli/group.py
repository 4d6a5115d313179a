"""Looks up, imports and lists commands on demand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from irgraph.cli.discovery import PANELS, entries
from irgraph.cli.options import expand_options

if TYPE_CHECKING:
    from irgraph.cli.discovery import CommandEntry


class CommandGroup(TyperGroup):
    """The group of all commands; a command's file is imported when the command is looked up."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ANN401
        """Return the names of all commands, in the order of the help."""
        return list(entries())

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ANN401
        """Return a command, or None if there is none of that name."""
        entry = entries().get(cmd_name)
        return None if entry is None else _build_command(entry)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:  # noqa: ANN401
        """Return the command named by ``args``; suggest a similar name for an unknown one."""
        name = args[0]
        if not name.startswith("-") and name not in entries():
            from irgraph.diagnostics import fail, suggestion

            message = f"no command {name!r}{suggestion(name, entries())}"
            raise fail(message, hint=f"{ctx.command_path} --help", exit_code=2)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401
        """Write a section for each panel."""
        for panel in PANELS:
            rows = [(e.name, e.summary) for e in entries().values() if e.panel == panel]
            with formatter.section(panel.capitalize()):
                formatter.write_dl(rows)


def _build_command(entry: CommandEntry) -> Any:  # noqa: ANN401  (Typer's own kind of command)
    """Return the command that a file declares, or its group of commands, ``APP``."""
    module = entry.load()
    if hasattr(module, "APP"):
        return get_command(module.APP)
    function = getattr(module, entry.module.rpartition(".")[2])
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(entry.name, cls=getattr(module, "COMMAND", TyperCommand))(expand_options(function))
    return get_command(app)
