"""``irgraph check`` and ``irgraph opt --check``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from irgraph.cli.commands.check import table
from irgraph.execute.records import Compared, Comparison

HEAD = 'model "m" { format = 1  dims = {B = 2048} }\ndevice @gpu0 "v100"\n'
STEP = """\
input %x : f32[B, 6] in $x
param %w "top.weight" : f32[6, 5] in $w
param %c "top.bias" : f32[5] in $c
%h = aten.addmm(%c, %x, %w) : f32[B, 5] in $h
%y = aten.relu(%h) : f32[B, 5] in $y
%g = aten.mm(%t, %y) : f32[6, 5] in $g
aten.add_(%w!, %g, alpha = -0.1)
"""


@pytest.fixture
def step(tmp_path: Path) -> Path:
    """Return the file of a small step."""
    return write(tmp_path / "a.ir")


def write(path: Path, old: str = "", new: str = "") -> Path:
    """Write the step with one thing changed."""
    transposed = STEP.replace("%g =", "%t = aten.t(%x) : f32[6, B; 1, 6] in $x\n%g =")
    path.write_text(HEAD + transposed.replace(old, new), encoding="utf-8")
    return path


@pytest.mark.long
def test_a_rewrite_that_is_right_is_the_same(run: Callable, step: Path, tmp_path: Path) -> None:
    after = tmp_path / "b.ir"
    assert run("opt", "--pass", "fuse-epilogue", step, "-o", after, "-q").code == 0
    ran = run("check", step, after)
    assert ran.code == 0
    first, second, *_ = ran.out.splitlines()
    assert first.startswith("same: 1 tensor (1 param) within the rounding of f64")
    assert second == "at B = 8; B = 5; B = 3; B = 4, 8 draws from seed 0"
    assert "top.weight" not in ran.out
    assert '%w "top.weight"' in run("check", step, after, "--all").out


def test_one_that_is_wrong_differs(run: Callable, step: Path, tmp_path: Path) -> None:
    ran = run("check", step, write(tmp_path / "b.ir", "alpha = -0.1", "alpha = -0.2"))
    assert ran.code == 1
    first, second, *_ = ran.out.splitlines()
    assert first == (
        "different: 1 of 1 tensor (1 param) by more than the rounding of f64, by perturbed runs"
    )
    assert second.startswith('  param %w "top.weight" : f32[6, 5]: differs by ')
    assert second.endswith("is allowed")
    assert ran.out.count("top.weight") == 2


def test_the_table_holds_what_differs_and_counts_the_rest() -> None:
    same = Compared("a", "param", "", "f32[1]", allowed=1.0)
    result = Comparison((same, replace(same, name="b", absolute=2.0, relative=2.0)))
    assert table(result).row_count == 1
    assert table(result).caption == "1 more are the same (--all shows them)"
    assert table(result, all_tensors=True).row_count == 2


def test_sizes_and_seed_are_taken(run: Callable, step: Path) -> None:
    ran = run("check", step, step, "--dim", "B=3", "--seed", "5")
    assert ran.out.splitlines()[:2] == [
        "same: 1 tensor (1 param) bitwise equal",
        "at B = 3, 8 draws from seed 5",
    ]


def test_branches_that_no_draw_reached_are_listed(run: Callable, tmp_path: Path) -> None:
    before, after = tmp_path / "a.ir", tmp_path / "b.ir"
    squashed = HEAD.partition("param")[0] + (
        "input %x : f32[4] in $x\n%y = aten.tanh(%x) : f32[4] in $y\n"
    )
    before.write_text(f"{squashed}%z = aten.clamp(%y, max = 2.0) : f32[4] in $z\n")
    after.write_text(f"{squashed}%z = aten.mul(%y, other = 1.0) : f32[4] in $z\n")
    ran = run("check", before, after)
    assert ran.code == 0
    assert ran.out.startswith("same where exercised: 1 tensor")
    assert "no draw reached 1 branch:\n  aten.clamp of %z" in ran.out
    assert run("check", before, after, "--strict").code == 3
    assert run("check", before, before, "--strict").code == 0
    found = json.loads(run("check", before, after, "--json").out)
    assert (found["same"], found["where_exercised"], len(found["unexercised"])) == (True, True, 1)


def test_json_holds_every_figure(run: Callable, step: Path) -> None:
    found = json.loads(run("check", step, step, "--json").out)
    assert (found["same"], found["exact"], found["lost"]) == (True, True, [])
    (one,) = found["compared"]
    assert (one["name"], one["kind"], one["type"], one["same"]) == ("w", "param", "f32[6, 5]", True)


def test_what_cannot_be_executed_is_named(run: Callable, step: Path, tmp_path: Path) -> None:
    other = write(tmp_path / "b.ir", "aten.relu", "lib.relu")
    ran = run("check", step, other)
    assert ran.code == 4
    assert "lib.relu (1): no known schema takes these operands" in ran.err


def test_a_bad_size_is_told(run: Callable, step: Path) -> None:
    for given, message in [
        ("B=x", "error: --dim B: give a whole number of at least 1, not 'x'"),
        ("C=2", "error: no model has a dimension 'C'"),
    ]:
        ran = run("check", step, step, "--dim", given)
        assert (ran.code, ran.err.splitlines()[0]) == (2, message)


def test_too_little_memory_is_told(run: Callable, step: Path) -> None:
    ran = run("check", step, step, "--limit", "0")
    assert ran.code == 4
    assert "more than the limit of 0 GiB" in ran.err


def test_opt_checks_what_it_wrote(run: Callable, step: Path, tmp_path: Path) -> None:
    after = tmp_path / "b.ir"
    ran = run("opt", "--check", "--pass", "fuse-epilogue", step, "-o", after)
    assert ran.code == 0
    assert "same: 1 tensor (1 param) within" in ran.err
    assert after.exists()


def test_opt_writes_nothing_that_computes_something_else(
    run: Callable, step: Path, tmp_path: Path
) -> None:
    after = tmp_path / "b.ir"
    other = "replace %y = aten.relu(%x) with %y = aten.neg(%x)"
    ran = run("opt", "--check", "-e", other, step, "-o", after)
    assert ran.code == 1
    assert "the new model is not written" in ran.err
    assert not after.exists()
    assert run("opt", "--check", "-e", other, step).out == ""


DROPPED = """
input %x : f32[B, 6] in $x
param %w : f32[6, 6] in $w
%h = aten.dropout(%x, p = 0.5, train = true) : f32[B, 6] in $h
%r = aten.relu(%h) : f32[B, 6] in $r
%c = aten.clone(%r) : f32[B, 6] in $c
%t = aten.t(%c) : f32[6, B; 1, 6] in $c
%g = aten.mm(%t, %c) : f32[6, 6] in $g
aten.add_(%w!, %g, alpha = -0.1)
"""


def test_a_pass_that_changes_results_on_purpose_is_not_compared(
    run: Callable, tmp_path: Path
) -> None:
    before, after = tmp_path / "a.ir", tmp_path / "b.ir"
    before.write_text(HEAD + DROPPED, encoding="utf-8")
    ran = run("opt", "-q", "--check", "--pass", "clean-copies, drop-dropout", before, "-o", after)
    assert (ran.code, after.exists()) == (0, True)
    first, second, *_, last = ran.err.splitlines()
    assert (first, second) == ("clean-copies:", "same: 1 tensor (1 param) bitwise equal")
    assert last == "drop-dropout: changes results on purpose, so they are not compared"
    told = run("check", before, after)
    assert (told.code, "what follows from aten.dropout has to differ" in told.out) == (1, True)
    wrong = ["-e", "replace %y = aten.relu(%x) with %y = aten.neg(%x)"]
    ran = run("opt", "-q", "--check", "--pass", "clean-copies", *wrong, before)
    assert ran.code == 1
    assert ran.err.splitlines()[-2].startswith(
        "the first stage whose results differ: stage 2, replace %y = "
    )
    assert run("opt", "-q", "--check", "--pass", "fuse-adam", before).err.splitlines() == [
        "same: the model has not changed"
    ]


def test_a_missing_torch_is_told(
    run: Callable, step: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("irgraph.execute.find_spec", lambda name: None)
    ran = run("check", step, step)
    assert ran.code == 2
    assert ran.err.splitlines() == [
        "error: executing a graph needs PyTorch",
        "hint: pip install irgraph[torch]",
    ]
