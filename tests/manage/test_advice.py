"""Advice: savings of single passes, and of their greedy combination."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import irgraph
from irgraph.cli.main import main
from irgraph.manage.advice import Advice, advise
from irgraph.predict.options import PredictOptions

OPTIONS = PredictOptions(device="h100")
DLRM = "costmodels/evaluate/data/dlrm_default.ir"
PRODUCT = """model "m" { format = 2 }

device @gpu0 "v100"
param %a "a" : f32[8192, 8192] in $b1
param %b "b" : f32[8192, 8192] in $b2

%y = aten.mm(%a, %b) : f32[8192, 8192] in $b3
return %y
"""
SORT = """model "m" { format = 2 }

device @gpu0 "v100"
param %x "x" : f32[8192, 8192] in $b1

%y, %i = aten.sort(%x, dim = 0) : f32[8192, 8192] in $b2, i64[8192, 8192] in $b3
return %y
"""


@pytest.fixture(scope="module")
def advice() -> Advice:
    return advise(irgraph.load(DLRM), OPTIONS)


def test_each_gain_is_that_of_the_rewritten_step(advice: Advice) -> None:
    graph = irgraph.load(DLRM)
    before = irgraph.predict(graph, OPTIONS).step_time
    assert [gain.saved for gain in advice.gains] == sorted(
        (gain.saved for gain in advice.gains), reverse=True
    )
    for gain in advice.gains:
        after = irgraph.rewrite(graph, gain.name).graph
        saved = before - irgraph.predict(after, OPTIONS).step_time
        assert gain.saved == pytest.approx(saved), gain.name
        low, high = gain.summary()["saved_interval_us"]
        assert low < gain.saved < high


def test_the_combination_is_applied_in_its_order(advice: Advice) -> None:
    assert advice.order[0] == advice.gains[0].name == "fuse-embedding"
    graph = irgraph.load(DLRM)
    combined = irgraph.run_script(graph, advice.script).graph
    assert advice.combined is not None
    assert irgraph.predict(combined, OPTIONS).step_time == pytest.approx(
        advice.combined.after.step_time
    )
    assert advice.combined.after.step_time < advice.gains[0].difference.after.step_time


def test_no_pass_that_is_left_out_would_add_to_the_combination(advice: Advice) -> None:
    assert advice.combined is not None
    combined, time = advice.combined.after.priced.graph, advice.combined.after.step_time
    for gain in advice.gains:
        if not gain.changes_results:
            after = irgraph.rewrite(combined, gain.name).graph
            saved = time - irgraph.predict(after, OPTIONS).step_time
            assert saved <= 0.002 * advice.before.step_time, gain.name


def test_narrower_types_are_no_part_of_the_combination() -> None:
    advice = advise(irgraph.parse(PRODUCT), OPTIONS)
    assert [(gain.name, gain.legality) for gain in advice.gains] == [
        ("cast-gemms", "narrower types")
    ]
    assert (advice.order, advice.combined, advice.script) == ((), None, "")


def test_the_command_writes_a_script_and_names_what_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "passes"
    folder.mkdir()
    (folder / "wrong.irg").write_text(
        'pass wrong\n  "Expects what is not there."\n{\n  expect 1 aten.nope\n}\n'
    )
    script = tmp_path / "faster.irg"
    words = ["advise", DLRM, "--device", "h100", "--pass-path", str(folder)]
    assert main([*words, "-o", str(script), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert "wrong" in result["refused"]
    assert result["combined"]["passes"][0] == "fuse-embedding"
    assert script.read_text().startswith("apply fuse-embedding()\n")
    assert main(["opt", "-s", str(script), DLRM, "-o", str(tmp_path / "faster.ir")]) == 0
    assert main(words) == 0
    out = capsys.readouterr().out
    assert (
        out.startswith("H100-80GB-HBM3: ") and "Next: irgraph opt --pass 'fuse-embedding, " in out
    )


def test_a_step_that_no_pass_improves_is_told_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "m.ir"
    model.write_text(SORT)
    assert main(["advise", str(model)]) == 0
    assert "No pass of the library that preserves results" in capsys.readouterr().out
