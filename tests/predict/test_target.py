"""Devices as scripts know them, from the cost models."""

from __future__ import annotations

import pytest

from irgraph.language import load_script, run
from irgraph.language.expressions.evaluate import EvaluationError
from irgraph.language.expressions.kinds import MEASURES
from irgraph.predict.target import target
from irgraph.text import IrgraphError, parse
from tests.language.models import mlp

REDUCED = """model "m" { format = 1 }

device @gpu0 "v100"
input %g : f32[1048576] in $b1

c10d.allreduce_([%g!], process_group = "world", reduce_op = "sum", sparse_indices = none)
"""


def test_a_target_prices_ops_and_steps() -> None:
    graph = mlp()
    found = target("v100")
    assert found.time(graph, graph.ops[0]) > 0
    figures = found.measure(graph)
    assert figures.keys() == MEASURES.keys()
    assert 0 < figures["gpu.active"] <= figures["step.time"]


@pytest.mark.long
def test_scripts_reach_devices_through_it() -> None:
    script = 'sweep b in [4, 8] { target "v100" resize B = b } report step.time best by step.time'
    assert "best" in str(run(load_script(script), mlp(), targets=target).report)


def test_a_device_that_is_nowhere_is_said() -> None:
    with pytest.raises(IrgraphError, match="v1000"):
        target("v1000")


def test_a_collective_has_no_time_until_its_ranks_are_known() -> None:
    graph = parse(REDUCED)
    (line,) = target("v100").doubts(graph)
    assert "nothing says how many ranks" in line
    with pytest.raises(EvaluationError, match="nothing says how many ranks"):
        target("v100").time(graph, graph.ops[0])
    known = target("v100", ranks=4)
    assert known.doubts(graph) == []
    assert known.time(graph, graph.ops[0]) == pytest.approx(171.1, abs=0.5)
    assert known.measure(graph)["gpu.active"] == pytest.approx(171.1, abs=0.5)


def test_a_sweep_says_what_its_figures_lack() -> None:
    script = 'sweep n in [1] { target "v100" } report step.time'
    report = str(run(load_script(script), parse(REDUCED), targets=target).report)
    assert "WARNING: 1 collective has no time, and a floor stands in" in report
