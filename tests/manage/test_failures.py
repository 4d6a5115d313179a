"""Reproducers, bisection and reduction."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from irgraph.diagnostics import IrgraphError
from irgraph.ir.graph import Graph
from irgraph.manage.bisect import bisect
from irgraph.manage.predicates import exceeds_limits, results_differ
from irgraph.manage.reduce import broken_result_predicate, reduce, same_failure_predicate
from irgraph.manage.reproducer import Reproducer, model_text, recorded_script
from irgraph.manage.run import run_stages
from irgraph.manage.stage import PipelineStep, stages
from irgraph.ops.verify import verify
from irgraph.text import parse
from tests.language.models import mlp

PIPELINE = [
    PipelineStep("pass", "clean-copies"),
    PipelineStep("text", "resize B = 8"),
    PipelineStep("pass", "fuse-epilogue"),
    PipelineStep("text", "resize B = 16"),
]


def large(graph: Graph) -> str:
    return "too large" if graph.dims["B"] >= 8 else ""


def test_a_reproducer_is_a_model_and_fails_again_by_itself(tmp_path: Path) -> None:
    path = tmp_path / "again.ir"
    steps = [PipelineStep("pass", "fuse-epilogue"), PipelineStep("text", "expect 9 aten.t")]
    watcher = Reproducer(path)
    with pytest.raises(IrgraphError):
        run_stages(mlp(), stages(steps), watchers=[watcher])
    assert watcher.written
    text = path.read_text()
    assert "irgraph.addmm_relu" in model_text(text)
    assert "# irgraph reproducer: stage 2, expect 9 aten.t" in text
    assert parse(text) == parse(model_text(text))
    with pytest.raises(IrgraphError, match="expected 9"):
        run_stages(parse(model_text(text)), stages([PipelineStep("text", recorded_script(text))]))


def test_a_reproducer_holds_the_passes_that_it_applies(tmp_path: Path) -> None:
    (tmp_path / "mine.irg").write_text('pass mine(n: int = 1) "M." { expect 9 aten.t }')
    path = tmp_path / "again.ir"
    with pytest.raises(IrgraphError):
        run_stages(
            mlp(),
            stages([PipelineStep("pass", "mine(n=2)")]),
            pass_path=[str(tmp_path)],
            watchers=[Reproducer(path, [str(tmp_path)])],
        )
    script = recorded_script(path.read_text())
    assert script.startswith("pass mine(n: int = 1)")
    assert script.endswith("apply mine(n = 2)\n")


def test_mere_models_hold_no_script() -> None:
    assert recorded_script('model "m" { format = 1 }\n') == ""


def test_only_defects_are_written_where_no_file_was_asked_for(tmp_path: Path) -> None:
    watcher = Reproducer(tmp_path / "r.ir", defects=True)
    stage = stages([PipelineStep("text", "expect 1 aten.t")])[0]
    watcher.failed(stage, mlp(), IrgraphError())
    assert not watcher.written
    watcher.failed(stage, mlp(), KeyError("oops"))
    assert watcher.written


@pytest.mark.long
def test_bisect_finds_the_first_stage_that_breaks_a_predicate() -> None:
    found = bisect(mlp(), stages(PIPELINE), large)
    assert found.stage is not None
    assert found.stage.number == 2
    assert found.reason == "too large"
    assert found.before.dims["B"] == 4
    assert found.checks <= 4


def test_bisect_tells_that_nothing_breaks() -> None:
    assert bisect(mlp(), stages(PIPELINE)).stage is None


def test_bisect_finds_the_stage_that_fails() -> None:
    steps = [*PIPELINE, PipelineStep("text", "expect 9 aten.t"), *PIPELINE[:1]]
    found = bisect(mlp(), stages(steps))
    assert found.stage is not None
    assert (found.stage.number, found.after) == (5, None)
    assert "expected 9" in found.reason


def test_bisect_refuses_a_model_that_is_broken_before() -> None:
    with pytest.raises(IrgraphError, match="broken before the first stage: too large"):
        bisect(replace(mlp(), dims={"B": 9}), stages(PIPELINE), large)


def test_a_limit_is_a_predicate() -> None:
    assert "over the limit" in exceeds_limits(["step.time=1us"])(mlp())
    assert exceeds_limits(["step.time=1s"])(mlp()) == ""


def test_another_result_is_a_predicate() -> None:
    graph = mlp()
    broken = results_differ(graph)
    assert broken(graph) == ""
    assert broken(run_stages(graph, stages([PipelineStep("pass", "fuse-epilogue")])).graph) == ""
    last = graph.ops[-2]
    wrong = replace(last, name="aten.sigmoid_")
    assert broken(replace(graph, ops=(*graph.ops[:-2], wrong, graph.ops[-1])))


def test_reduce_keeps_what_fails_and_stays_sound() -> None:
    pipeline = stages([PipelineStep("text", "expect no aten.relu_")])
    interesting = same_failure_predicate(mlp(), pipeline)
    assert interesting is not None
    result = reduce(mlp(), interesting)
    assert [op.name for op in result.graph.walk()] == ["aten.relu_"]
    assert not verify(result.graph)
    assert len(result.graph.tensors) == 1
    assert (result.ops_before, result.ops) == (9, 1)


def test_reduce_goes_into_bodies() -> None:
    pipeline = stages(
        [PipelineStep("text", 'expect no %y = aten.addmm(_, %x, _) where %x.name == "y1"')]
    )
    interesting = same_failure_predicate(mlp(), pipeline)
    assert interesting is not None
    assert [op.name for op in reduce(mlp(), interesting).graph.walk()] == ["aten.addmm"]


def test_reduce_stops_after_so_many_tries() -> None:
    assert reduce(mlp(), lambda graph: False, max_tries=3).tries == 3


def test_what_does_not_fail_cannot_be_reduced() -> None:
    assert same_failure_predicate(mlp(), stages([PipelineStep("text", "expect 2 aten.t")])) is None
    assert broken_result_predicate(mlp(), stages([]), lambda graph: "") is None


def test_reduce_holds_a_broken_result() -> None:
    interesting = broken_result_predicate(mlp(), stages(PIPELINE), large)
    assert interesting is not None
    assert reduce(mlp(), interesting).ops == 0
