"""What ``db:NAME`` stands for: a record of a kind by its name, or by the digits of its hash."""

from __future__ import annotations

import json
import re
from typing import Any

from irgraph.diagnostics import fail, suggestion

PREFIX = "db:"
"""What names of records begin with where a name or a path may stand."""

_HASH = re.compile(r"[0-9a-f]{8,64}")


def stored(named: str, kind: str) -> tuple[dict[str, Any], list[dict[str, Any]], str]:
    """Return the content of a record, its rows in the order of their file, and its whole hash.

    Args:
        named: ``db:NAME``, or ``db:`` with at least eight digits of the content's hash.
        kind: of the record: one of ``tables.KINDS``.

    Raises:
        IrgraphError: there is no such record, or several; or no database, or an older one.
    """
    from irgraph.database.access import Database

    database = Database()
    from irgraph.database.schema import check

    check(database)
    return record(database, named.removeprefix(PREFIX), kind)


def record(
    database: Any,  # noqa: ANN401  (a Database; imported on demand alone)
    name: str,
    kind: str,
) -> tuple[dict[str, Any], list[dict[str, Any]], str]:
    """Return a record of a database that is open, as ``stored`` does."""
    from sqlalchemy import select

    from irgraph.database.tables import KINDS, RECORDS

    table = KINDS[kind]
    known = select(RECORDS.c.id, RECORDS.c.name, RECORDS.c.hash, RECORDS.c.content)
    with database.reading() as connection:
        all_of_kind = connection.execute(known.where(RECORDS.c.kind == kind)).all()
        found = [row for row in all_of_kind if row.name == name]
        if not found and _HASH.fullmatch(name):
            found = [row for row in all_of_kind if row.hash.startswith(name)]
        if len(found) != 1:
            names = [row.name for row in all_of_kind]
            listed = ", ".join(names[:10]) + (", …" if len(names) > 10 else "")
            what = "several records of" if found else "no record of"
            message = f"database {database}: {what} {kind} named {name!r}{suggestion(name, names)}"
            hint = f"its records of {kind}: {listed}" if names else f"it holds no {kind}"
            raise fail(message, hint=hint, exit_code=2)
        rows = select(table.c.row).where(table.c.record == found[0].id).order_by(table.c.position)
        texts = connection.execute(rows).scalars().all()
    return json.loads(found[0].content), [json.loads(text) for text in texts], found[0].hash
