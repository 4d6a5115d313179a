"""Measurements of several campaigns: how they are read, split and repeated, and their intervals."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from costmodels.devices.library import load_device
from costmodels.families import learned_families
from costmodels.learnable.modern import KernelTable, reader
from costmodels.training.recipe import _row_index, read
from costmodels.training.train import _by_op, calibration_rows
from irgraph.diagnostics import IrgraphError

HEAD = "device,m,n,k,time_us,split,held\n"


def test_ops_have_intervals_of_their_own_where_enough_rows_were_kept() -> None:
    rng = np.random.default_rng(0)
    errors = np.concatenate([rng.exponential(1, 500), rng.exponential(3, 500), np.ones(5)])
    op = np.repeat([0, 1, 2], [500, 500, 5])
    one, two, few = _by_op(errors.astype(np.float32), op, np.arange(len(op)), 3)
    assert one == pytest.approx(np.log(10), rel=0.15)
    assert two == pytest.approx(3 * np.log(10), rel=0.15)
    assert few == pytest.approx(1.5 * np.quantile(errors, 0.9), rel=1e-3)


def test_many_rows_of_few_shapes_say_little() -> None:
    errors = np.repeat([1.0, 2.0], 500).astype(np.float32)
    op, shape = np.repeat([0, 1], 500), np.concatenate([np.arange(500), np.arange(500) % 2])
    one, few = _by_op(errors, op, shape, 2)
    assert (one, few) == (1.0, 1.5 * 2.0)


def test_shapes_are_kept_aside_whole() -> None:
    shape = np.repeat(np.arange(1000), 3)
    aside = calibration_rows(shape, 0).reshape(-1, 3)
    assert (aside.all(1) | ~aside.any(1)).all()
    assert 0.05 < aside.mean() < 0.15


def test_rows_of_rare_ops_count_several_times(made_up: Path) -> None:
    data, _ = read("gemm", made_up)
    counts = np.bincount(_row_index(data, ~data.dev, {"bmm": 3}), minlength=len(data.times))
    bmm = data.op == data.ops.index("bmm")
    assert set(counts[bmm & ~data.dev]) == {3}
    assert set(counts[~bmm & ~data.dev]) == {1}
    assert not counts[data.dev].any()


def _written(folder: Path, name: str, text: str) -> None:
    (folder / "modern").mkdir(exist_ok=True)
    (folder / "modern" / f"{name}.csv.gz").write_bytes(gzip.compress(text.encode()))


def _table(name: str, op: str) -> KernelTable:
    return KernelTable(name, lambda row: op, lambda row: (row["m"], row["n"], row["k"]))


def test_tables_are_joined_under_the_names_of_sheets(tmp_path: Path) -> None:
    _written(tmp_path, "one", f"{HEAD}A100-80GB,1,2,3,4.5,train,point\nH200,1,2,3,4,dev,group\n")
    _written(tmp_path, "two", f"{HEAD}H200,5,6,7,8,train,point\n")
    data = reader(_table("one", "a"), _table("two", "b"))(
        tmp_path, "x", ("a", "b"), ("m", "n", "k")
    )
    assert data.devices == ("A100-SXM4-80GB", "H200")
    assert data.times.tolist() == [4.5, 4, 8]
    assert (data.op.tolist(), data.dev.tolist()) == ([0, 0, 1], [False, True, False])
    assert data.group_held_out is not None and data.group_held_out.tolist() == [False, True, False]
    assert data.source == "modern/one.csv.gz + modern/two.csv.gz"


def test_a_table_that_is_missing_or_spoilt_is_named(tmp_path: Path) -> None:
    read_one = reader(_table("one", "a"))
    with pytest.raises(IrgraphError, match=r"cannot read measurements .*one\.csv\.gz"):
        read_one(tmp_path, "x", ("a",), ("m", "n", "k"))
    _written(tmp_path, "one", f"{HEAD}H200,1,2,many,4,train,point\n")
    with pytest.raises(IrgraphError, match="lack or spoil a column"):
        read_one(tmp_path, "x", ("a",), ("m", "n", "k"))


def test_models_of_matrix_units_answer_for_cards_that_have_them() -> None:
    campaign = learned_families()["gemm_units"].campaign
    answers = {name: campaign.covers(load_device(name)) for name in ("l4", "h100-pcie", "p100")}
    assert answers == {"l4": True, "h100-pcie": True, "p100": False}
    assert not campaign.covers(load_device("mi300x"))
    assert campaign.card(load_device("gh200")) == "H100-80GB-HBM3"
