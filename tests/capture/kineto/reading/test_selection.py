"""Reading a part of a trace: some steps, without some categories, within some memory."""

from __future__ import annotations

import gzip
import tracemalloc
from pathlib import Path

import pytest

from irgraph.capture.kineto import EventKind, read_kineto
from irgraph.capture.kineto.events.tree import build_tree
from irgraph.capture.kineto.reading.selection import (
    BYTES_PER_EVENT,
    Selection,
    estimated_events,
    memory_text,
    text_size,
)
from irgraph.cli.traces import TraceOptions
from irgraph.diagnostics import IrgraphError
from tests.capture.kineto.builder import Event, events, host, write


def test_steps_that_are_asked_for_are_read_alone(tmp_path: Path) -> None:
    trace = read_kineto(write(tmp_path), selection=Selection(steps=(6, 6)))
    assert list(trace.steps()) == [6]
    assert trace.health.counts["K32"] == 2
    assert trace.health.exit_code == 0
    assert [step.time for step in build_tree(trace).steps] == [1000.0]
    assert int(trace.on_device.sum()) == 4


def test_steps_read_alone_hold_the_same_events(tmp_path: Path) -> None:
    path = write(tmp_path)
    whole, part = (
        build_tree(read_kineto(path, selection=s)) for s in (Selection(), Selection((6, 7)))
    )
    inside = whole.step >= 1
    names = [whole.trace.text(row) for row in inside.nonzero()[0]]
    assert names == [part.trace.text(row) for row in range(len(part.trace))]


def test_steps_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(IrgraphError, match="no steps 1 to 4: the trace has steps 5 to 7"):
        read_kineto(write(tmp_path), selection=Selection(steps=(1, 4)))


def test_steps_need_marks(tmp_path: Path) -> None:
    path = write(tmp_path, lambda found: [e for e in found if "Step" not in e["name"]])
    with pytest.raises(IrgraphError, match="no marked steps"):
        read_kineto(path, selection=Selection(steps=(1, 4)))


def test_steps_need_a_file() -> None:
    with pytest.raises(IrgraphError, match="standard input cannot be"):
        read_kineto("-", selection=Selection(steps=(1, 4)))


def test_categories_can_be_left_out(tmp_path: Path) -> None:
    def stacks(found: list[Event]) -> list[Event]:
        first = found[0]["ts"]
        return [*found, *(host("python_function", "f", first + i, 1) for i in range(50))]

    path = write(tmp_path, stacks)
    trace = read_kineto(path, selection=Selection(skip=frozenset(["python_function"])))
    assert not (trace.columns["kind"] == EventKind.PYTHON).any()
    assert trace.health.counts["K33"] == 50
    assert len(trace) == len(events())


def test_of_a_large_trace_the_last_steps_are_read_and_that_is_said(tmp_path: Path) -> None:
    needed = BYTES_PER_EVENT * len(events())
    trace = read_kineto(write(tmp_path), selection=Selection(memory=needed * 2 // 3))
    assert list(trace.steps()) == [6, 7]
    assert trace.health.details["K31"] == "steps 6:7 of 5:7 are read"
    assert trace.health.exit_code == 3


def test_a_large_trace_without_steps_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, lambda found: [e for e in found if "Step" not in e["name"]])
    with pytest.raises(IrgraphError, match="too large") as caught:
        read_kineto(path, selection=Selection(memory=10_000))
    assert "--skip-cat" in str(caught.value)


def test_a_single_step_may_be_too_large(tmp_path: Path) -> None:
    with pytest.raises(IrgraphError, match="too large: one step"):
        read_kineto(write(tmp_path), selection=Selection(memory=1000))


def test_events_are_estimated_from_the_first_ones(tmp_path: Path) -> None:
    assert estimated_events(write(tmp_path)) == pytest.approx(len(events()), rel=0.1)


@pytest.mark.parametrize("text", ["a", "5:", ":5", "9:5", "5:6:7"])
def test_steps_are_two_numbers(text: str) -> None:
    with pytest.raises(IrgraphError, match="--steps: give two numbers"):
        _ = TraceOptions(text).selection


@pytest.mark.parametrize(
    ("text", "size"), [("4GiB", 4 << 30), ("500MB", 500_000_000), ("1.5K", 1500)]
)
def test_memory_has_a_unit(text: str, size: int) -> None:
    assert TraceOptions(memory=text).selection.memory == size


def test_memory_is_a_size() -> None:
    with pytest.raises(IrgraphError, match="--memory: give a size"):
        _ = TraceOptions(memory="much").selection


@pytest.mark.parametrize(
    ("count", "text"),
    [(1.29e9, "1.29 GB"), (1e6, "1 MB"), (4.2e8, "420 MB"), (1500, "1.5 kB"), (12, "12 bytes")],
)
def test_memory_is_never_rounded_to_zero(count: float, text: str) -> None:
    assert memory_text(count) == text


def test_a_size_is_estimated_without_unpacking_it_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(gzip.compress(bytes(64 << 20)))
    tracemalloc.start()
    try:
        monkeypatch.setattr("irgraph.capture.kineto.reading.selection.FREE_BYTES", 1 << 20)
        assert 32 << 20 < text_size(path) < 128 << 20
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.long
def test_a_trace_that_unpacks_to_more_than_is_allowed_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(gzip.compress(b'{"traceEvents": [' + bytes(65 << 20)))
    with pytest.raises(IrgraphError, match="compressed bytes expand to more than 67,108,864 bytes"):
        read_kineto(path)
