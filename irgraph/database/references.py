"""References ``db:NAME`` to a record of a kind by its name, or by the digits of its hash."""

from __future__ import annotations

import re
from typing import Any

from irgraph.database.integrity import check_record, record_content, row_values
from irgraph.diagnostics import fail, suggestion

PREFIX = "db:"
"""Prefix of record names in options that also accept other names or paths."""

_HASH = re.compile(r"[0-9a-f]{8,64}")


def read_record(reference: str, kind: str) -> tuple[dict[str, Any], list[dict[str, Any]], str]:
    """Return the content of a record, its rows in the order of their file, and its full hash.

    Args:
        reference: ``db:NAME``, or ``db:`` with at least eight digits of the content's hash.
        kind: kind of the record, one of ``tables.KINDS``.

    Raises:
        IrgraphError: no record or several match; or the database is missing or has an old schema.
    """
    from irgraph.database.access import Database

    database = Database()
    from irgraph.database.schema import check

    check(database)
    return find_record(database, reference.removeprefix(PREFIX), kind)


def find_record(
    database: Any,  # noqa: ANN401  (a Database, which is imported on demand)
    name: str,
    kind: str,
) -> tuple[dict[str, Any], list[dict[str, Any]], str]:
    """Return a record of an open database, as ``read_record`` does."""
    from sqlalchemy import select

    from irgraph.database.tables import KINDS, RECORDS

    table = KINDS[kind]
    with database.read_connection() as connection:
        all_of_kind = connection.execute(RECORDS.select().where(RECORDS.c.kind == kind)).all()
        matches = [row for row in all_of_kind if row.name == name]
        if not matches and _HASH.fullmatch(name):
            matches = [row for row in all_of_kind if row.hash.startswith(name)]
        if len(matches) != 1:
            names = [row.name for row in all_of_kind]
            name_list = ", ".join(names[:10]) + (", …" if len(names) > 10 else "")
            problem = "several records of" if matches else "no record of"
            message = (
                f"database {database}: {problem} {kind} named {name!r}{suggestion(name, names)}"
            )
            hint = f"its records of {kind}: {name_list}" if names else f"it holds no {kind}"
            raise fail(message, hint=hint, exit_code=2)
        record = dict(matches[0]._mapping)
        rows = select(table.c.row, table.c.hash).where(table.c.record == record["id"])
        texts = connection.execute(rows.order_by(table.c.position)).all()
    content = record_content(record, database)
    values = [row_values(text, digits, record["name"], database) for text, digits in texts]
    check_record(record, [digits for _, digits in texts], database)
    return content, values, record["hash"]
