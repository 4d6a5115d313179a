"""Reading tables of measured kernels."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from costmodels.learnable.measurements import read_measurements
from irgraph.diagnostics import IrgraphError

SOFTMAX = ("softmax", ("softmax",), ("rows", "cols"))
"""Name, ops and sizes of a family."""

HEAD = "op,device,rows,cols,latency_ms,kernel,split\n"


def table(folder: Path, text: str) -> Path:
    path = folder / "kernels" / "softmax.csv.gz"
    path.parent.mkdir()
    path.write_bytes(gzip.compress(text.encode()))
    return folder


def test_rows_become_columns(made_up: Path) -> None:
    data = read_measurements(made_up, *SOFTMAX)
    assert len(data.times) == 800
    assert data.devices == ("A100-PCIE-40GB", "V100-PCIE-32GB")
    assert data.dev.sum() == 160
    assert data.times.min() == pytest.approx(35.0)


def test_a_missing_table_is_named(tmp_path: Path) -> None:
    with pytest.raises(IrgraphError, match=r"cannot read measurements .*softmax.csv.gz"):
        read_measurements(tmp_path, *SOFTMAX)


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    folder = table(tmp_path, HEAD.replace("cols,", "") + "softmax,T4,1,0.1,k,train\n")
    with pytest.raises(IrgraphError, match="no column 'cols'"):
        read_measurements(folder, *SOFTMAX)


def test_an_unknown_op_is_named(tmp_path: Path) -> None:
    folder = table(tmp_path, HEAD + "softmin,T4,1,1,0.1,k,train\n")
    with pytest.raises(IrgraphError, match="softmax has no op 'softmin'"):
        read_measurements(folder, *SOFTMAX)


def test_a_bad_number_is_named(tmp_path: Path) -> None:
    folder = table(tmp_path, HEAD + "softmax,T4,1,many,0.1,k,train\n")
    with pytest.raises(IrgraphError, match=r"column 'cols'.*many"):
        read_measurements(folder, *SOFTMAX)
