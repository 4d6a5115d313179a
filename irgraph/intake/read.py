"""Detects the kind of a file by its content, and reads it."""

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
"""Kinds of files that can be added to a database, for messages."""


def entries(
    path: str, provenance: Provenance | None = None, private: bool = False
) -> list[RecordEntry]:
    """Return the content of a file or folder as records for a database.

    Args:
        path: the file, or the folder of a recording.
        provenance: specified by the user; takes precedence over the file's own.
        private: include names of programs, files and people unchanged; by default only names on
            the allow lists of ``irgraph.anonymise`` are included.

    Raises:
        IrgraphError: the file cannot be read, or is of no kind that a database accepts.
    """
    text_filter = TextFilter(private)
    provenance = provenance or Provenance()
    if Path(path).is_dir():
        return recording.entries(path, text_filter, provenance)
    data = read_bytes(path)
    first_line = _json(data.partition(b"\n")[0])
    if isinstance(first_line, dict) and "seed" in first_line and "device" in first_line:
        return measurements.entries(path, text_filter, provenance)
    document = first_line if isinstance(first_line, dict) else _json(data)
    if isinstance(document, dict):
        if "T1" in document and "format" in document:
            return host_table.entries(path, text_filter, provenance)
        if "evaluation" in document:
            return comparisons.evaluation(path, data, text_filter, provenance)
        if comparisons.is_prediction(document):
            return comparisons.prediction(path, data, text_filter, provenance)
    raise fail("nothing that a database takes", SourceSpan(path), hint=f"it takes {ACCEPTED_FILES}")


def _json(data: bytes) -> object:
    """Return decoded JSON, ``None`` if the data are not JSON."""
    try:
        return msgspec.json.decode(data)
    except (ValueError, RecursionError):
        return None
