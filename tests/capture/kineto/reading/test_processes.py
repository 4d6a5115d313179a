"""Files with several processes: each that launches device work is a rank."""

from __future__ import annotations

import copy
import gzip
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from irgraph.capture.kineto import read_kineto
from irgraph.capture.kineto.events.ranks import read_trees
from irgraph.capture.kineto.reading.ingest import read_processes
from irgraph.cli.main import app
from irgraph.diagnostics import IrgraphError
from tests.capture.kineto.builder import Event, kernel, write


def of_process(found: list[Event], pid: int, device: int, slower: int) -> list[Event]:
    """Return a trace's events as those of another process, a few microseconds later.

    Its ids count from 1 as well.
    """
    other = copy.deepcopy(found)
    for event in other:
        number = event["args"].get("correlation", event["args"].get("External id", 0))
        event["ts"] += 3 * (number // 10)
        if event["cat"] == "kernel":
            event["pid"] = event["args"]["device"] = device
            event["dur"] += slower
        else:
            event["pid"], event["tid"] = pid, event["tid"] + 1000 * pid
    return other


def two_processes(folder: Path, device: int = 1, **streams: int) -> Path:
    def change(found: list[Event]) -> list[Event]:
        other = of_process(found, 2, device, 11)
        for event in other:
            event["args"] = (
                {**event["args"], **streams} if event["cat"] == "kernel" else event["args"]
            )
        return [*other, *found]

    return write(folder, change, distributedInfo={"rank": 5, "world_size": 8})


@pytest.mark.parametrize("device", [0, 1])
def test_each_process_is_a_rank_with_its_own_work(tmp_path: Path, device: int) -> None:
    """Both processes number their launches from 1; streams tell whose work is whose."""
    path = two_processes(tmp_path, device, stream=7 if device else 13)
    whole = read_kineto(write(tmp_path, name="one.json"))
    trees = list(read_trees([str(path)]))
    assert [tree.trace.rank for tree in trees] == [0, 1]
    assert [len(tree.trace) for tree in trees] == [len(whole)] * 2
    for tree, slower in zip(trees, (0, 11), strict=True):
        work = tree.trace.on_device
        assert tree.trace.columns["duration"][work].tolist() == [(100 + slower) * 1000] * 12
        assert (tree.launch[work] >= 0).all()
        assert tree.trace.health.exit_code == 0
        assert len(tree.steps) == 3


def test_ranks_are_analysed_beside_each_other(tmp_path: Path) -> None:
    path = two_processes(tmp_path)
    shown = CliRunner().invoke(app, ["analyze", str(path), "--json"])
    assert shown.exit_code == 0
    assert [step["rank"] for step in json.loads(shown.stdout)["steps"]] == [0, 0, 0, 1, 1, 1]
    with pytest.raises(IrgraphError, match="2 processes that launch device work"):
        read_kineto(path)


def test_a_process_without_launches_is_no_rank(tmp_path: Path) -> None:
    def change(found: list[Event]) -> list[Event]:
        loader = [e for e in of_process(found, 2, 1, 0) if e["cat"] == "cpu_op"]
        return [*found, *loader]

    (trace,) = read_processes(write(tmp_path, change))
    assert {process for process, _ in trace.threads} >= {1, 2}


def test_wrong_process_ids_split_nothing(tmp_path: Path) -> None:
    """Every third event names another process, whose threads are those of the first."""

    def change(found: list[Event]) -> None:
        for event in found[::3]:
            event["pid"] = 99

    assert len(read_processes(write(tmp_path, change))) == 1


def test_processes_with_equal_thread_ids_are_a_finding(tmp_path: Path) -> None:
    def change(found: list[Event]) -> list[Event]:
        other = of_process(found, 2, 1, 11)
        for event in other:
            event["tid"] %= 1000
        return [*other, *found]

    (trace,) = read_processes(write(tmp_path, change))
    assert trace.health.counts["K41"] == 2
    assert trace.health.repaired


def test_work_without_an_id_belongs_to_its_stream(tmp_path: Path) -> None:
    def change(found: list[Event]) -> list[Event]:
        other = of_process(found, 2, 1, 11)
        late = kernel("late", found[-1]["ts"] + 200, 5, -1)
        late["pid"] = late["args"]["device"] = 1
        return [*found, *other, late]

    first, second = read_processes(write(tmp_path, change))
    assert "late" in {second.text(row) for row in range(len(second))}
    assert "late" not in {first.text(row) for row in range(len(first))}


@pytest.mark.data
def test_work_of_earlier_launches_belongs_to_its_stream(data_dir: Path, tmp_path: Path) -> None:
    """Rank 1 has work that was launched before the recording; calls of rank 0 have its ids."""
    names = [data_dir / f"traces/dlrm_8xV100/kineto_rank{rank}.json.gz" for rank in (0, 1)]
    files = [json.loads(gzip.decompress(path.read_bytes())) for path in names]
    for rank, file in enumerate(files):
        for event in file["traceEvents"]:
            for key in ("pid", "tid"):
                # numbers of devices and streams are small
                if isinstance(event.get(key), int) and event[key] > 1000:
                    event[key] += 100_000 * rank
    files[0]["traceEvents"] += files[1]["traceEvents"]
    path = tmp_path / "both.json"
    path.write_text(json.dumps(files[0]))
    parts = read_processes(path)
    for part, single in zip(parts, names, strict=True):
        whole = read_kineto(single)
        assert part.columns["duration"][part.on_device].sum() == (
            whole.columns["duration"][whole.on_device].sum()
        )
