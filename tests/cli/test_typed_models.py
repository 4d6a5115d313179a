"""Commands that price a model refuse one whose types torch does not give, once a text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from irgraph.execute import type_check
from irgraph.execute.types import cache as type_cache
from irgraph.ir.graph import Graph
from tests.cli.conftest import Ran

Run = Callable[..., Ran]

ILL_TYPED = """model "bad" { format = 1  dims = {B = 4} }

device @gpu0 "v100"
input %x : f32[B, 32] in $x
param %w : f32[8, 32] in $w

%t = aten.t(%w) : f32[32, 8; 8, 1] in $w
%y = aten.mm(%x, %t) : f32[B, 8] in $y
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "irgraph" / "types"


def _command_lines(model: str, folder: Path) -> list[list[str]]:
    space = folder / "space.toml"
    space.write_text("[dims]\nB = [4, 8]\n")
    return [
        ["predict", model],
        ["diff", model, model],
        ["opt", "--pass", "clean-copies", model],
        ["sweep", model, "--dim", "B=1,2", "-o", str(folder / "sweep"), "--workers", "0"],
        ["tune", model, "--space", str(space), "--trials", "1"],
        ["roofline", model],
        ["studio", model, "--no-browser"],
        ["record", model, "-o", str(folder / "recorded")],
        ["quantize", model, "--budget", "1%"],
        ["measure", model, "--device", "cpu", "-o", str(folder / "measured.jsonl")],
    ]


def test_ill_typed_models_are_not_priced(tmp_path: Path, run: Run) -> None:
    pytest.importorskip("torch")
    model = tmp_path / "bad.ir"
    model.write_text(ILL_TYPED)
    for words in _command_lines(str(model), tmp_path):
        result = run(*words)
        assert result.code == 4, words
        assert "bad.ir:7:1: error: aten.t: makes strides (1, 32), not %t, (8, 1)" in result.err


def test_a_text_is_checked_once(
    tmp_path: Path, cache: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    checks: list[str] = []
    original = type_check.type_findings

    def counted(graph: Graph) -> object:
        checks.append(graph.name)
        return original(graph)

    monkeypatch.setattr(type_check, "type_findings", counted)
    model = tmp_path / "good.ir"
    model.write_text(ILL_TYPED.replace("; 8, 1]", "; 1, 32]"))
    assert [run("predict", str(model)).code for _ in range(3)] == [0, 0, 0]
    assert len(checks) == len(list(cache.iterdir())) == 1
    model.write_text(model.read_text() + "\n")
    assert run("predict", str(model)).code == 0
    assert len(checks) == 2


def test_without_torch_the_answer_says_unverified(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type_cache, "find_spec", lambda _: None)
    model = tmp_path / "bad.ir"
    model.write_text(ILL_TYPED)
    result = run("predict", str(model))
    assert result.code == 0
    assert f"note: types of {model} unverified, as torch is not installed" in result.err


def test_old_models_leave_the_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type_cache, "MAX_MODELS", 4)
    cache.parent.mkdir(parents=True)
    for number in range(9):
        type_cache._remember(cache / str(number))
    assert 1 <= len(list(cache.iterdir())) <= 4
