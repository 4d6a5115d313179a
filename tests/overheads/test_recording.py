"""How a trace was recorded, and what that took: as the trace shows, or refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from irgraph.capture.kineto import read_kineto
from irgraph.capture.kineto.events.tree import Tree, build_tree
from irgraph.cli.main import main
from irgraph.overheads.extract import ProfilerCost
from irgraph.overheads.recording import ProfilerRecording, recording_of
from irgraph.overheads.table import load_host
from tests.capture.kineto.builder import host, write

Event = dict[str, Any]
Run = Callable[..., tuple[int, str]]


def with_argument(key: str, value: Any) -> Callable[[list[Event]], None]:
    """Return a change that gives an argument to every operator."""

    def change(events: list[Event]) -> None:
        for event in events:
            if event["cat"] == "cpu_op":
                event["args"][key] = value

    return change


def plain(events: list[Event]) -> None:
    """Remove operand shapes."""
    for event in events:
        event["args"].pop("Input Dims", None)


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    """Return a function that runs a command: its exit code and what it printed, on one line."""

    def call(*words: object) -> tuple[int, str]:
        capfd.readouterr()
        code = main([str(word) for word in words])
        return code, " ".join("".join(capfd.readouterr()).split())

    return call


def nested(events: list[Event], enter: float = 2.5, leave: float = 1.25) -> None:
    """Add calls of an operator in another: the record of one start lies between their starts."""
    for number in range(40):
        start = events[-1]["ts"] + 100
        enter_now, leave_now = (gap + (30 if number % 8 == 7 else 0) for gap in (enter, leave))
        inner = host("cpu_op", "aten::as_strided", start + enter_now, 1)
        events += [host("cpu_op", "aten::view", start, enter_now + 1 + leave_now), inner]


def tree_of(path: Path) -> Tree:
    return build_tree(read_kineto(path))


@pytest.mark.parametrize(
    ("change", "header", "parts"),
    [
        (plain, {}, ()),
        (None, {}, ("operand shapes",)),
        (plain, {"with_stack": 1, "with_modules": 1}, ("call stacks", "modules")),
        (with_argument("Record function id", 0), {}, ("operand shapes",)),
    ],
)
def test_parts_are_read_from_the_trace(
    tmp_path: Path, change: Any, header: dict[str, int], parts: tuple[str, ...]
) -> None:
    recording = recording_of(tree_of(write(tmp_path, change, **header)))
    assert recording == ProfilerRecording(parts=parts)
    assert recording.cost == ProfilerCost(0.0, 0.0, is_outside=True)


@pytest.mark.parametrize("is_rounded", [False, True])
def test_gaps_between_nested_operators_give_the_cost_of_an_event(
    tmp_path: Path, is_rounded: bool
) -> None:
    """One in eight calls is interrupted; times in whole microseconds have the right mean."""

    def change(events: list[Event]) -> None:
        nested(events)
        for number, event in enumerate(events if is_rounded else []):
            event["ts"] = event["ts"] + number * 0.37 // 1
            end = int(event["ts"] + event["dur"])
            event["ts"] = int(event["ts"])
            event["dur"] = end - event["ts"]

    recording = recording_of(tree_of(write(tmp_path, change)))
    assert recording.event_us == pytest.approx(3.75, rel=0.3 if is_rounded else 0.01)


def test_the_cost_is_subtracted_and_printed(run: Run, tmp_path: Path) -> None:
    path, table = write(tmp_path, nested), tmp_path / "host.json"
    output = run("overheads", path, "-o", table)[1]
    assert "recorded with operand shapes: 3.75 us an event" in output
    file = json.loads(table.read_text())
    assert file["T4"]["kernel"]["mean"] == pytest.approx(10.0 - 3.75)
    assert "3.75 us an event are subtracted" in file["description"]
    relu = file["ops"]["aten.relu"]
    assert [relu[kind]["mean"] for kind in ("T2", "T3")] == [20.0, 20.0]
    assert 0.0 < file["recording_std"] < 0.5


def test_nothing_is_subtracted_where_the_trace_does_not_show_it(run: Run, tmp_path: Path) -> None:
    """The interval of steps with such a table includes what may remain."""
    path, table = write(tmp_path), tmp_path / "host.json"
    code, output = run("overheads", path, "-o", table)
    assert (code, "nothing is subtracted" in output) == (0, True)
    file = json.loads(table.read_text())
    assert file["T4"]["kernel"]["mean"] == 10.0
    assert load_host(str(table)).machine_std == file["recording_std"] > 0.0
    assert run("overheads", path, "--profiler", "0,0", "-o", table)[0] == 0
    assert load_host(str(table)).machine_std == 0.0


def test_launches_have_no_call_stacks_of_2021(run: Run, tmp_path: Path) -> None:
    def change(events: list[Event]) -> None:
        nested(events, enter=20.0)
        with_argument("Call stack", "a.py(1): f")(events)

    path, table = write(tmp_path, change), tmp_path / "host.json"
    output = run("overheads", path, "-o", table)[1]
    assert "21.25 us an event are subtracted" in output
    assert json.loads(table.read_text())["T4"]["kernel"]["mean"] == 10.0


def test_a_recording_with_an_observer_is_refused(run: Run, tmp_path: Path) -> None:
    path = write(tmp_path, with_argument("Record function id", 7))
    code, output = run("overheads", path)
    assert (code, "an execution trace observer was attached" in output) == (4, True)
    code, output = run("overheads", path, "--profiler", "0,0")
    assert (code, "host times include an observer" in output) == (0, True)


def test_a_replay_with_host_times_of_an_observer_is_doubtful(run: Run, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    change = with_argument("Record function id", 7)
    trace, other = write(tmp_path), write(tmp_path / "other", change)
    code, output = run("replay", trace, "--overheads", other)
    assert (code, "observer was attached there alone" in output) == (3, True)
    assert run("replay", other, "--overheads", other)[0] == 0
