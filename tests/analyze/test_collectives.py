"""Collectives of traces against plain arithmetic from the JSON, and nccl-tests' factors."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import pytest

from irgraph.analyze import Analysis, analyze
from irgraph.analyze.collectives import bus_factor
from irgraph.capture.kineto import read_kineto
from irgraph.capture.kineto.events.tree import build_tree
from tests.analyze import raw
from tests.capture.kineto.builder import Event, write

SIZES = {"float": 4, "int": 4, "long int": 8, "Float": 4}


def analysed(*paths: Path) -> Analysis:
    return analyze([build_tree(read_kineto(path)) for path in paths])


@pytest.mark.parametrize(
    ("kind", "factor"),
    [
        ("all_reduce", 1.75),
        ("all_gather", 0.875),
        ("reduce_scatter", 0.875),
        ("all_to_all", 0.875),
        ("broadcast", 1.0),
        ("reduce", 1.0),
        ("send_recv", 1.0),
        ("gather", None),
    ],
)
def test_bus_factors_of_eight_ranks(kind: str, factor: float | None) -> None:
    """Source: nccl-tests, doc/PERFORMANCE.md; it has none for gather."""
    assert bus_factor(kind, 8) == factor


def test_without_the_number_of_ranks_there_is_no_bus_bandwidth() -> None:
    assert bus_factor("all_reduce", 0) is None


def told(name: str, sent: int, received: int) -> Callable[[list[Event]], None]:
    """Let the second kernel of the first step be a collective of 50 us over four ranks."""

    def change(found: list[Event]) -> None:
        kernel = [e for e in found if e["cat"] == "kernel"][1]
        kernel.update(name="ncclDevKernel_Generic", dur=50)
        kernel["args"] |= {
            "Collective name": name,
            "In msg nelems": sent,
            "Out msg nelems": received,
            "dtype": "BFloat16",
            "Group size": 4,
            "Process Group Name": "3",
            "Process Group Ranks": "[0, 1, 2, 3]",
        }

    return change


@pytest.mark.parametrize(
    ("name", "sent", "received", "kind", "nbytes", "factor"),
    [
        ("allreduce", 1000, 1000, "all_reduce", 2000, 1.5),
        ("_allgather_base", 1000, 4000, "all_gather", 8000, 0.75),
        ("_reduce_scatter_base", 4000, 1000, "reduce_scatter", 8000, 0.75),
        ("all_to_allv", 4000, 3600, "all_to_all", 8000, 0.75),
        ("broadcast", 1000, 1000, "broadcast", 2000, 1.0),
        ("send", 1000, 0, "send_recv", 2000, 1.0),
    ],
)
def test_sizes_are_those_of_nccl_tests(
    name: str, sent: int, received: int, kind: str, nbytes: int, factor: float, tmp_path: Path
) -> None:
    (row,) = analysed(write(tmp_path, told(name, sent, received))).collectives
    assert (row["collective"], row["bytes"], row["ranks"]) == (kind, nbytes, 4)
    assert row["group"] == "3 [0, 1, 2, 3]"
    assert row["algorithm_gb_s"] == pytest.approx(nbytes / 50e3, rel=1e-3)
    assert row["bus_gb_s"] == pytest.approx(nbytes / 50e3 * factor, rel=1e-3)
    assert (row["transfer_us"], row["last_rank"]) == (None, None)


def dlrm(data_dir: Path) -> list[Path]:
    return [data_dir / f"traces/dlrm_8xV100/kineto_rank{rank}.json.gz" for rank in range(8)]


def sizes(events: list[dict[str, Any]]) -> list[int]:
    """Return the bytes of the ranges around collectives, in order of time."""
    ranges = sorted((e for e in events if e["name"].startswith("nccl:")), key=lambda e: e["ts"])
    return [
        int(prod(e["args"]["Input Dims"][0])) * SIZES[e["args"]["Input type"][0]] for e in ranges
    ]


def durations(events: list[dict[str, Any]]) -> list[float]:
    """Return how long the collectives took that the step launched, in order of their launches."""
    (step,) = raw.marked(events).values()
    launched = {
        e["args"]["correlation"]: e["ts"]
        for e in events
        if e.get("cat") == "cuda_runtime" and step[0] <= e["ts"] < step[1]
    }
    kernels = [e for e in events if e.get("cat") == "kernel" and e["name"].startswith("nccl")]
    mine = [e for e in kernels if e["args"]["correlation"] in launched]
    order = sorted(mine, key=lambda e: launched[e["args"]["correlation"]])
    return [float(e["dur"]) for e in order]


@pytest.mark.data
def test_dlrm_s_collectives_are_those_of_the_files(data_dir: Path) -> None:
    """Each rank's n-th launch is the same collective: its shortest kernel is the transfer."""
    events = [raw.read(path) for path in dlrm(data_dir)]
    times = [durations(found) for found in events]
    expected = sorted(
        (max(sizes), min(column), sum(column) / 8 - min(column))
        for sizes, *column in zip(zip(*map(sizes, events), strict=True), *times, strict=True)
    )
    found = analysed(*dlrm(data_dir))
    rows = [(r["bytes"], r["transfer_us"], r["waiting_mean_us"]) for r in found.collectives]
    assert len(rows) == len(expected)
    for row, plain in zip(sorted(rows), expected, strict=True):
        assert row == pytest.approx(plain, abs=1e-3)
    for row in found.collectives:
        factor = {"all_reduce": 1.75, "all_to_all": 0.875}[row["collective"]]
        rate = row["bytes"] / row["transfer_us"] / 1e3
        assert row["bus_gb_s"] == pytest.approx(rate * factor, rel=1e-3)


@pytest.mark.data
def test_dlrm_s_stragglers_add_up(data_dir: Path) -> None:
    found = analysed(*dlrm(data_dir))
    times = [durations(raw.read(path)) for path in dlrm(data_dir)]
    waits = [
        sum(t - min(column) for t, column in zip(own, zip(*times, strict=True), strict=True))
        for own in times
    ]
    assert [row["waiting_us"] for row in found.stragglers] == pytest.approx(waits)
    assert sum(row["last"] for row in found.stragglers) == len(found.collectives)
    caused = sum(row["others_waiting_us"] for row in found.stragglers)
    assert caused == pytest.approx(sum(waits) / 7, abs=0.01)


@pytest.mark.data
def test_one_rank_alone_has_sizes_and_no_waiting(data_dir: Path) -> None:
    path = data_dir / "traces/formats/kineto_resnet50_ddp_A100.json.gz"
    expected: dict[int, list[float]] = {}
    for event in raw.read(path):
        args = event.get("args", {})
        if event.get("cat") == "kernel" and "Collective name" in args:
            nbytes = int(args["In msg nelems"]) * SIZES.get(args["dtype"], 1)
            expected.setdefault(nbytes, []).append(float(event["dur"]))
    rows = {row["bytes"]: row for row in analysed(path).collectives_by_kind}
    reduced = {n: sum(t) / len(t) for n, t in expected.items() if n > 1e6}
    assert {n: rows[n]["time_us"] for n in reduced} == pytest.approx(reduced, rel=1e-4)
    assert all(row["transfer_us"] is None for row in rows.values())
