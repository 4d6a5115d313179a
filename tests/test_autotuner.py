"""What an autotuner does, with nothing but the names of ``irgraph``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import irgraph
from tests.capture.execution_trace.fuzz import rows
from tests.capture.execution_trace.traces import trace
from tests.capture.kineto.builder import write

ON = irgraph.PredictOptions(device="a100", host="v100")

SCRIPT = """pass widen(size: int) "Resizes the batch." { resize B = size }
apply widen(size = 32)
find slow = many aten.mm where op.time > 1us
"""


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> irgraph.Graph:
    """Capture a step, save it and load it again."""
    import torch

    linear = torch.nn.Linear
    net = torch.nn.Sequential(linear(64, 64), torch.nn.ReLU(), linear(64, 8)).to("meta")
    given = torch.empty(16, 64, device="meta")

    def step() -> object:
        loss = net(given).sum()
        loss.backward()
        return loss

    path = tmp_path_factory.mktemp("models") / "mlp.ir"
    irgraph.save(irgraph.capture(step, name="mlp", model=net, dims={"B": 16}).graph, path)
    return irgraph.load(path)


def test_every_instance_of_a_pass_is_checked_and_priced(graph: irgraph.Graph) -> None:
    found = irgraph.load_pass("fuse-epilogue")
    space = irgraph.space(found, graph, device=ON)
    assert found.parameters == () and space.values == {}
    (instance,) = space.instances
    outcome = irgraph.rewrite(graph, [instance], device=ON)
    assert outcome.graph == instance.graph
    assert [entry.replaced for entry in outcome.applied[0].report.entries if entry.changed] == [
        2,
        2,
    ]
    assert irgraph.check(graph, outcome.graph).same

    base = irgraph.predict(graph, ON)
    change = irgraph.diff(graph, outcome.graph, ON)
    pair = irgraph.predict_pair(graph, outcome.graph, ON)
    assert change.before.step_time == base.step_time == pair[0].step_time
    assert change.step_time_change == pair[1].step_time - pair[0].step_time < 0
    assert change.interval[0] < change.step_time_change < change.interval[1]
    assert {one.kind for one in change.changes} >= {"added", "removed"}


def test_a_script_is_no_pipeline(graph: irgraph.Graph) -> None:
    large = irgraph.run_script(graph, SCRIPT, device=ON)
    assert [type(step.stage) for step in large.applied] == [irgraph.Stage]
    assert large.report_lines()
    with pytest.raises(irgraph.IrgraphError, match="run_script"):
        irgraph.rewrite(graph, SCRIPT)
    with pytest.raises(irgraph.IrgraphError, match="device"):
        irgraph.run_script(graph, SCRIPT)


def test_variants_are_what_predictions_say(graph: irgraph.Graph) -> None:
    sizes = [{"B": 16}, {"B": 64}]
    variants = irgraph.predict_variants(graph, ["v100", "a100"], sizes, host="v100")
    for row, device in zip(variants.step_time, ("v100", "a100"), strict=True):
        for time, dims in zip(row, sizes, strict=True):
            alone = irgraph.predict(graph, ON, device=device, dims=dims)
            assert time == pytest.approx(alone.step_time)


def test_a_step_that_was_recorded_is_lowered(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_bytes(trace(*rows()))
    captured = irgraph.lower(path, name="recorded", step=1)
    assert captured.graph.name == "recorded" and captured.exit_code == 0
    assert irgraph.predict(captured.graph, ON).step_time > 0
    with pytest.raises(TypeError, match="stpe"):
        irgraph.lower(path, stpe=1)  # type: ignore[call-arg]


def test_a_profile_is_analysed_and_replayed(tmp_path: Path) -> None:
    path = write(tmp_path)
    analysis = irgraph.analyze_traces(path)
    assert [step.time for step in analysis.steps] == [1000.0] * 3
    assert json.dumps(analysis.as_json())
    replayed = irgraph.replay_trace(path)
    assert [abs(one.error) < 0.2 for one in replayed] == [True] * len(replayed)
