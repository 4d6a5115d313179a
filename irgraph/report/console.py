"""Console for tables, and the format of times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Console

from irgraph.diagnostics import visible_text

if TYPE_CHECKING:
    from rich.text import Text


class PlainConsole(Console):
    """A console that shows verbatim text, and raises ``BrokenPipeError`` for closed pipes.

    Names from files are neither markup nor emoji nor terminal control sequences.
    """

    def __init__(self, **options: Any) -> None:  # noqa: ANN401  (rich's options)
        super().__init__(markup=False, emoji=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:  # noqa: ANN401
        """Return the text of a cell or title with control characters spelt out."""
        return super().render_str(visible_text(text), **options)

    def on_broken_pipe(self) -> None:
        """Raise ``BrokenPipeError`` instead of exiting."""
        raise BrokenPipeError


def time_text(microseconds: float) -> str:
    """Return a time with a suitable unit."""
    if abs(microseconds) >= 1000:
        return f"{microseconds / 1000:.3f} ms"
    return f"{microseconds:.1f} us"
