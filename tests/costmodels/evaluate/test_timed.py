"""Steps and gains timed on a GPU, beside predictions."""

from __future__ import annotations

import ast
from typing import Any

import pytest

from costmodels.evaluate.timed.evaluation import DEVICE, evaluate_timed
from costmodels.evaluate.timed.gains import CHANGES, pairs
from costmodels.evaluate.timed.steps import PROGRAMS, Step, steps_of

pytest.importorskip("torch")


def made(time: float, *, how: str = "", tf32: bool = False, **options: Any) -> Step:
    return Step("gpt", 8, options, how, tf32, False, time, time, time, time, 0)


def test_every_timed_step_names_a_program_and_its_options() -> None:
    tree = ast.parse(PROGRAMS.read_text(encoding="utf-8"))
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    steps = steps_of(DEVICE)
    assert len(steps) > 120
    for step in steps:
        known = {argument.arg for argument in functions[step.program].args.args}
        assert step.options.keys() <= known, step.name
        assert step.low <= step.time <= step.high


def test_pairs_differ_in_the_change_alone() -> None:
    steps = [
        made(9.0, eager=True),
        made(6.0),
        made(5.0, how="graph"),
        made(4.0, eager=True, words=50304),
        made(3.0, words=50304),
    ]
    found = [(pair.change.name, pair.gain) for pair in pairs(steps)]
    assert found == [
        ("attention in one call", 1.5),
        ("attention in one call", pytest.approx(4 / 3)),
        ("CUDA graph", 1.2),
        ("vocabulary of 50,304 instead of 50,257", 2.25),
        ("vocabulary of 50,304 instead of 50,257", 2.0),
    ]


def test_every_change_has_a_measured_pair() -> None:
    changes = {pair.change.name for pair in pairs(steps_of(DEVICE))}
    assert changes == {change.name for change in CHANGES}


def test_predicts_steps_and_the_gain_of_a_cuda_graph() -> None:
    def small(step: Step) -> bool:
        return step.program == "score" and step.batch == 64 and step.options["name"] == "ddp"

    found = evaluate_timed(select=small)
    names = [series.quantity for series in found.series]
    assert names == [
        "CUDA graphs, replayed",
        "DLRM, inference",
        "gain of CUDA graph, by cuda-graph",
        "peak memory: inference",
    ]
    (gain,), (memory,) = (series.points for series in found.series[-2:])
    assert memory.predicted == pytest.approx(memory.measured, rel=0.05)
    assert gain.measured == pytest.approx(936.23 / 152.69, rel=1e-3)
    assert 0.4 < gain.predicted / gain.measured < 2.5
    assert [group.cases for group in found.intervals] == [1, 1, 2]
