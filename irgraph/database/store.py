"""Insertion of records: existing records are unchanged, equal rows are one row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import asdict

from irgraph.database.access import Database
from irgraph.database.entry import RecordEntry, Row, canonical, content_hash, record_checksum
from irgraph.database.integrity import check_record
from irgraph.diagnostics import fail

if TYPE_CHECKING:
    from sqlalchemy import Connection, Table

MAX_NAME_LENGTH = 200
"""Maximum number of characters of a name."""

BATCH = 500
"""Number of rows inserted at once."""


class AddResult(Struct, frozen=True):
    """Result of adding an entry.

    Attributes:
        kind, name: kind and name of its record.
        is_new: whether no record with this content existed.
        new_rows, existing_rows: numbers of rows added, and of rows that existed.
    """

    kind: str
    name: str
    is_new: bool
    new_rows: int
    existing_rows: int


def add(
    database: Database, entries: Sequence[RecordEntry], name: str = "", added: str = ""
) -> list[AddResult]:
    """Add entries in one transaction.

    Args:
        database: a database with the newest schema (``schema.check``).
        entries: entries to add.
        name: name of the records, followed by their kind if there are several; by default the kind
            and the first eight digits of the content's hash. An existing record is not renamed.
        added: time of the addition in ISO 8601; now by default.

    Raises:
        IrgraphError: the name belongs to another record, or the database cannot be written.
    """
    if len(name) > MAX_NAME_LENGTH:
        raise fail(f"--name: a name has at most {MAX_NAME_LENGTH} characters", exit_code=2)
    timestamp = added or datetime.now(UTC).isoformat(timespec="seconds")
    has_several_kinds = len({entry.kind for entry in entries}) > 1
    with database.write_transaction() as connection:
        results = []
        for entry in sorted(entries, key=lambda entry: entry.hash):
            default_name = f"{entry.kind}-{entry.hash[:8]}"
            record_name = (
                (f"{name}-{entry.kind}" if has_several_kinds else name) if name else default_name
            )
            results.append(add_record(connection, entry, record_name, timestamp, database))
    return results


def add_record(
    connection: Connection, entry: RecordEntry, name: str, timestamp: str, database: object
) -> AddResult:
    """Add one entry in the caller's transaction, as ``add`` does; ``database`` is for messages."""
    from sqlalchemy import select

    from irgraph.database.tables import KINDS, RECORDS

    texts = {"hash": entry.hash, "kind": entry.kind, "name": name, "added": timestamp}
    values = _clean_values(
        {**texts, **asdict(entry.provenance), "content": canonical(entry.content)}
    )
    is_new = _insert(connection, RECORDS, [values], ("hash", "name")) == 1
    # other writers of this record wait here, so that each checksum covers all rows
    stored = connection.execute(RECORDS.select().filter_by(hash=entry.hash).with_for_update())
    record = dict(stored.mappings().first() or {})
    if not record:
        message = f"the name {name!r} belongs to another record"
        raise fail(message, hint="give another with --name", exit_code=2)
    hashes = select(KINDS[entry.kind].c.hash).filter_by(record=record["id"])
    if not is_new:
        check_record(record, connection.execute(hashes).scalars(), database)
    rows = {content_hash(row): (position, row) for position, row in enumerate(entry.rows)}
    insertions = [
        {
            **_columns(KINDS[entry.kind], row),
            "record": record["id"],
            "hash": key,
            "position": position,
        }
        for key, (position, row) in sorted(rows.items())
    ]
    new = sum(
        _insert(
            connection, KINDS[entry.kind], insertions[start : start + BATCH], ("record", "hash")
        )
        for start in range(0, len(insertions), BATCH)
    )
    checksum = record_checksum(record, connection.execute(hashes).scalars())
    connection.execute(RECORDS.update().filter_by(id=record["id"]).values(checksum=checksum))
    return AddResult(entry.kind, record["name"], is_new, new, len(rows) - new)


def _columns(table: Table, row: Row) -> dict[str, Any]:
    """Return the values of a row's columns, and the full row as text."""
    figure_values = {column: row.get(column) for column in figures(table)}
    return {**_clean_values(figure_values), "row": canonical(row)}


def figures(table: Table) -> list[str]:
    """Return the names of the columns that only this kind has."""
    return [column.name for column in table.columns if column.name not in _COMMON]


_COMMON = ("id", "record", "hash", "position", "row")


def _insert(
    connection: Connection, table: Table, rows: list[dict[str, Any]], unique: tuple[str, ...]
) -> int:
    """Insert the rows that do not exist; return their number.

    Writers that insert the same rows at once wait for each other, in the order of hashes, so that
    they cannot deadlock.
    """
    from sqlalchemy.dialects import postgresql, sqlite

    dialect: Any = {"sqlite": sqlite, "postgresql": postgresql}[connection.dialect.name]
    statement = dialect.insert(table).values(rows).on_conflict_do_nothing().returning(table.c.id)
    return len(connection.execute(statement).all())


def _clean_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values with texts that every database accepts: without NUL and lone surrogates."""
    return {k: _clean_text(v) if isinstance(v, str) else v for k, v in values.items()}


def _clean_text(text: str) -> str:
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode("utf-8")
