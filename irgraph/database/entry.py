"""Entries to add to a database: a record, its provenance, and its figures as rows."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from msgspec import Struct, field

Row: TypeAlias = Mapping[str, Any]
"""Figures by column."""


class Provenance(Struct, frozen=True):
    """Source of figures; unknown fields are ``""`` or 0.

    Attributes:
        by: person or team that measured.
        card: the driver's name of the card, or the kind of processor.
        driver: version of the driver.
        software: versions of torch and CUDA.
        clock_mhz: clock of the card during the measurement.
        source: anything else, such as a file or a publication.
    """

    by: str = ""
    card: str = ""
    driver: str = ""
    software: str = ""
    clock_mhz: float = 0.0
    source: str = ""


class RecordEntry(Struct, frozen=True):
    """A record to add.

    Attributes:
        kind: one of ``tables.KINDS``.
        content: fields of the record other than its rows, as plain values; equal contents of a kind
            are one record.
        rows: figures of the record; equal rows of a record are one row.
        provenance: source of the figures.
        omissions: skipped parts of the file with the reasons, as sentences.
    """

    kind: str
    content: Mapping[str, Any]
    rows: Sequence[Row] = ()
    provenance: Provenance = field(default_factory=Provenance)
    omissions: Sequence[str] = ()

    @property
    def hash(self) -> str:
        """The SHA-256 of kind and content: 64 hexadecimal digits."""
        return content_hash([self.kind, self.content])


def canonical(value: object) -> str:
    """Return plain values as JSON in one spelling: sorted keys, ASCII, no blanks.

    Raises ``ValueError`` if a number is not finite.
    """
    return json.dumps(
        value, sort_keys=True, ensure_ascii=True, separators=(",", ":"), allow_nan=False
    )


def content_hash(value: object) -> str:
    """Return the SHA-256 of plain values in their canonical spelling, 64 hexadecimal digits."""
    return hashlib.sha256(canonical(value).encode("ascii")).hexdigest()


def record_checksum(record: Mapping[str, Any], row_hashes: Iterable[str]) -> str:
    """Return the SHA-256 of a record's hash, name, time, provenance and row hashes.

    Args:
        record: columns of the record, or more.
        row_hashes: hashes of its rows, in any order.
    """
    columns = {name: record[name] for name in CHECKED_COLUMNS}
    columns["clock_mhz"] = float(columns["clock_mhz"])  # an integer in files written by hand
    return content_hash([columns, sorted(row_hashes)])


CHECKED_COLUMNS = ("hash", "name", "added", *Provenance.__struct_fields__)
"""Columns of a record that its checksum covers; ``hash`` covers its kind and content."""
