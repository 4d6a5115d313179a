"""Programs of torch.export."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping

from irgraph.capture.common.result import Capture
from irgraph.capture.common.source import ZIP, Source
from irgraph.capture.lower import FrontEnd

ARCHIVE_MARKS = ("/archive_format", "serialized_exported_program.json")
"""Suffixes of member names in archives of ``torch.export.save``; the latter before torch 2.8."""

DATA_FOLDER = b"/data/"
"""Part of the first member's name, to recognise a truncated archive."""


def recognises(source: Source) -> bool:
    """Recognise an archive of ``torch.export.save`` by its members."""
    if not source.start.startswith(ZIP):
        return False
    try:
        with zipfile.ZipFile(source.open()) as archive:
            return any(name.endswith(ARCHIVE_MARKS) for name in archive.namelist())
    except (zipfile.BadZipFile, ValueError, RuntimeError):
        return any(mark in source.start[:512] for mark in (DATA_FOLDER, ARCHIVE_MARKS[1].encode()))


def lower(
    source: Source,
    *,
    name: str | None = None,
    dims: Mapping[str, int] | None = None,
    trust: bool = False,
) -> Capture:
    """Lower the forward pass; ``dims`` are the sizes of its dynamic dimensions, by name."""
    from irgraph.capture.export import lower_export

    return lower_export(source, dims=dims, name=name, trust=trust)


FRONT_END = FrontEnd(
    "an exported program", recognises, lower, reason="it is a forward pass without measurements"
)
