"""Shared by plots: matplotlib if it is installed, and atomic writes."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from msgspec import Struct

from irgraph.diagnostics import SourceSpan, fail
from irgraph.files import write_atomic

DPI = 160


class Plot(Struct, frozen=True):
    """A figure that notebooks show.

    Attributes:
        figure: matplotlib's ``Figure``.
    """

    figure: Any

    def _repr_png_(self) -> bytes:
        """Return the figure as a notebook shows it."""
        data = io.BytesIO()
        self.figure.savefig(data, dpi=100, format="png", bbox_inches="tight")
        return data.getvalue()

    def save(self, path: str) -> None:
        """Write the figure to a file, of the type that its name ends with, whole or not at all."""
        save(self.figure, path)


BLUE, ORANGE, GREY = "#4878a8", "#d6803c", "#d9d9d9"


def matplotlib() -> Any:  # noqa: ANN401  (a module that is loaded here)
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
    """Refuse a plot that cannot be written, before the work starts.

    Raises ``IrgraphError`` (exit code 2) where matplotlib is missing, where it cannot write files
    of that type, or where the folder does not exist.
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
    """Write a figure to a file, whole or not at all."""
    check_plot(path)
    data = io.BytesIO()
    figure.savefig(data, dpi=DPI, format=Path(path).suffix.lower().removeprefix("."))
    write_atomic(path, data.getvalue())
