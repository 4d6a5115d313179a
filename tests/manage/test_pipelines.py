"""Pipelines: their stages, and what watches them."""

from __future__ import annotations

from pathlib import Path

import pytest

from irgraph.diagnostics import IrgraphError
from irgraph.ir.graph import Graph
from irgraph.manage.run import describe_passes, run_stages, shadowed_passes
from irgraph.manage.stage import Applied, PipelineStep, Stage, stages
from irgraph.manage.watch import PrintAfter, PrintDiff, Statistics, StopAfter, Timing, Watcher
from tests.language.models import mlp, training

BOTH = [
    PipelineStep("pass", "fuse-epilogue, clean-copies"),
    PipelineStep("text", "expect 2 aten.t"),
]


class Seen(Watcher):
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def before(self, stage: Stage, graph: Graph) -> None:
        self.told.append(f"before {stage.name}")

    def after(self, done: Applied, before: Graph, graph: Graph) -> None:
        self.told.append(f"after {done.stage.name}{' changed' if done.changed else ''}")

    def failed(self, stage: Stage, graph: Graph, error: Exception) -> None:
        self.told.append(f"failed {stage.name}")


def test_each_pass_of_a_pipeline_and_each_script_is_a_stage() -> None:
    found = stages(BOTH)
    assert [stage.name for stage in found] == ["fuse-epilogue", "clean-copies", "expect 2 aten.t"]
    assert [stage.number for stage in found] == [1, 2, 3]
    assert str(found[0]) == "stage 1, fuse-epilogue"


def test_watchers_see_each_stage_and_how_it_ended() -> None:
    seen = Seen()
    run_stages(mlp(), stages(BOTH), watchers=[seen])
    assert seen.told == [
        "before fuse-epilogue",
        "after fuse-epilogue changed",
        "before clean-copies",
        "after clean-copies",
        "before expect 2 aten.t",
        "after expect 2 aten.t",
    ]


def test_a_stage_that_fails_is_told_and_the_error_goes_on() -> None:
    seen = Seen()
    with pytest.raises(IrgraphError, match="expected 9"):
        run_stages(mlp(), stages([PipelineStep("text", "expect 9 aten.t")]), watchers=[seen])
    assert seen.told[-1] == "failed expect 9 aten.t"


def test_all_steps_are_checked_before_the_first_runs() -> None:
    seen = Seen()
    with pytest.raises(IrgraphError):
        run_stages(mlp(), stages([*BOTH, PipelineStep("pass", "no-such-pass")]), watchers=[seen])
    assert seen.told == []


def test_stop_after_leaves_out_the_rest_and_says_so() -> None:
    outcome = run_stages(mlp(), stages(BOTH), watchers=[StopAfter(1)])
    assert [done.label for done in outcome.applied] == ["fuse-epilogue"]
    assert [stage.number for stage in outcome.skipped] == [2, 3]


@pytest.mark.parametrize(
    ("which", "stages_shown"),
    [
        ("all", ["stage 1, fuse-epilogue", "stage 2, clean-copies", "stage 3, expect 2 aten.t"]),
        ("changed", ["stage 1, fuse-epilogue"]),
        ("clean-copies", ["stage 2, clean-copies"]),
        ("failed", []),
    ],
)
def test_print_after_prints_what_is_asked_for(which: str, stages_shown: list[str]) -> None:
    lines: list[str] = []
    run_stages(mlp(), stages(BOTH), watchers=[PrintAfter(which, lines.append)])
    assert [line.splitlines()[0] for line in lines] == [f"# after {s}" for s in stages_shown]
    assert all('model "m"' in line for line in lines)


def test_print_after_failed_prints_what_the_stage_was_given() -> None:
    lines: list[str] = []
    steps = [PipelineStep("pass", "fuse-epilogue"), PipelineStep("text", "expect 9 aten.t")]
    with pytest.raises(IrgraphError):
        run_stages(mlp(), stages(steps), watchers=[PrintAfter("failed", lines.append)])
    assert lines[0].startswith("# before stage 2, expect 9 aten.t, which failed\n")
    assert "irgraph.addmm_relu" in lines[0]


def test_print_diff_shows_what_each_stage_changed() -> None:
    lines: list[str] = []
    run_stages(mlp(), stages(BOTH[:1]), watchers=[PrintDiff(lines.append)])
    assert "+    2 irgraph.addmm_relu" in lines[0]
    assert "-    2 aten.linear" in lines[0]
    assert lines[1] == "stage 2, clean-copies:\n  no difference"


def test_timing_has_a_row_for_each_stage_and_their_sum() -> None:
    timing = Timing()
    run_stages(mlp(), stages(BOTH), watchers=[timing])
    assert [row["stage"] for row in timing.rows()] == [
        "fuse-epilogue",
        "clean-copies",
        "expect 2 aten.t",
        "all",
    ]
    assert timing.rows()[-1]["share"] == "100.0%"


def test_statistics_tell_what_was_tried_matched_and_missed() -> None:
    statistics = Statistics()
    steps = [PipelineStep("text", "remove %y = aten.relu(aten.mm(_, _)) using %y for %y")]
    run_stages(mlp(), stages(steps), watchers=[statistics])
    (row,) = statistics.rows()
    assert (row["tried"], row["matched"], row["went"]) == ("1", "0", "0")
    assert row["nearest miss"].startswith("aten.relu (%y1)")


def test_unverified_results_are_let_through() -> None:
    script = "remove %g = aten.sum(%x)"
    assert (
        run_stages(mlp(), stages([PipelineStep("text", script)]), verified=False).graph is not None
    )


def test_a_pass_that_hides_another_is_told(tmp_path: Path) -> None:
    (tmp_path / "clean-copies.irg").write_text('pass clean-copies "Mine." {}')
    hidden = shadowed_passes([str(tmp_path)])
    assert [path.name for path in hidden["clean-copies"]] == ["clean-copies.irg"]
    row = next(r for r in describe_passes([str(tmp_path)]) if r["name"] == "clean-copies")
    assert row["source"].startswith(str(tmp_path))
    assert row["hides"].endswith("passes/clean-copies.irg")
    assert "clean-copies" not in shadowed_passes()


def test_one_pass_of_a_pipeline_sees_what_the_one_before_it_made() -> None:
    steps = [
        PipelineStep("pass", "fuse-embedding"),
        PipelineStep("text", "expect 1 irgraph.batched_embedding"),
    ]
    assert len(run_stages(training(3), stages(steps)).applied) == 2
