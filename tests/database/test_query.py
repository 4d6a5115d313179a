"""Conditions choose what the same conditions in Python choose."""

from __future__ import annotations

import operator
from fnmatch import fnmatch
from typing import Any

import pytest

from irgraph.database.access import Database
from irgraph.database.entry import Provenance, RecordEntry
from irgraph.database.query import query_rows
from irgraph.database.store import add
from irgraph.diagnostics import IrgraphError

ROWS = [
    {"family": family, "op": op, "op_us": float(time), "kernels": []}
    for time, (family, op) in enumerate(
        [("softmax", "Softmax_a"), ("softmax", "softmax%b"), ("gemm", "mm"), ("gemm", "a\\b")]
    )
]


@pytest.fixture(scope="module")
def filled(shared: Database) -> Database:
    add(shared, [RecordEntry("kernels", {"name": "A"}, ROWS, Provenance(card="A100", by="Ann"))])
    add(shared, [RecordEntry("kernels", {"name": "B"}, ROWS[:2], Provenance(card="H100"))])
    return shared


SIGNS: dict[str, Any] = {
    "=": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le,
    ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


@pytest.mark.parametrize("sign", SIGNS)
def test_numbers_are_compared(filled: Database, sign: str) -> None:
    rows, total = query_rows(filled, "kernels", [f"op_us {sign} 1", "card=a100"])
    wanted = [row["op_us"] for row in ROWS if SIGNS[sign](row["op_us"], 1)]
    assert [row["op_us"] for row in rows] == wanted and total == len(wanted)


@pytest.mark.parametrize("pattern", ["soft*", "softmax_a", "SOFTMAX%B", "*_*", "*\\*", "*%*", "*"])
def test_stars_stand_for_anything_and_nothing_else_does(filled: Database, pattern: str) -> None:
    rows, _ = query_rows(filled, "kernels", [f"op={pattern}", "card=A100"])
    others, _ = query_rows(filled, "kernels", [f"op!={pattern}", "card=A100"])
    wanted = [row["op"] for row in ROWS if fnmatch(str(row["op"]).lower(), pattern.lower())]
    assert [row["op"] for row in rows] == wanted
    assert len(rows) + len(others) == len(ROWS)


def test_conditions_join_and_rows_are_limited(filled: Database) -> None:
    rows, total = query_rows(filled, "kernels", ["family=softmax"], max_rows=3)
    assert (len(rows), total) == (3, 4)
    assert [row["card"] for row in rows] == ["A100", "A100", "H100"]
    assert query_rows(filled, "kernels", ["by=Ann", "op_us>2"])[1] == 1


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ("op", "give COLUMN=VALUE"),
        ("ops=1", "no column 'ops'; did you mean 'op'"),
        ("op_us=fast", "compared with a number, not with 'fast'"),
        ("op_us>nan", "compared with a number"),
        ("1=1; DROP TABLE records", "no column '1'"),
    ],
)
def test_other_conditions_are_refused(filled: Database, condition: str, message: str) -> None:
    with pytest.raises(IrgraphError, match=message):
        query_rows(filled, "kernels", [condition])
