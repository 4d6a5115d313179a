"""Queries of a database: the rows of a kind, each with its record's provenance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from irgraph.database.access import Database
from irgraph.database.filters import conditions
from irgraph.database.integrity import check_columns, check_provenance, record_content, row_values

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
    texts = (table.c.row, table.c.hash)
    rows = select(*texts, *columns.values()).select_from(source).where(*clauses)
    count = select(func.count()).select_from(source).where(*clauses)
    with database.read_connection() as connection:
        total = connection.execute(count).scalar_one()
        ordered = rows.order_by(table.c.record, table.c.position).limit(max_rows)
        stored = connection.execute(ordered).all()
    row_dicts = []
    for text, digits, *values in stored:
        row_dict = dict(zip(columns, values, strict=True))
        row = row_values(text, digits, row_dict["name"], database)
        own_columns = {name: row_dict[name] for name in figures(table)}
        check_columns(own_columns, row, row_dict["name"], database)
        check_provenance(row_dict, database)
        row_dicts.append(row_dict)
    return row_dicts, total


def records(database: Database) -> list[dict[str, Any]]:
    """Return all records, oldest first: kind, provenance, and number of rows."""
    from sqlalchemy import func, select

    from irgraph.database.tables import KINDS, RECORDS

    columns = [RECORDS.c.kind, *(RECORDS.c[name] for name in PROVENANCE)]
    with database.read_connection() as connection:
        counts: dict[int, int] = {}
        for table in KINDS.values():
            grouped = select(table.c.record, func.count()).group_by(table.c.record)
            counts.update((number, rows) for number, rows in connection.execute(grouped))
        record_rows = connection.execute(
            select(RECORDS.c.id, *columns, RECORDS.c.content).order_by(RECORDS.c.id)
        ).all()
    for row in record_rows:
        record_content(dict(row._mapping), database)
        check_provenance(dict(zip(PROVENANCE, row[2:-1], strict=True)), database)
    names = [column.name for column in columns]
    return [
        {**dict(zip(names, row[1:-1], strict=True)), "rows": counts.get(row[0], 0)}
        for row in record_rows
    ]
