"""Recorded synchronisation, and launches of many kernels, in replays."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from irgraph.capture.kineto import read_kineto
from irgraph.capture.kineto.events.device import device_orders
from irgraph.capture.kineto.events.host import Waits
from irgraph.capture.kineto.events.syncs import recorded_syncs
from irgraph.capture.kineto.events.tree import Tree, build_tree
from irgraph.replay.host_times import HostTimes
from irgraph.replay.replay import build_replayer
from tests.capture.kineto.builder import Event, host, kernel, write


def record(name: str, at: float, correlation: int, stream: int = -1, **args: int) -> Event:
    found = host("cuda_sync", name, at, 1, correlation=correlation, stream=stream, device=0, **args)
    return {**found, "pid": 0, "tid": stream}


def launch(name: str, at: float, start: float, dur: float, number: int, stream: int) -> list[Event]:
    return [
        host("cuda_runtime", "cudaLaunchKernel", at, 5, correlation=number),
        kernel(name, start, dur, number, stream),
    ]


def call(name: str, at: float, dur: float, number: int) -> Event:
    return host("cuda_runtime", name, at, dur, correlation=number)


def event_of(at: float, stream: int, mark: int) -> dict[str, int]:
    return {"wait_on_stream": stream, "wait_on_cuda_event_record_corr_id": mark}


def bare(folder: Path, found: list[Event]) -> Tree:
    """Return the tree of a trace of one step with these events."""
    step = host("user_annotation", "ProfilerStep#0", 0, 1000)
    return build_tree(read_kineto(write(folder, lambda _: [step, *found])))


def two_streams() -> list[Event]:
    """Kernels of 100 us on streams 7 and 8, of which the second ends first."""
    first = launch("first", 10, 20, 300, 1, 7)
    return [*first, *launch("second", 30, 40, 100, 2, 8), call("cudaEventRecord", 50, 2, 3)]


def names(tree: Tree, rows: list[int]) -> list[str]:
    return [tree.trace.text(row) if row >= 0 else "" for row in rows]


@pytest.mark.parametrize(
    ("name", "stream", "args", "awaited"),
    [
        ("Stream Sync", 8, {}, "second"),
        ("Stream Sync", 7, {}, "first"),
        ("Event Sync", -1, event_of(50, 8, 3), "second"),
        ("Event Sync", -1, event_of(50, 7, 3), "first"),
        ("Context Sync", -1, {}, "first"),
        ("Stream Sync", 9, {}, ""),
    ],
)
def test_the_host_waits_for_what_was_recorded(
    tmp_path: Path, name: str, stream: int, args: dict[str, int], awaited: str
) -> None:
    sync = [call("cudaAnySynchronize", 60, 300, 4), record(name, 61, 4, stream, **args)]
    tree = bare(tmp_path, [*two_streams(), *sync])
    assert names(tree, list(recorded_syncs(tree).host.values())) == [awaited]
    assert "K19" not in tree.trace.health.counts


def test_an_event_stands_for_what_was_launched_before_it(tmp_path: Path) -> None:
    late = launch("late", 70, 150, 50, 5, 8)
    sync = [
        call("cudaEventSynchronize", 80, 70, 6),
        record("Event Sync", 81, 6, **event_of(0, 8, 3)),
    ]
    tree = bare(tmp_path, [*two_streams(), *late, *sync])
    assert names(tree, list(recorded_syncs(tree).host.values())) == ["second"]


def test_events_from_before_the_recording_are_inferred(tmp_path: Path) -> None:
    sync = [
        call("cudaEventSynchronize", 60, 300, 4),
        record("Event Sync", 61, 4, **event_of(0, 8, 99)),
    ]
    tree = bare(tmp_path, [*two_streams(), *sync])
    assert recorded_syncs(tree).host == {}
    row = next(r for r in range(len(tree.trace)) if "cudaEventSync" in tree.trace.text(r))
    waits = Waits(tree)
    assert names(tree, [waits.awaited_by_call(row, 60_000, 360_000)]) == ["first"]


def test_a_recorded_wait_of_a_stream_beats_the_inferred_one(tmp_path: Path) -> None:
    wait = [call("cudaStreamWaitEvent", 60, 2, 4)]
    third = launch("third", 70, 330, 10, 5, 9)
    inferred = bare(tmp_path, [*two_streams(), *wait, *third])
    row = names(inferred, list(range(len(inferred.trace)))).index("third")
    held = device_orders(inferred).starts[row].awaited
    assert names(inferred, list(held)) == ["first"]
    said = record("Stream Wait Event", 61, 4, 9, **event_of(0, 8, 3))
    recorded = bare(tmp_path, [*two_streams(), *wait, said, *third])
    row = names(recorded, list(range(len(recorded.trace)))).index("third")
    assert names(recorded, list(device_orders(recorded).starts[row].awaited)) == ["second"]


def test_a_replay_with_recorded_waits_is_exact(tmp_path: Path) -> None:
    wait = [call("cudaStreamWaitEvent", 60, 2, 4)]
    wait.append(record("Stream Wait Event", 61, 4, 9, **event_of(0, 8, 3)))
    third = launch("third", 70, 142, 100, 5, 9)
    sync = [call("cudaStreamSynchronize", 80, 165, 6), record("Stream Sync", 81, 6, 9)]
    one = build_replayer(bare(tmp_path, [*two_streams(), *wait, *third, *sync]))
    (step,) = one.replay_all(HostTimes())
    assert step.simulated == pytest.approx(step.measured, abs=0.01)
    assert step.simulated_active == pytest.approx(step.active, abs=0.01)


def graph(dur: float) -> list[Event]:
    """One launch of a CUDA graph with three kernels in order and one beside them."""
    found = [host("cuda_runtime", "cudaGraphLaunch", 100, 20, correlation=9)]
    for number in range(3):
        found.append(kernel(f"k{number}", 130 + number * (dur + 2), dur, 9, 7))
    found.append(kernel("beside", 140, 2 * dur, 9, 8))
    found.append(call("cudaStreamSynchronize", 125, 3 * dur + 15, 10))
    return found


def test_a_graph_keeps_its_kernels_in_order_and_beside_each_other(tmp_path: Path) -> None:
    tree = bare(tmp_path, graph(100))
    assert tree.trace.health.details["K15"] == "up to 4 events each"
    (step,) = build_replayer(tree).replay_all(HostTimes())
    assert step.simulated == pytest.approx(step.measured, abs=0.01)
    kernels = [i for i in step.timeline.intervals if i.cause == "kernel"]
    assert len(kernels) == 4
    chain = [i for i in kernels if i.end - i.start == pytest.approx(100)]
    assert all(b.start >= a.end for a, b in pairwise(chain))
    assert step.simulated_active == pytest.approx(304.0, abs=0.1)


def test_the_host_pays_one_launch_for_a_graph(tmp_path: Path) -> None:
    tree = bare(tmp_path, graph(100))
    samples = build_replayer(tree).samples()
    launches = [key for key in samples.by_key if key[0] == "T4"]
    assert launches == [("T4", "cudaGraphLaunch", "kernel")]
    assert [s.time for s in samples.by_key[launches[0]]] == [20.0]


def test_a_slower_kernel_of_a_graph_moves_what_follows(tmp_path: Path) -> None:
    before, after = (
        build_replayer(bare(tmp_path, graph(dur))).replay_all(HostTimes())[0] for dur in (100, 150)
    )
    assert after.simulated_active - before.simulated_active == pytest.approx(150.0, abs=0.1)
