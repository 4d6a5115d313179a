"""The paper's search over Table II, where JAX and Optuna are installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from costmodels.learned.paper import RATES, TABLE
from costmodels.learned.recipe import read
from irgraph.cli.main import main

pytest.importorskip("optuna", reason="the search needs optuna")
pytest.importorskip("jax", reason="training needs jax")
pytest.importorskip("optax", reason="training needs optax")
pytest.importorskip("flax", reason="training needs flax")

SMALL = {"layers": (1,), "width": (8,), "optimizer": ("adam", "sgd")}


def test_the_grid_is_table_ii() -> None:
    assert len(RATES) * len(TABLE["layers"]) * len(TABLE["width"]) * len(TABLE["optimizer"]) == 280


class KilledError(Exception):
    """Stands for the end of the process."""


def test_a_search_resumes_after_a_kill(made_up: Path, tmp_path: Path) -> None:
    from costmodels.learned.paper import search

    data, _ = read("softmax", made_up)
    data = data.where(data.of("V100-PCIE-32GB"))
    seen: list[str] = []

    def tell(point: str) -> None:
        seen.append(point)
        if len(seen) == 2:
            raise KilledError

    with pytest.raises(KilledError):
        search(data, tmp_path / "j", table=SMALL, rungs=(20, 60), progress=tell)
    best = search(data, tmp_path / "j", table=SMALL, rungs=(20, 60), progress=tell)
    assert seen[1:] == [seen[1], seen[1]]
    assert best.finished + best.given_up == 2
    assert best.finished >= 1
    assert 0 < best.held_out.gmae < 2


def test_an_op_that_was_not_measured_is_refused(
    made_up: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--data", str(made_up), "--device", "V100-PCIE-32GB"]
    assert main(["search", "gemm", "--op", "liner", *arguments]) == 2
    assert "did you mean 'linear'" in capsys.readouterr().err
