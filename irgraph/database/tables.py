"""The tables of a database in the newest schema, which ``migrations`` produces."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Float,
    ForeignKey,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)
from sqlalchemy.types import TypeEngine

METADATA = MetaData()

RECORDS = Table(
    "records",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("hash", String(64), nullable=False, unique=True),
    Column("kind", String(16), nullable=False, index=True),
    Column("name", String(200), nullable=False, unique=True),
    Column("added", String(32), nullable=False),
    Column("by", Text, nullable=False),
    Column("card", Text, nullable=False, index=True),
    Column("driver", Text, nullable=False),
    Column("software", Text, nullable=False),
    Column("clock_mhz", Float, nullable=False),
    Column("source", Text, nullable=False),
    Column("content", Text, nullable=False),
    Column("checksum", String(64), nullable=False, server_default=""),
)
"""A row for each record: ``content`` is canonical JSON, ``hash`` its SHA-256 with the kind.

``checksum`` is ``entry.record_checksum``.
"""


def _figures(name: str, columns: Mapping[str, type[TypeEngine[Any]]]) -> Table:
    """Return the table of a kind's rows.

    ``position`` is a row's index in its file, ``row`` the full row as canonical JSON, ``hash`` the
    SHA-256 of that text.
    """
    return Table(
        name,
        METADATA,
        Column("id", Integer, primary_key=True),
        Column("record", Integer, ForeignKey("records.id", ondelete="CASCADE"), nullable=False),
        Column("hash", String(64), nullable=False),
        Column("position", Integer, nullable=False),
        Column("row", Text, nullable=False),
        *(Column(column, kind) for column, kind in columns.items()),
        UniqueConstraint("record", "hash"),
    )


KINDS: Mapping[str, Table] = {
    "hosts": _figures(
        "overheads",
        {
            "type": Text, "operation": Text, "shapes": Text,
            "mean_us": Float, "std_us": Float, "count": BigInteger,
            "p50_us": Float, "p95_us": Float,
        },
    ),
    "kernels": _figures(
        "kernels",
        {
            "family": Text, "op": Text, "dtype": Text, "key": Text,
            "kernel_us": Float, "kernel_spread_us": Float, "op_us": Float, "spread_us": Float,
        },
    ),
    "steps": _figures(
        "steps",
        {
            "workload": Text, "quantity": Text, "batch": BigInteger, "device": Text, "host": Text,
            "measured": Float, "predicted": Float, "low": Float, "high": Float, "unit": Text,
            "error_pct": Float, "model": Text,
        },
    ),
}  # fmt: skip
"""The table of each kind's rows."""
