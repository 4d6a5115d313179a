"""Consoles for tables, and times in them."""

from __future__ import annotations

from rich.console import Console


class PlainConsole(Console):
    """A console that leaves closed pipes to the command line's error handling."""

    def on_broken_pipe(self) -> None:
        """Raise ``BrokenPipeError`` instead of exiting."""
        raise BrokenPipeError


def time_text(microseconds: float) -> str:
    """Return a time with a suitable unit."""
    if abs(microseconds) >= 1000:
        return f"{microseconds / 1000:.3f} ms"
    return f"{microseconds:.1f} us"
