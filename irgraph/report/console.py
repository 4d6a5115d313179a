"""Consoles for tables."""

from __future__ import annotations

from rich.console import Console


class PlainConsole(Console):
    """A console that leaves a closed pipe to the command line, which ends quietly."""

    def on_broken_pipe(self) -> None:
        """Raise what writing to a closed pipe raises anywhere else."""
        raise BrokenPipeError
