"""Queues, launches, sequences, memory and critical paths against plain arithmetic."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from irgraph.analyze import analyze, launches, memory
from irgraph.capture.kineto import read_kineto
from irgraph.capture.kineto.events.tree import Tree, build_tree
from irgraph.replay.replay import select_typical_steps
from tests.analyze import raw
from tests.capture.kineto.builder import MAIN, START, Event, host, kernel, write


def tree(path: Path) -> Tree:
    return build_tree(read_kineto(path))


def test_queues_of_the_sound_trace(tmp_path: Path) -> None:
    """Launches of step 5 begin at 30, 220, 420 and 720 us; their work at 110, 240, 500 and 740."""
    (row,) = launches.queues([tree(write(tmp_path))])
    assert (row["launches"], row["waiting_most"], row["outstanding_most"]) == (12, 1, 1)
    step = (110 - 30) + (240 - 220) + (500 - 420) + (740 - 720)
    assert row["waiting_mean"] * (2 * 1010 + 840 - 30) == pytest.approx(3 * step, rel=0.05)


def test_priorities_and_hardware_queues_are_recorded_values(tmp_path: Path) -> None:
    """Keys of Kineto since April and May 2026."""

    def change(events: list[Event]) -> list[Event]:
        for number, event in enumerate(e for e in events if e["cat"] == "kernel"):
            event["args"] |= {"priority": -1 - number % 2, "channel": 9, "channel_type": "COMPUTE"}
        return events

    (row,) = launches.queues([tree(write(tmp_path, change))])
    assert (row["priority"], row["channel"]) == ("-1, -2", "9 COMPUTE")
    (plain,) = launches.queues([tree(write(tmp_path))])
    assert (plain["priority"], plain["channel"]) == (None, None)
    found = tree(write(tmp_path, change))
    assert len(launches.configurations([found])) == len(
        launches.configurations([tree(write(tmp_path))])
    )


@pytest.mark.data
@pytest.mark.parametrize("name", ["dlrm_8xV100/kineto_rank0", "dlrm_4xV100_overlap/kineto_rank1"])
def test_queues_are_those_of_the_file(name: str, data_dir: Path) -> None:
    path = data_dir / f"traces/{name}.json.gz"
    events = raw.read(path)
    found = tree(path)
    usual = {step.number for step in select_typical_steps(found)}
    steps = [pair for number, pair in raw.marked(events).items() if number in usual]
    calls = {e["args"]["correlation"]: e for e in events if e.get("cat") == "cuda_runtime"}
    moves: dict[int, list[tuple[Any, int]]] = {}
    for event in events:
        call = calls.get(event.get("args", {}).get("correlation"))
        if str(event.get("cat")) not in raw.DEVICE or call is None:
            continue
        if any(a <= call["ts"] < b for a, b in steps):
            stream = moves.setdefault(int(event["args"]["stream"]), [])
            stream += [(call["ts"], 1), (max(event["ts"], call["ts"]), -1)]
    most = {}
    for stream, changes in moves.items():
        load, highest = 0, 0
        for _, change in sorted(changes):
            load += change
            highest = max(highest, load)
        most[stream] = highest
    rows = {row["stream"]: row for row in launches.queues([found])}
    assert {s: row["launches"] for s, row in rows.items()} == {
        s: len(changes) // 2 for s, changes in moves.items()
    }
    assert {s: row["waiting_most"] for s, row in rows.items()} == most


@pytest.mark.data
def test_short_kernels_are_those_of_the_file(data_dir: Path) -> None:
    path = data_dir / "traces/dlrm_8xV100/kineto_rank0.json.gz"
    events = raw.read(path)
    ((start, end),) = raw.marked(events).values()
    calls = {e["args"]["correlation"]: e for e in events if e.get("cat") == "cuda_runtime"}
    short: Counter[str] = Counter()
    for event in events:
        call = calls.get(event.get("args", {}).get("correlation"))
        if str(event.get("cat")) in raw.DEVICE and call and start <= call["ts"] < end:
            short[event["name"]] += event["dur"] < call["dur"]
    found: Counter[str] = Counter()
    for row in launches.launch_delays([tree(path)]):
        found[row["kernel"]] += int(row["short"])
    assert found == short


def test_sequences_are_counted_on_their_stream(tmp_path: Path) -> None:
    rows = launches.sequences([tree(write(tmp_path))], 2)
    names = ["aten_linear", "aten_relu", "autograd_engine_evaluate_function: AddmmBackward0"]
    first = " → ".join(f"void {name}_kernel()" for name in names[:2])
    assert {"sequence": first, "calls": 1.0, "us": 200.0} in rows
    assert all(row["calls"] == 1.0 for row in rows) and len(rows) == 3


def with_memory(found: list[Event]) -> None:
    changes = [(20, 1000, 0), (60, 500, 0), (710, -1000, 0), (720, 64, -1)]
    for at, nbytes, device in changes:
        args = {"Device Type": 1 if device >= 0 else 0, "Device Id": device, "Bytes": nbytes}
        found.append(
            {
                "ph": "i",
                "s": "t",
                "name": "[memory]",
                "pid": 1,
                "tid": MAIN,
                "ts": START + at,
                "args": args,
            }
        )


def test_memory_has_its_peak_and_the_operator_there(tmp_path: Path) -> None:
    one = tree(write(tmp_path, with_memory))
    gpu, cpu = memory.memory_peaks([one])
    assert (gpu["device"], gpu["changes"], gpu["peak_mb"], gpu["at_us"]) == ("gpu0", 3, 0.0015, 60)
    assert (gpu["in_op"], gpu["at_end_mb"]) == ("aten::linear", 0.0005)
    assert gpu["counted_from"] == "the begin of the trace" and gpu["reserved_mb"] is None
    assert (cpu["device"], cpu["peak_mb"], cpu["in_op"]) == ("host", 0.000064, "aten::add_")


def test_recorded_totals_are_taken(tmp_path: Path) -> None:
    def change(found: list[Event]) -> None:
        with_memory(found)
        for number, event in enumerate(e for e in found if e["ph"] == "i"):
            event["args"] |= {"Total Allocated": 10**6 + number, "Total Reserved": 2 * 10**6}

    gpu, _ = memory.memory_peaks([tree(write(tmp_path, change))])
    assert (gpu["peak_mb"], gpu["reserved_mb"]) == (1.000002, 2.0)
    assert gpu["counted_from"] == "zero"


@pytest.mark.data
def test_memory_is_that_of_the_file(data_dir: Path) -> None:
    path = data_dir / "traces/resnet50_V100/kineto_workers0.json.gz"
    import gzip
    import json

    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    total = peak = 0
    for event in sorted((e for e in events if e["name"] == "[memory]"), key=lambda e: e["ts"]):
        if event["args"]["Device Type"] == 1:
            total += event["args"]["Bytes"]
            peak = max(peak, total)
    gpu = memory.memory_peaks([tree(path)])[0]
    assert gpu["peak_mb"] == pytest.approx(peak / 1e6, abs=1e-3)
    assert gpu["of_op"] == "CudnnConvolutionBackward"


def test_device_work_has_the_innermost_annotation(tmp_path: Path) -> None:
    def change(found: list[Event]) -> None:
        found.append(host("user_annotation", "decode", START + 5, 400))
        found.append(host("user_annotation", "sample", START + 190, 100))

    rows = analyze([tree(write(tmp_path, change))]).breakdowns["annotation"]
    assert {name: us * 3 for name, (us, _) in rows.items()} == pytest.approx(
        {"decode": 100.0, "sample": 100.0, "(no annotation)": 1000.0}
    )


def graph(found: list[Event]) -> None:
    """Let the last operator of each step launch a graph of three kernels instead."""
    for event in [e for e in found if e["name"] == "void aten_add__kernel()"]:
        number = event["args"]["correlation"]
        event.update(name="graph_first", dur=20)
        at = event["ts"]
        found += [
            kernel(f"graph_{name}", at + 20 + 50 * place, 50, number)
            for place, name in enumerate(("second", "third"))
        ]
    for event in found:
        if event["cat"] == "cuda_runtime" and event["args"]["correlation"] % 10 == 4:
            event["name"] = "cudaGraphLaunch"
    wait = [e for e in found if e["name"].startswith("ProfilerStep")]
    found += [host("cuda_runtime", "cudaDeviceSynchronize", e["ts"] + 760, 150) for e in wait]


def test_kernels_of_a_graph_are_on_the_critical_path(tmp_path: Path) -> None:
    rows = launches.critical_work([tree(write(tmp_path, graph))])
    (step,) = {row["step"] for row in rows}
    times = {row["name"]: row["us"] for row in rows if row["where"] == "device"}
    assert step == 7
    assert {n: t for n, t in times.items() if n.startswith("graph")} == pytest.approx(
        {"graph_first": 20.0, "graph_second": 50.0, "graph_third": 50.0}
    )
    assert sum(row["us"] for row in rows) == pytest.approx(1000.0)


@pytest.mark.data
@pytest.mark.parametrize("name", ["resnet50_V100/kineto_workers4", "dlrm_8xV100/kineto_rank0"])
def test_critical_paths_last_to_the_end_of_the_step_s_work(name: str, data_dir: Path) -> None:
    path = data_dir / f"traces/{name}.json.gz"
    rows = launches.critical_work([tree(path)])
    (number,) = {row["step"] for row in rows}
    events = raw.read(path)
    start, end = raw.marked(events)[number]
    calls = {
        e["args"]["correlation"]
        for e in events
        if str(e.get("cat")).lower() in ("runtime", "cuda_runtime") and start <= e["ts"] < end
    }
    ends = [
        e["ts"] + e["dur"]
        for e in events
        if str(e.get("cat")).lower() in raw.DEVICE and e["args"].get("correlation") in calls
    ]
    expected = float(max(end, *ends) - start)
    assert sum(row["us"] for row in rows) == pytest.approx(expected, rel=0.001)


def test_kernels_are_listed_by_the_configuration_of_their_launches(tmp_path: Path) -> None:
    def change(events: list[Event]) -> None:
        for number, event in enumerate(e for e in events if e["cat"] == "kernel"):
            event["name"], event["dur"] = "k", 10 + number
            event["args"] |= {"grid": [64 if number % 2 else 8, 1, 1], "block": [128, 1, 1]}
            if number % 2:
                event["args"] |= {"registers per thread": 16, "shared memory": 1024}
                event["args"]["est. achieved occupancy %"] = 31.5

    large, small = launches.configurations([tree(write(tmp_path, change))])
    assert [large[key] for key in ("grid", "block", "registers", "shared_bytes", "occupancy")] == [
        "64 x 1 x 1",
        "128 x 1 x 1",
        16,
        1024,
        31.5,
    ]
    assert [small[key] for key in ("grid", "registers", "occupancy")] == ["8 x 1 x 1", None, None]
    durations = [11, 13, 15, 17, 19, 21]
    assert large["us"] == pytest.approx(sum(durations) / 3)
    assert [large[key] for key in ("min_us", "median_us", "max_us")] == [11, 16, 21]
