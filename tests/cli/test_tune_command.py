"""``irgraph tune`` from the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import irgraph
from tests.tuning.spaces import GRAPH

SPACE = """
passes = ["fuse-epilogue", "fuse-attention"]
dims.B = "256:4096:256"
devices = ["v100", "a100"]
objectives = ["throughput"]
limits."step.time" = "0.5ms"
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Enter a folder with a model and a space."""
    monkeypatch.chdir(tmp_path)
    irgraph.save(GRAPH, "model.ir")
    Path("space.toml").write_text(SPACE)
    return tmp_path


def test_the_best_is_told_and_its_script_runs(run: Callable[..., Any]) -> None:
    words = ("tune", "model.ir", "--space", "space.toml", "--seed", 1, "--trials", 25)
    ran = run(*words, "--storage", "sqlite:///study.db", "-o", "best.irg")
    assert ran.code == 0
    assert "best trials (predicted, unvalidated)" in ran.out
    assert "importances of the choices" in ran.out and "25 trials, of at most 64 points" in ran.err
    told = json.loads(run(*words, "--storage", "sqlite:///study.db", "--json").out)
    assert (told["trials_known"], told["trials"], told["refused"]) == (25, 25, {})
    (best,) = told["best"]
    assert set(told["importances"]["throughput"]) == {"device", "fuse-epilogue", "B"}
    text = Path("best.irg").read_text()
    assert text.startswith(f"# trial {best['trial']} of 25: step.time")
    assert text.partition("\n")[2] == best["script"]
    made = run("opt", "-q", "-s", "best.irg", "model.ir", "-o", "best.ir")
    assert made.code == 0
    step = irgraph.predict(irgraph.load("best.ir"), device=best["point"]["device"])
    assert step.step_time == best["figures"]["step.time"]


def test_a_front_is_listed(run: Callable[..., Any]) -> None:
    words = ("tune", "model.ir", "--space", "space.toml", "--trials", 20, "--seed", 0, "--json")
    told = json.loads(run(*words, "--objective", "throughput", "--objective", "memory.peak").out)
    assert told["objectives"] == ["throughput", "memory.peak"] and len(told["best"]) > 1


def test_a_space_is_explained_without_a_search(run: Callable[..., Any]) -> None:
    out = run("tune", "model.ir", "--space", "space.toml", "--explain").out
    assert "B: 256 to 4096 in steps of 256" in out and "fuse-attention: left out" in out
    told = json.loads(run("tune", "model.ir", "--space", "space.toml", "--explain", "--json").out)
    assert [axis["name"] for axis in told["axes"]] == ["device", "host", "fuse-epilogue", "B"]
    written = run("tune", "model.ir", "--space", "space.toml", "--explain", "-o", "space.txt")
    assert not written.out and Path("space.txt").read_text() == out


def test_what_takes_no_part_is_said(run: Callable[..., Any]) -> None:
    ran = run("tune", "model.ir", "--space", "space.toml", "--trials", 2)
    assert ran.code == 0 and "fuse-attention is left out: none of" in ran.err


@pytest.mark.parametrize("text", ["", 'passes = ["fuse-attention"]'])
def test_a_space_of_one_point_is_refused(run: Callable[..., Any], text: str) -> None:
    Path("space.toml").write_text(text)
    ran = run("tune", "model.ir", "--space", "space.toml")
    assert ran.code == 2 and "there is nothing to choose" in ran.err
    assert ("fuse-attention is left out" in ran.err) == bool(text)
    assert run("tune", "model.ir", "--space", "space.toml", "--explain").code == 0


def test_without_any_that_keeps_the_limits_the_nearest_is_told(run: Callable[..., Any]) -> None:
    Path("space.toml").write_text(
        'dims.B = [256, 512]\nlimits."step.time" = "1us"\nlimits."memory.peak" = "device"\n'
    )
    ran = run("tune", "model.ir", "--space", "space.toml", "--trials", 9, "--seed", 0)
    step = irgraph.predict(irgraph.load("model.ir"), device="v100", measured=False).step_time
    assert "no trial meets all limits; the nearest is trial" in ran.err
    assert f"at most 1.000 us: breaks it by {step - 1:.1%}" in ran.err.replace(
        "0.001000 ms", "1.000 us"
    )
    assert "at most device: keeps it" in ran.err


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("--space", "none.toml"), 4, "none.toml"),
        (("--space", "model.ir"), 4, "not TOML"),
        (("--space", "space.toml", "--sampler", "TPE"), 2, "Optuna has no 'TPE'"),
        (("--space", "space.toml", "--objective", "price"), 2, "price needs prices"),
        (("--space", "space.toml", "--storage", "x.db"), 2, "x.db cannot be used"),
        (("--space", "space.toml", "--trials", "0", "-o", "best.irg"), 1, "no trial meets"),
    ],
)
def test_what_is_wrong_is_said(
    run: Callable[..., Any], words: tuple[str, ...], code: int, message: str
) -> None:
    ran = run("tune", "model.ir", *words)
    assert ran.code == code and message in ran.err
    assert not Path("best.irg").exists()
