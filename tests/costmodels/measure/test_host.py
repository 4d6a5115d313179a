"""``irgraph hosts --measure``: one number of this machine's host, and what it is used for."""

from __future__ import annotations

import json

import pytest

from costmodels.measure.host import HostPace, measure_host
from irgraph.cli.main import main
from irgraph.overheads import load_host

torch = pytest.importorskip("torch")


def test_a_host_is_timed_on_one_thread_and_threads_are_given_back() -> None:
    before = torch.get_num_threads()
    found = measure_host(torch, seconds=0.0)
    assert found.rounds == 4
    assert 1 < found.us < 5000
    assert found.spread >= 0
    assert torch.get_num_threads() == before


def test_a_factor_is_how_many_times_as_fast_this_host_is() -> None:
    assert HostPace(40.0, 0.02, 300, "2.13").factor(60.0) == pytest.approx(1.5)


def test_the_command_prints_what_host_takes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["hosts", "--measure", "--beside", "60", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["factor"] == pytest.approx(60 / found["us"], rel=1e-2)
    assert load_host(f"v100@{found['factor']:g}x").speeds["T2"] == pytest.approx(found["factor"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--beside", "3"], "needs --measure"),
        (["--measure", "--beside", "nan"], "nan"),
        (["--measure", "--beside", "0"], "0.001"),
    ],
)
def test_a_number_without_meaning_is_refused(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["hosts", *words]) == 2
    assert said in capsys.readouterr().err
