"""Queries of a database: the rows of a kind, each with its record's provenance."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from irgraph.database.access import Database
from irgraph.database.filters import conditions
from irgraph.database.integrity import check_columns, check_record, record_content, row_values

if TYPE_CHECKING:
    from sqlalchemy import Connection

PROVENANCE = ("name", "card", "driver", "software", "clock_mhz", "by", "source", "added", "hash")
"""Columns of records that are listed with their rows."""

SHORT = 12
"""Number of digits of hashes in lists, enough to distinguish records."""


def query_rows(
    database: Database, kind: str, filters: Sequence[str] = (), max_rows: int | None = None
) -> tuple[list[dict[str, Any]], int]:
    """Return the rows of a kind that satisfy all conditions, and their total number.

    Args:
        database: a database with the newest schema.
        kind: one of ``tables.KINDS``.
        filters: texts for ``filters.conditions``, over the kind's columns and ``PROVENANCE``.
        max_rows: maximum number of rows to return, in the order of their records and positions;
            ``None`` for all.

    Raises:
        IrgraphError: a condition is invalid, or the database cannot be read.
    """
    from sqlalchemy import func, select

    from irgraph.database.store import figures
    from irgraph.database.tables import KINDS, RECORDS

    table = KINDS[kind]
    columns = {name: table.c[name] for name in figures(table)}
    columns |= {name: RECORDS.c[name] for name in PROVENANCE}
    source = table.join(RECORDS, table.c.record == RECORDS.c.id)
    clauses = conditions(filters, columns)
    texts = (table.c.record, table.c.row, table.c.hash)
    rows = select(*texts, *columns.values()).select_from(source).where(*clauses)
    count = select(func.count()).select_from(source).where(*clauses)
    with database.read_connection() as connection:
        total = connection.execute(count).scalar_one()
        ordered = rows.order_by(table.c.record, table.c.position).limit(max_rows)
        stored = connection.execute(ordered).all()
        numbers = {number for number, *_ in stored}
        all_records = connection.execute(RECORDS.select()).mappings().all()
        hashes = row_hashes(connection, kind)
    for record in map(dict, all_records):
        # a record without rows is checked, too: they may have been removed
        if record["kind"] == kind or record["id"] in numbers:
            record_content(record, database)
            check_record(record, hashes[record["id"]], database)
    row_dicts = []
    for _, text, digits, *values in stored:
        row_dict = dict(zip(columns, values, strict=True))
        row = row_values(text, digits, row_dict["name"], database)
        own_columns = {name: row_dict[name] for name in figures(table)}
        check_columns(own_columns, row, row_dict["name"], database)
        row_dicts.append(row_dict)
    return row_dicts, total


def row_hashes(connection: Connection, kind: str) -> defaultdict[int, list[str]]:
    """Return the hashes of the rows of all records of a kind, by the records' numbers."""
    from sqlalchemy import select

    from irgraph.database.tables import KINDS

    table = KINDS[kind]
    hashes: defaultdict[int, list[str]] = defaultdict(list)
    for number, digits in connection.execute(select(table.c.record, table.c.hash)):
        hashes[number].append(digits)
    return hashes


def records(database: Database) -> list[dict[str, Any]]:
    """Return all records, oldest first: kind, provenance, and number of rows."""
    from irgraph.database.tables import KINDS, RECORDS

    with database.read_connection() as connection:
        hashes = {kind: row_hashes(connection, kind) for kind in KINDS}
        stored = connection.execute(RECORDS.select().order_by(RECORDS.c.id)).mappings().all()
    rows = []
    for record in map(dict, stored):
        record_content(record, database)
        own_hashes = hashes[record["kind"]][record["id"]]
        check_record(record, own_hashes, database)
        listed = {name: record[name] for name in ("kind", *PROVENANCE)}
        rows.append({**listed, "rows": len(own_hashes)})
    return rows
