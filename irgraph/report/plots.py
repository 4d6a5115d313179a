"""Shared functions of plots: the import of matplotlib, and atomic writes."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from msgspec import Struct

from irgraph.diagnostics import SourceSpan, fail
from irgraph.files import write_atomic

DPI = 160


class Plot(Struct, frozen=True):
    """A figure with a notebook representation.

    Attributes:
        figure: matplotlib's ``Figure``.
    """

    figure: Any

    def _repr_png_(self) -> bytes:
        """Return the figure as PNG for notebooks."""
        data = io.BytesIO()
        self.figure.savefig(data, dpi=100, format="png", bbox_inches="tight")
        return data.getvalue()

    def save(self, path: str) -> None:
        """Write the figure to a file atomically; the suffix of its name is the type."""
        save(self.figure, path)


BLUE, ORANGE, GREY = "#4878a8", "#d6803c", "#d9d9d9"


def matplotlib() -> Any:  # noqa: ANN401  (a module)
    """Return matplotlib; raise ``IrgraphError`` (exit code 2) if it is missing."""
    try:
        import matplotlib as mpl
        import matplotlib.figure
        import matplotlib.patches
    except ImportError:
        hint = "pip install 'irgraph[plot]'"
        raise fail("plots need matplotlib", hint=hint, exit_code=2) from None
    return mpl


def check_plot(path: str | None) -> None:
    """Check that a plot can be written, before the work starts.

    Raises ``IrgraphError`` (exit code 2) if matplotlib is missing or cannot write files of that
    type, or if the folder does not exist.
    """
    if path is None:
        return
    matplotlib()
    from matplotlib.backend_bases import FigureCanvasBase

    kinds = sorted(FigureCanvasBase.get_supported_filetypes())
    if Path(path).suffix.lower().removeprefix(".") not in kinds:
        message = f"--plot: cannot write files of type {Path(path).suffix!r}"
        raise fail(message, SourceSpan(path), hint=f"known: {', '.join(kinds)}", exit_code=2)
    if not Path(path).absolute().parent.is_dir():
        raise fail("--plot: the folder does not exist", SourceSpan(path), exit_code=2)


def save(figure: Any, path: str) -> None:  # noqa: ANN401  (matplotlib's Figure)
    """Write a figure to a file atomically."""
    check_plot(path)
    data = io.BytesIO()
    figure.savefig(data, dpi=DPI, format=Path(path).suffix.lower().removeprefix("."))
    write_atomic(path, data.getvalue())
