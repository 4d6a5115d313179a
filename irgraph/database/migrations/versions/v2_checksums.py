"""Checksums over the provenance and the rows of each record when the schema changes."""

from __future__ import annotations

import hashlib
import json

import sqlalchemy as sa
from alembic import op

revision = "2"
down_revision = "1"

COLUMNS = ("hash", "name", "added", "by", "card", "driver", "software", "clock_mhz", "source")
"""Columns of a record that its checksum covers."""

TABLES = {"hosts": "overheads", "kernels": "kernels", "steps": "steps"}
"""Table of the rows by kind of record."""


def upgrade() -> None:
    """Add the column, and compute it for existing records."""
    column = sa.Column("checksum", sa.String(64), nullable=False, server_default="")
    op.add_column("records", column)
    connection = op.get_bind()
    names = ("id", "kind", *COLUMNS)
    records = sa.table("records", *map(sa.column, (*names, "checksum")))
    for record in connection.execute(sa.select(*(records.c[name] for name in names))).mappings():
        rows = sa.table(TABLES[record["kind"]], sa.column("record"), sa.column("hash"))
        query = sa.select(rows.c.hash).where(rows.c.record == record["id"])
        hashes = sorted(connection.execute(query).scalars())
        digits = _checksum({name: record[name] for name in COLUMNS}, hashes)
        change = sa.update(records).where(records.c.id == record["id"])
        connection.execute(change.values(checksum=digits))


def _checksum(columns: dict[str, object], hashes: list[str]) -> str:
    value = [{**columns, "clock_mhz": float(str(columns["clock_mhz"]))}, hashes]
    text = json.dumps(value, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()
