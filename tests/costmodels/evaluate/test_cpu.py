"""The loop on the machine at hand, at a small size: measured, calibrated, recorded, predicted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from costmodels.evaluate.cpu import evaluation as cpu
from costmodels.evaluate.cpu.evaluation import Program, Rewrite, evaluate_cpu
from irgraph.diagnostics import IrgraphError

STEPS = (Program("trained", "mlp.py:train(width=64)", 16), Program("run", "mlp.py:infer", 16))
EXPERTS = Program("experts", "experts.py:train(width=32,count=3)", 8)
REWRITES = (
    Rewrite("fuse-optimizer", EXPERTS),
    Rewrite("batch-gemm", EXPERTS),
    Rewrite("resize-batch(to=32)", STEPS[0]),
)


@pytest.mark.long
def test_steps_and_gains_are_predicted_and_measured() -> None:
    found = evaluate_cpu(STEPS, REWRITES, runs=5, scale=0.01)
    assert [row.name for row in found.steps] == ["trained", "run"]
    assert [row.name for row in found.gains] == [
        "fuse-optimizer of experts",
        "batch-gemm of experts",
        "resize-batch(to=32) of trained",
    ]
    for row in (*found.steps, *found.gains):
        assert row.measured > 0 and row.noise >= 0
        assert 1 / 20 < row.predicted / row.measured < 20  # a busy machine's
    assert len({row.predicted for row in found.gains}) == 3 and all(
        g.predicted != 1.0 for g in found.gains
    )
    as_json = json.loads(json.dumps(found.as_json()))
    assert as_json["device"].startswith("cpu-")
    assert as_json["gains"][0].keys() >= {"measured", "noise", "predicted", "error", "detail"}
    assert len(found.render()) == 2 + len(cpu.NOTES)


def test_without_examples_it_says_where_to_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu, "EXAMPLES", tmp_path / "none")
    with pytest.raises(IrgraphError, match="the examples do not lie beside the package"):
        evaluate_cpu(STEPS, (), runs=1, scale=0.01)
