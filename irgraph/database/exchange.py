"""Export of a database as JSON lines, and import of such a file into another one.

The first line is ``{"irgraph_database": 2}``; each other line is a record with its rows. The
hashes of a record are recomputed on import: a modified file is refused. Format 1 lacks the checksum
of names and provenance.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import asdict

from irgraph.database.access import Database
from irgraph.database.entry import (
    Provenance,
    RecordEntry,
    canonical,
    content_hash,
    record_checksum,
)
from irgraph.database.integrity import check_record, record_content, row_values
from irgraph.database.store import MAX_NAME_LENGTH, AddResult, add_record
from irgraph.diagnostics import SourceSpan, fail
from irgraph.diagnostics.json_keys import refuse_duplicate_keys
from irgraph.files import read_text

FORMAT = 2
"""Version of the file's format."""

FORMATS = (1, FORMAT)
"""Versions that can be imported."""


class _Line(Struct, frozen=True, kw_only=True):
    kind: str
    name: Annotated[str, Meta(min_length=1, max_length=MAX_NAME_LENGTH)]
    hash: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]
    added: Annotated[str, Meta(max_length=32)]
    provenance: Provenance
    content: dict[str, Any]
    rows: list[dict[str, Any]]
    rows_hash: str
    checksum: str = ""


class ImportResult(Struct, frozen=True):
    """Result of importing a file.

    Attributes:
        results: result of each record.
        has_checksums: whether the file has checksums of names and provenance (format 2).
    """

    results: list[AddResult]
    has_checksums: bool


def export_lines(database: Database) -> Iterator[str]:
    """Yield the lines of an export, in the order of the hashes: equal contents, equal lines.

    Raises ``IrgraphError`` if the database cannot be read.
    """
    from sqlalchemy import select

    from irgraph.database.tables import KINDS, RECORDS

    yield json.dumps({"irgraph_database": FORMAT}) + "\n"
    fields = Provenance.__struct_fields__
    with database.read_connection() as connection:
        for record in (
            connection.execute(RECORDS.select().order_by(RECORDS.c.hash)).mappings().all()
        ):
            content = record_content(dict(record), database)
            table = KINDS[record["kind"]]
            rows = select(table.c.row, table.c.hash).where(table.c.record == record["id"])
            texts = connection.execute(rows.order_by(table.c.position, table.c.hash)).all()
            check_record(dict(record), [digits for _, digits in texts], database)
            decoded_rows = [row_values(*text, record["name"], database) for text in texts]
            line = {
                **{name: record[name] for name in ("kind", "name", "hash", "added")},
                "provenance": {name: record[name] for name in fields},
                "content": content,
                "rows": decoded_rows,
                "rows_hash": content_hash(decoded_rows),
                "checksum": record["checksum"],
            }
            yield canonical(line) + "\n"


def import_file(database: Database, path: str) -> ImportResult:
    """Add all records of a file in one transaction; existing records are unchanged.

    Raises ``IrgraphError`` with the line if the file is no export or was modified, or if a name
    belongs to another record.
    """
    entries = list(_read(path))
    results: list[AddResult] = []
    with database.write_transaction() as connection:
        for line, entry in entries:
            results.append(add_record(connection, entry, line.name, line.added, database))
    return ImportResult(results, all(line.checksum for line, _ in entries))


def _read(path: str) -> Iterator[tuple[_Line, RecordEntry]]:
    """Yield the decoded lines of an export with their records."""
    from irgraph.database.tables import KINDS

    lines = read_text(path).splitlines()
    place = SourceSpan(path, "", 1)
    try:
        version = json.loads(lines[0])["irgraph_database"] if lines else None
    except (ValueError, LookupError, TypeError, RecursionError):
        version = None
    if version not in FORMATS:
        raise fail(f"not a database export of format {FORMAT}", place)
    for number, text in enumerate(lines[1:], 2):
        place = SourceSpan(path, "", number)
        try:
            line = msgspec.json.decode(text.encode("utf-8", "replace"), type=_Line)
            refuse_duplicate_keys(text)
            entry = RecordEntry(line.kind, line.content, line.rows, line.provenance)
            hashes = entry.hash, content_hash(line.rows)
        except (ValueError, RecursionError) as error:
            raise fail(f"not a record of a database: {error}", place) from None
        if line.kind not in KINDS:
            hint = "export it with the irgraph that reads it"
            raise fail(f"no record is of kind {line.kind!r}", place, hint=hint)
        if hashes != (line.hash, line.rows_hash) or not _has_its_checksum(line, version):
            raise fail(f"record {line.name!r} was changed: its hash does not match", place)
        yield line, entry


def _has_its_checksum(line: _Line, version: int) -> bool:
    """Return whether a record's checksum matches its name, provenance and rows."""
    if version == 1:
        return not line.checksum
    record = {**asdict(line.provenance), "hash": line.hash, "name": line.name, "added": line.added}
    return line.checksum == record_checksum(record, {content_hash(row) for row in line.rows})
