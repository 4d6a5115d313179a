"""Devices as scripts know them, from the cost models."""

from __future__ import annotations

import pytest

from irgraph.language import load_script, run
from irgraph.language.kinds import MEASURES
from irgraph.targets import target
from irgraph.text import IrgraphError
from tests.language.models import mlp


def test_a_target_prices_ops_and_steps() -> None:
    graph = mlp()
    found = target("v100")
    assert found.time(graph.ops[0]) > 0
    figures = found.measure(graph)
    assert figures.keys() == MEASURES.keys()
    assert 0 < figures["gpu.active"] <= figures["step.time"]


def test_scripts_reach_devices_through_it() -> None:
    script = 'sweep b in [4, 8] { target "v100" resize B = b } report step.time best by step.time'
    assert "best" in str(run(load_script(script), mlp(), targets=target).report)


def test_a_device_that_is_nowhere_is_said() -> None:
    with pytest.raises(IrgraphError, match="v1000"):
        target("v1000")
