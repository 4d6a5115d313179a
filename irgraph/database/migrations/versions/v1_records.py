"""Records with provenance; the figures of host tables, kernels and steps."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "1"
down_revision = None

FIGURES = {
    "overheads": (
        ("type", "operation", "shapes"),
        ("mean_us", "std_us", "p50_us", "p95_us"),
        ("count",),
    ),
    "kernels": (
        ("family", "op", "dtype", "key"),
        ("kernel_us", "kernel_spread_us", "op_us", "spread_us"),
        (),
    ),
    "steps": (
        ("workload", "quantity", "device", "host", "unit", "model"),
        ("measured", "predicted", "low", "high", "error_pct"),
        ("batch",),
    ),
}
"""Columns of text, of numbers and of integers, by table."""


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "records",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("hash", sa.String(64), nullable=False, unique=True),
        sa.Column("kind", sa.String(16), nullable=False, index=True),
        sa.Column("name", sa.String(200), nullable=False, unique=True),
        sa.Column("added", sa.String(32), nullable=False),
        sa.Column("by", sa.Text, nullable=False),
        sa.Column("card", sa.Text, nullable=False, index=True),
        sa.Column("driver", sa.Text, nullable=False),
        sa.Column("software", sa.Text, nullable=False),
        sa.Column("clock_mhz", sa.Float, nullable=False),
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("content", sa.Text, nullable=False),
    )
    for name, (texts, numbers, counts) in FIGURES.items():
        op.create_table(
            name,
            sa.Column("id", sa.Integer, primary_key=True),
            sa.Column(
                "record",
                sa.Integer,
                sa.ForeignKey("records.id", ondelete="CASCADE"),
                nullable=False,
            ),
            sa.Column("hash", sa.String(64), nullable=False),
            sa.Column("position", sa.Integer, nullable=False),
            sa.Column("row", sa.Text, nullable=False),
            *(sa.Column(column, sa.Text) for column in texts),
            *(sa.Column(column, sa.Float) for column in numbers),
            *(sa.Column(column, sa.BigInteger) for column in counts),
            sa.UniqueConstraint("record", "hash"),
        )
