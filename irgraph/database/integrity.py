"""Comparison of stored records, rows and provenance with their hashes, on every read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from irgraph.database.entry import content_hash, record_checksum
from irgraph.diagnostics import IrgraphError, fail


def record_content(record: Mapping[str, Any], database: object) -> dict[str, Any]:
    """Return the content of a record; raise ``IrgraphError`` if its hash is of another content.

    Args:
        record: its columns ``kind``, ``name``, ``hash`` and ``content``.
        database: for messages.
    """
    from irgraph.database.tables import KINDS

    content = _decode(record["content"])
    if (
        content is None
        or record["kind"] not in KINDS
        or content_hash([record["kind"], content]) != record["hash"]
    ):
        raise _changed_error(f"the content of record {record['name']!r}", database)
    return content


def row_values(text: object, digits: object, name: object, database: object) -> dict[str, Any]:
    """Return a row of a record; raise ``IrgraphError`` if its hash is of another row.

    Args:
        text: the row's JSON.
        digits: the row's hash.
        name: of its record, for messages.
        database: for messages.
    """
    row = _decode(text)
    if row is None or content_hash(row) != digits:
        raise _changed_error(f"a row of record {name!r}", database)
    return row


def check_columns(
    columns: Mapping[str, Any], row: Mapping[str, Any], name: object, database: object
) -> None:
    """Raise ``IrgraphError`` if a column differs from the row that it was copied from.

    Texts are compared in their stored form: databases convert some values to text.
    """
    for column, value in columns.items():
        original = row.get(column)
        if value != original and _as_text(value) != _as_text(original):
            raise _changed_error(f"{column} in a row of record {name!r}", database)


def check_record(record: Mapping[str, Any], row_hashes: Iterable[str], database: object) -> None:
    """Raise ``IrgraphError`` if provenance or rows of a record were changed, added or removed.

    Args:
        record: its columns.
        row_hashes: hashes of all its rows.
        database: for messages.
    """
    try:
        is_unchanged = record_checksum(record, row_hashes) == record["checksum"]
    except (TypeError, ValueError):  # bytes, which SQLite does not refuse
        is_unchanged = False
    if not is_unchanged:
        raise _changed_error(f"the provenance or a row of record {record['name']!r}", database)


def _as_text(value: object) -> str:
    return str(value).replace("\0", "\ufffd").encode("utf-8", "replace").decode("utf-8")


def _decode(text: object) -> dict[str, Any] | None:
    try:
        value = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _changed_error(subject: str, database: object) -> IrgraphError:
    hint = "restore the database, or import the record again into a new one"
    return fail(f"database {database}: {subject} was changed: its hash does not match", hint=hint)
