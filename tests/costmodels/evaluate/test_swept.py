"""Measured kernels of sweeps beside their prices."""

from __future__ import annotations

import pytest

from costmodels.devices.library import load_device
from costmodels.evaluate.timed.swept import (
    SHIPPED,
    Residual,
    evaluate_swept,
    is_held_out,
    residuals,
)
from costmodels.measure.rows import read_rows

pytest.importorskip("torch")

H100 = SHIPPED / "h100-80gb-hbm3" / "kernels.jsonl.gz"


def test_a_third_of_the_rows_is_held_out() -> None:
    head, rows = read_rows(H100)
    assert head["name"] == "NVIDIA H100 80GB HBM3"
    assert len(rows) > 20_000
    assert len({row["key"] for row in rows}) == len(rows)
    assert sum(is_held_out(row["key"]) for row in rows) / len(rows) == pytest.approx(
        1 / 3, abs=0.01
    )


def test_held_rows_and_the_others_are_all() -> None:
    sheet = load_device("h100")
    parts = [
        {row.key for row in residuals(H100, sheet, held_out=held, ops=("tril_index_backward",))}
        for held in (True, False, None)
    ]
    assert parts[0] and parts[1] and not parts[0] & parts[1]
    assert parts[0] | parts[1] == parts[2]


def test_errors_are_to_the_nearest_time_between_warm_and_cold() -> None:
    def nearest(predicted: float) -> float:
        row = Residual("copy", "cast", "f32", "key", 2.0, 3.0, predicted, 0.0, False)
        return row.nearest

    assert [nearest(1.0), nearest(2.5), nearest(9.0)] == [2.0, 2.5, 3.0]


def test_evaluates_by_op_and_type() -> None:
    found = evaluate_swept(ops=("tril_index_backward",))
    (group,) = found.groups
    assert (group.op, group.dtype) == ("tril_index_backward", "f32")
    assert group.mape < 15
    assert found.as_json()["groups"][0]["rows"] == group.rows
    (family,) = found.families
    assert (family.family, family.rows) == ("index", group.rows)
    assert family.mape == pytest.approx(group.mape)
    assert found.as_json()["families"][0]["inside"] == pytest.approx(group.inside)
    assert len(found.render()) == 4
