"""Telling a file by what it holds, and reading it."""

from __future__ import annotations

from pathlib import Path

import msgspec

from irgraph.database.entry import Provenance, RecordEntry
from irgraph.diagnostics import SourceSpan, fail
from irgraph.files import read_bytes
from irgraph.intake import comparisons, host_table, measurements, recording
from irgraph.intake.privacy import TextFilter

ACCEPTED_FILES = (
    "host tables (overheads -o), measurements (measure), folders of record, and what evaluate and "
    "predict print with --json"
)
"""What can be added."""


def entries(
    path: str, provenance: Provenance | None = None, private: bool = False
) -> list[RecordEntry]:
    """Return what a file or folder holds, as records for a database.

    Args:
        path: the file, or the folder of a recording.
        provenance: what the user says of it; goes before what the file says.
        private: take names of programs, files and people as they stand; otherwise only what is on
            the allow lists of ``irgraph.anonymise`` is taken.

    Raises:
        IrgraphError: the file cannot be read, or is of no kind that a database takes.
    """
    text_filter, stated = TextFilter(private), provenance or Provenance()
    if Path(path).is_dir():
        return recording.entries(path, text_filter, stated)
    data = read_bytes(path)
    first_line = _json(data.partition(b"\n")[0])
    if isinstance(first_line, dict) and "seed" in first_line and "device" in first_line:
        return measurements.entries(path, text_filter, stated)
    document = first_line if isinstance(first_line, dict) else _json(data)
    if isinstance(document, dict):
        if "T1" in document and "format" in document:
            return host_table.entries(path, text_filter, stated)
        if "evaluation" in document:
            return comparisons.evaluation(path, data, text_filter, stated)
        if comparisons.is_prediction(document):
            return comparisons.prediction(path, data, text_filter, stated)
    raise fail("nothing that a database takes", SourceSpan(path), hint=f"it takes {ACCEPTED_FILES}")


def _json(data: bytes) -> object:
    """Return decoded JSON, ``None`` for what is none."""
    try:
        return msgspec.json.decode(data)
    except (ValueError, RecursionError):
        return None
