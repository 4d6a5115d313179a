"""Replays with the host times of a host table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from costmodels.hosts.from_traces import published_tree
from costmodels.hosts.writing import encode
from irgraph.cli.main import app, main
from irgraph.overheads.table import LAUNCH_STD, list_hosts, load_host
from irgraph.replay.replay import build_replayer
from irgraph.replay.table_times import names_table, table_times

TRACE = "traces/resnet18_RTX2080Ti/kineto.json.gz"


def replay(*words: object) -> dict[str, object]:
    result = CliRunner().invoke(app, ["replay", *map(str, words), "--json"])
    assert result.exit_code in (0, 3), result.output
    figures: dict[str, object] = json.loads(result.stdout)
    return figures


@pytest.mark.data
def test_the_table_of_a_trace_gives_its_step_back(data_dir: Path, tmp_path: Path) -> None:
    """Without its recording, which the replay adds again: as with the trace's own means."""
    trace = data_dir / TRACE
    table = tmp_path / "host.json"
    assert CliRunner().invoke(app, ["overheads", str(trace), "-o", str(table)]).exit_code == 0
    own = replay(trace)["mean_error"]
    other = replay(trace, "--overheads", table, "--no-match-speed")["mean_error"]
    assert other == pytest.approx(own, abs=0.04)


@pytest.mark.data
@pytest.mark.parametrize("options", [(), ("--no-match-speed",)])
def test_the_recording_of_a_profiled_table_counts_once(
    data_dir: Path, options: tuple[str, ...]
) -> None:
    """The table of this trace and of one more: counted twice, steps are 15 to 23 % too long."""
    trace = data_dir / "traces/resnet50_V100/kineto_workers0.json.gz"
    figures = replay(trace, "--overheads", "v100-dgxs-resnet50-profiled", *options)
    assert figures["mean_error"] == pytest.approx(0.0, abs=0.08)
    (origin,) = figures["host_times"]  # type: ignore[misc]
    assert "as profiled (the recording here is not added)" in origin["of"]


@pytest.mark.data
def test_a_table_of_uncorrected_times_is_profiled(data_dir: Path, tmp_path: Path) -> None:
    for cost, is_profiled in (("0,0", True), ("1,0", False)):
        path = tmp_path / "host.json"
        words = ["overheads", str(data_dir / TRACE), "--profiler", cost, "-o", str(path)]
        assert CliRunner().invoke(app, words).exit_code == 0
        assert load_host(str(path)).file.profiled is is_profiled


@pytest.mark.data
@pytest.mark.parametrize("source", ["default", "own", "v100@2x"])
def test_outliers_without_samples_are_refused(
    source: str, data_dir: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["replay", str(data_dir / TRACE), "--overheads", source, "--outliers", "median"]
    assert main(words) == 2
    assert f"--outliers median selects samples of a trace, and --overheads {source} has" in (
        capfd.readouterr().err
    )


@pytest.mark.data
def test_a_shipped_table_is_scaled_by_the_launches(data_dir: Path) -> None:
    replayer = build_replayer(published_tree(data_dir / TRACE))
    matched = table_times(replayer, "default", match_speed=True)
    plain = table_times(replayer, "default", match_speed=False)
    fixed = table_times(replayer, "default@4us", match_speed=True)
    assert matched.table.startswith("h100-torch-2.11@") and matched.table.endswith("us")
    assert (plain.table, fixed.table) == ("h100-torch-2.11", "h100-torch-2.11@4us")
    assert matched.times.machine_std == pytest.approx(LAUNCH_STD)
    assert plain.times.machine_std > LAUNCH_STD


@pytest.mark.data
def test_the_origin_is_named(data_dir: Path) -> None:
    figures = replay(data_dir / TRACE, "--overheads", "default@9us")
    (origin,) = figures["host_times"]  # type: ignore[misc]
    assert origin["of"] == "host table h100-torch-2.11@9us"
    assert origin["shares"]["shapes"] == 0.0 < origin["shares"]["name"]


def test_tables_are_known_by_name_or_content(tmp_path: Path) -> None:
    table, trace = tmp_path / "table.json", tmp_path / "trace.json"
    content = json.loads(encode(load_host("v100").file))
    # in another order, as other programs write it
    table.write_text(json.dumps({"T1": content.pop("T1"), **content}))
    trace.write_text('{"traceEvents": []}')
    named = ("default", "default@1.5x", "v100@9us", *list_hosts())
    assert all(names_table(name) for name in (*named, str(table), f"{table}@2x"))
    assert not any(names_table(name) for name in (str(trace), str(tmp_path), "-"))


@pytest.mark.data
@pytest.mark.parametrize("name", ["h100-torch-2.1", "h100-torch-2.1@4.9us"])
def test_an_unknown_name_suggests_a_table(
    name: str, data_dir: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", str(data_dir / TRACE), "--overheads", name]) == 2
    assert "did you mean 'h100-torch-2.11'?" in capfd.readouterr().err


@pytest.mark.data
def test_an_impossible_scale_of_a_table_is_refused(data_dir: Path) -> None:
    assert main(["replay", str(data_dir / TRACE), "--overheads", "v100@1000x"]) == 2
