"""The paper's search over Table II, where JAX and Optuna are installed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from costmodels.learnable.measurements import Measurements
from costmodels.training.nets import RATES
from costmodels.training.recipe import read
from costmodels.training.table_search import grid
from irgraph.cli.main import main

SMALL = {"layers": (1,), "width": (8,), "optimizer": ("adam", "sgd")}


def test_the_grid_is_table_ii() -> None:
    assert len(RATES) * len(grid()) == 280


class KilledError(Exception):
    """Stands for the end of the process."""


def rows(folder: Path) -> Measurements:
    data, _ = read("softmax", folder)
    return data.select(data.rows_of("V100-PCIE-32GB"))


@pytest.mark.slow
def test_a_search_resumes_after_a_kill(made_up: Path, tmp_path: Path) -> None:
    from costmodels.training.table_search import search, winner

    seen: list[str] = []

    def tell(point: str) -> None:
        seen.append(point)
        if len(seen) == 2:
            raise KilledError

    with pytest.raises(KilledError):
        search(rows(made_up), tmp_path / "j", table=SMALL, rungs=(20, 60), progress=tell)
    search(rows(made_up), tmp_path / "j", table=SMALL, rungs=(20, 60), progress=tell)
    best = winner(tmp_path / "j")
    assert seen[1:] == [seen[1], seen[1]]
    assert best.finished + best.pruned == 2
    assert best.finished >= 1
    assert 0 < best.held_out.gmae < 2


@pytest.mark.slow
def test_parts_of_a_search_share_its_journal(made_up: Path, tmp_path: Path) -> None:
    from costmodels.training.table_search import search

    seen: list[str] = []
    for part in (0, 1, 0):
        search(
            rows(made_up),
            tmp_path / "j",
            table=SMALL,
            rungs=(20,),
            part=(part, 2),
            progress=seen.append,
        )
    assert seen == ["layers 1, width 8, optimizer adam", "layers 1, width 8, optimizer sgd"]


@pytest.mark.slow
def test_the_winner_trains_again_to_the_same(made_up: Path, tmp_path: Path) -> None:
    from costmodels.training.table_search import search, train_winner, winner

    search(rows(made_up), tmp_path / "j", table=SMALL, rungs=(20, 60))
    best = winner(tmp_path / "j")
    again = train_winner(rows(made_up), best, rungs=(20, 60))
    assert again.rate == best.parameters["rate"]
    assert again.held_out.gmae == pytest.approx(best.held_out.gmae)


@pytest.mark.slow
def test_kept_nets_train_as_if_alone(made_up: Path) -> None:
    from costmodels.training.nets import Nets
    from costmodels.training.table_search import _rows

    point = {"layers": 1, "width": 8, "optimizer": "adam"}
    some, every = Nets(point, 1, _rows(rows(made_up))), Nets(point, 1, _rows(rows(made_up)))
    for nets in (some, every):
        nets.train(20)
    some.select([5])
    for nets in (some, every):
        nets.train(20)
    assert some.rate(0) == every.rate(5) == RATES[5]
    assert np.allclose(some.predict()[0], every.predict()[5], atol=1e-4)


def test_an_op_that_was_not_measured_is_refused(
    made_up: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--data", str(made_up), "--device", "V100-PCIE-32GB"]
    assert main(["search", "gemm", "--op", "liner", *arguments]) == 2
    assert "did you mean 'linear'" in capsys.readouterr().err
