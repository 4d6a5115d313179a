"""Reports of objects, for programs and notebooks."""

from __future__ import annotations

from pathlib import Path

from irgraph.files import write_atomic
from irgraph.html.page import page_html
from irgraph.pages.difference import difference_page
from irgraph.pages.prediction import prediction_page
from irgraph.predict.difference import Difference
from irgraph.predict.prediction import Prediction
from irgraph.report.structure import group_changes


def write_report(
    found: Prediction | Difference, path: str | Path, *, measured: float | None = None
) -> None:
    """Write a prediction or a difference as one HTML file that opens without network.

    Args:
        found: the prediction or the difference.
        path: the file; it is written whole or not at all.
        measured: of a prediction, the measured step time in microseconds, if there is one.

    Raises:
        IrgraphError: the file cannot be written.
    """
    if isinstance(found, Difference):
        page = difference_page(found, group_changes(found.changes))
    else:
        page = prediction_page(found, measured=measured)
    write_atomic(path, page_html(page))
