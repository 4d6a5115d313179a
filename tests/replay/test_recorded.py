"""Recorded steps beside simulated ones, in a file that Perfetto takes as it is meant."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.evaluate.dlrm_v100 import measured_model
from irgraph.capture.kineto import read_kineto
from irgraph.capture.kineto.events.tree import build_tree
from irgraph.predict.prediction import predict
from irgraph.replay.host_times import HostTimes
from irgraph.replay.recorded_step import RecordedStep
from irgraph.replay.replay import build_replayer
from irgraph.schedule.perfetto import trace_events
from irgraph.schedule.trace_format import microseconds
from tests.capture.kineto.builder import write

Events = list[dict[str, Any]]


def nanoseconds(time: float) -> int:
    """Return what Perfetto makes of a number: it multiplies by 1,000 and cuts."""
    return int(time * 1000.0)


def misplaced(events: Events) -> list[str]:
    """Return the slices that begin inside another of their track and end outside of it."""
    tracks: dict[tuple[int, int], list[tuple[int, int, int]]] = defaultdict(list)
    for number, e in enumerate(events):
        if e["ph"] == "X":
            start = nanoseconds(e["ts"])
            tracks[e["pid"], e["tid"]].append((start, number, start + nanoseconds(e["dur"])))
    found = []
    for slices in tracks.values():
        around: list[int] = []
        for start, number, end in sorted(slices):
            while around and around[-1] <= start:
                around.pop()
            if around and end > around[-1]:
                found.append(events[number]["name"])
            around.append(end)
    return found


def shown_well(events: Events) -> None:
    assert misplaced(events) == []
    assert all(e["pid"] > 0 and e.get("tid", 1) > 0 for e in events)
    begun = {e["id"]: e["ts"] for e in events if e["ph"] == "s"}
    ended = [e for e in events if e["ph"] == "f"]
    assert begun
    assert all(type(number) is int for number in begun)
    assert sorted(e["id"] for e in ended) == sorted(begun)
    starts = {(e["pid"], e["tid"], e["ts"]) for e in events if e["ph"] == "X"}
    assert all((e["pid"], e["tid"], e["ts"]) in starts for e in ended)


@given(st.integers(min_value=0, max_value=2**50))
def test_times_are_read_to_the_nanosecond(time: int) -> None:
    assert nanoseconds(microseconds(time)) == time


def test_predictions_are_shown_well() -> None:
    events = trace_events(predict(measured_model("DLRM_default")).timeline)["traceEvents"]
    shown_well(events)
    marked = [e for e in events if e.get("cat") == "critical path"]
    path = [e for e in events if e["ph"] == "X" and e["pid"] == 1]
    assert 0 < len(marked) <= len(path)


def test_a_recorded_step_is_shown_as_it_was_measured(tmp_path: Path) -> None:
    tree = build_tree(read_kineto(write(tmp_path)))
    step = tree.steps[0]
    shown = RecordedStep(tree, step).trace_events()
    shown_well(shown["traceEvents"])
    assert shown["otherData"]["step_time_us"] == step.time
    slices = [e for e in shown["traceEvents"] if e["ph"] == "X"]
    assert all(e["ts"] >= 0.0 for e in slices)
    linear = next(e for e in slices if e["name"] == "aten::linear")
    row = next(r for r in tree.top_ops().tolist() if tree.trace.text(r) == "aten::linear")
    assert linear["dur"] == pytest.approx(int(tree.trace.columns["duration"][row]) / 1000)
    kernel = next(e for e in slices if e["args"].get("by") == "measured")
    assert kernel["args"]["op"] in {tree.trace.text(r) for r in tree.top_ops().tolist()} | {
        e["name"] for e in slices
    }


@pytest.mark.data
@pytest.mark.parametrize(
    "name",
    ["dlrm_8xV100/kineto_rank0", "dlrm_4xV100_overlap/kineto_rank0"],
    ids=["rank", "overlap"],
)
def test_recorded_and_simulated_steps_are_shown_well(name: str, data_dir: Path) -> None:
    tree = build_tree(read_kineto(data_dir / f"traces/{name}.json.gz"))
    step = [step for step in tree.steps if step.complete][-1]
    shown_well(RecordedStep(tree, step).trace_events()["traceEvents"])
    simulated = build_replayer(tree).replay(step, HostTimes()).timeline
    shown_well(trace_events(simulated)["traceEvents"])
