"""How a trace was recorded: read from it, subtracted where it is known, refused where it is not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from irgraph.capture.kineto import read_kineto
from irgraph.cli.main import main
from irgraph.overheads.recording import EVENT_US, PART_US, ProfilerRecording, recording_of
from tests.capture.kineto.builder import write

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
    recording = recording_of(read_kineto(write(tmp_path, change, **header)))
    assert recording == ProfilerRecording(parts=parts)
    assert recording.cost.host == pytest.approx(EVENT_US + sum(PART_US[part] for part in parts))


def test_an_estimate_is_subtracted_and_printed(run: Run, tmp_path: Path) -> None:
    path, table = write(tmp_path), tmp_path / "host.json"
    code, output = run("overheads", path, "-o", table)
    assert (code, "recorded with operand shapes: 0.65 us an event" in output) == (0, True)
    file = json.loads(table.read_text())
    assert file["T4"]["kernel"]["mean"] == pytest.approx(10.0 - 0.65)
    assert "0.65 us an event are subtracted" in file["description"]


def test_nothing_is_subtracted_for_call_stacks_of_2021(run: Run, tmp_path: Path) -> None:
    path, table = write(tmp_path, with_argument("Call stack", "a.py(1): f")), tmp_path / "host.json"
    assert recording_of(read_kineto(path)).old_stacks
    code, output = run("overheads", path, "-o", table)
    assert (code, "whose cost is unknown" in output) == (0, True)
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
