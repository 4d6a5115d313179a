"""Timelines as trace files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor
from irgraph.schedule.accounting import BLOCKING
from irgraph.schedule.algorithm1 import algorithm1
from irgraph.schedule.perfetto import trace_events, write_side_by_side, write_timeline
from irgraph.schedule.simulate import simulate
from irgraph.schedule.timeline import Timeline
from irgraph.schedule.trace_format import (
    Track,
    counter_events,
    flow_events,
    microseconds,
    slice_event,
)
from tests.schedule.graphs import FlatHost, kernel, priced


@pytest.fixture
def timeline() -> Timeline:
    x = Tensor("x", "f32", (4, 8), "b0")
    linear = Op("aten.linear", operands=(x,), origin="et.json#3", module="top")
    copy = kernel(100.0, "copy", launch="memcpy", blocking=True, by="heuristic", formula="bytes")
    step = priced((linear, [kernel(10.0)]), (Op("aten.to"), [copy]))
    return algorithm1(step, FlatHost(), accounting=BLOCKING)


def test_every_resource_and_the_critical_path_have_a_track(timeline: Timeline) -> None:
    events = trace_events(timeline)["traceEvents"]
    names = [e["args"]["name"] for e in events if e["name"] == "thread_name"]
    assert names == ["critical path", "main", "default"]
    processes = [e["args"]["name"] for e in events if e["name"] == "process_name"]
    assert processes == ["critical path", "host", "gpu0"]


def test_the_critical_path_fills_its_track(timeline: Timeline) -> None:
    trace = trace_events(timeline)
    path = [e for e in trace["traceEvents"] if e["ph"] == "X" and e["pid"] == 1]
    assert sum(e["dur"] for e in path) == pytest.approx(timeline.step_time)
    assert sum(trace["otherData"]["critical_path_us"].values()) == pytest.approx(timeline.step_time)


def test_kernels_say_what_they_are_and_where_their_time_comes_from(timeline: Timeline) -> None:
    events = trace_events(timeline)["traceEvents"]
    copy = next(e for e in events if e["ph"] == "X" and e["pid"] == 3 and e["dur"] == 100.0)
    assert copy["args"]["op"] == "aten.to"
    assert (copy["args"]["by"], copy["args"]["formula"]) == ("heuristic", "bytes")
    linear = next(e for e in events if e["name"] == "aten.linear")
    assert linear["args"] == {
        "module": "top",
        "phase": "forward",
        "from": "et.json#3",
        "operands": {"%x": "f32[4, 8]"},
    }


def test_arrows_lead_from_launches_to_kernels(timeline: Timeline) -> None:
    events = trace_events(timeline)["traceEvents"]
    starts = {e["id"]: e["ts"] for e in events if e["ph"] == "s"}
    ends = {e["id"]: e["ts"] for e in events if e["ph"] == "f"}
    assert len(starts) == 2
    assert all(ends[i] > ts for i, ts in starts.items())


def test_waiting_for_the_device_shows_on_the_host(timeline: Timeline) -> None:
    events = trace_events(timeline)["traceEvents"]
    wait = next(e for e in events if e["name"] == "sync" and e["pid"] == 2)
    assert wait["dur"] == pytest.approx(timeline.waiting_time + BLOCKING.sync_return)


def test_a_file_is_written_that_json_can_read(timeline: Timeline, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    write_timeline(timeline, path)
    assert json.loads(path.read_text()) == json.loads(json.dumps(trace_events(timeline)))
    assert [p.name for p in tmp_path.iterdir()] == ["t.json"]


def test_counters_follow_the_queue_and_the_device(timeline: Timeline) -> None:
    events = trace_events(timeline)["traceEvents"]
    counts = [(e["name"], e["args"][e["name"]]) for e in events if e["ph"] == "C"]
    running = [value for name, value in counts if name == "kernels running"]
    assert running == [1, 0, 1, 0]
    waiting = [value for name, value in counts if name == "launches waiting"]
    assert (max(waiting, default=0), waiting[-1:]) in [(1, [0]), (0, [])]


def test_launches_that_the_device_has_no_time_for_are_counted() -> None:
    calls = [(Op("aten.linear"), [kernel(100.0)]) for _ in range(3)]
    events = trace_events(simulate(priced(*calls), FlatHost()))["traceEvents"]
    waiting = [e["args"]["launches waiting"] for e in events if "launches waiting" in e["name"]]
    assert max(waiting) == 2
    assert waiting[-1] == 0


def test_timelines_stand_side_by_side(timeline: Timeline, tmp_path: Path) -> None:
    path = tmp_path / "both.json"
    write_side_by_side({"before": timeline, "after": timeline}, path)
    whole = json.loads(path.read_text())
    events = whole["traceEvents"]
    processes = [e["args"]["name"] for e in events if e["name"] == "process_name"]
    assert processes[0] == "before: critical path"
    assert processes[-1] == "after: gpu0"
    ids = [e["id"] for e in events if e["ph"] == "s"]
    assert len(ids) == len(set(ids)) == 4
    assert set(whole["otherData"]) == {"before", "after"}


def test_operations_lie_on_their_thread_without_the_time_before_them() -> None:
    calls = [(Op("aten.linear"), [kernel(10.0)]), (Op("aten.view"), [])]
    events = trace_events(simulate(priced(*calls), FlatHost()))["traceEvents"]
    found = [(e["name"], e["ts"], e["dur"]) for e in events if str(e["name"]).startswith("aten.")]
    # T1 until 1, T2, T4 and T3 until 10; T1 until 11 and T5
    assert found == [("aten.linear", 1.0, 9.0), ("aten.view", 11.0, 5.0)]


@given(st.integers(0, 10**12))
def test_times_are_whole_nanoseconds_as_perfetto_reads_them(nanoseconds: int) -> None:
    assert int(microseconds(nanoseconds) * 1000.0) == nanoseconds


def test_slices_arrows_and_counters_have_their_times() -> None:
    track, other = Track(1, 2), Track(3, 4)
    made = slice_event(track, "k", 1.0004, 3.0006, {}, "c")
    assert made == {
        "ph": "X",
        "pid": 1,
        "tid": 2,
        "name": "k",
        "ts": 1.0,
        "dur": 2.001,
        "args": {},
        "cat": "c",
    }
    assert slice_event(track, "k", 2.0, 1.0, {})["dur"] == 0.0
    assert "cat" not in slice_event(track, "k", 1.0, 2.0, {})
    begun, ended = flow_events(7, track, 1.5, other, 2.5)
    assert (begun["ts"], begun["pid"], ended["ts"], ended["pid"]) == (1.5, 1, 2.5, 3)
    values = [(e["ts"], e["args"]["n"]) for e in counter_events(1, "n", {2.0: -1, 1.0: 2, 1.5: 0})]
    assert values == [(1.0, 2), (2.0, 1)]
