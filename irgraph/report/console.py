"""Consoles for tables, and times in them."""

from __future__ import annotations

from rich.console import Console


class PlainConsole(Console):
    """A console that leaves a closed pipe to the command line, which ends quietly."""

    def on_broken_pipe(self) -> None:
        """Raise what writing to a closed pipe raises anywhere else."""
        raise BrokenPipeError


def time_text(microseconds: float) -> str:
    """Return a time with a unit that suits it."""
    if abs(microseconds) >= 1000:
        return f"{microseconds / 1000:.3f} ms"
    return f"{microseconds:.1f} us"
