"""The example that searches architectures: figures, the limit of memory, captures made once."""

from __future__ import annotations

import sys
from pathlib import Path

import optuna
import pytest

import irgraph
from examples import nas


@pytest.fixture(scope="module")
def search(tmp_path_factory: pytest.TempPathFactory) -> nas.Search:
    return nas.Search("t4", 1.0, str(tmp_path_factory.mktemp("nas") / "captures"))


def tried(search: nas.Search, **chosen: object) -> optuna.trial.FrozenTrial:
    """Return the trial of one architecture."""
    study = optuna.create_study()
    study.enqueue_trial(chosen)
    study.optimize(search, n_trials=1)
    return study.trials[0]


SMALL = {"layers": 2, "heads": 2, "head": 32, "log2 of batch": 3}


def test_a_trial_is_what_prediction_and_law_say(search: nas.Search) -> None:
    trial = tried(search, **SMALL)
    width, words = 64, 4096
    layer = 12 * width**2 + 13 * width  # of attention and perceptron, with biases and two norms
    count = 2 * layer + 2 * width + words * width + words * (width + 1)
    assert trial.user_attrs["parameters"] == count
    graph = search.capture(2, 2, 32)
    step = irgraph.predict(graph, device="t4", dims={"B": 8}, measured=False).step_time
    tokens = 3600e6 / step * 8 * nas.LENGTH
    assert trial.user_attrs["tokens"] == pytest.approx(tokens)
    assert trial.value == pytest.approx(1.69 + 406.4 / count**0.34 + 410.7 / tokens**0.28)
    assert trial.constraints["memory"] < 0


def test_what_does_not_fit_breaks_the_limit(search: nas.Search) -> None:
    few, many = (tried(search, **{**SMALL, "log2 of batch": size}) for size in (3, 8))
    assert few.constraints["memory"] < many.constraints["memory"]
    assert len(list(Path(search.cache).iterdir())) == 1  # the batch needs no capture of its own


def test_a_search_that_was_ended_captures_nothing_again(
    search: nas.Search,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def asked(trials: int) -> str:
        words = ["--device", "t4", "--hours", "1", "--trials", str(trials)]
        kept = ["--cache", search.cache, "--storage", f"sqlite:///{tmp_path}/nas.db"]
        monkeypatch.setattr(sys, "argv", ["nas.py", *words, *kept])
        nas.main()
        return capsys.readouterr().out

    for name, only in (("LAYERS", 2), ("HEADS", 2), ("HEAD", 32)):
        monkeypatch.setattr(nas, name, (only,))
    text = asked(3)
    assert text.startswith("3 trials") and "million parameters" in text
    monkeypatch.setattr(irgraph, "capture_file", None)  # nothing is tried again
    assert asked(3) == text
