"""Who shares with whom, as four traced ranks show whose compute overlaps all-to-all.

Kernels of the same name and place in a step, in steps where they run alone and in steps where
something else runs all the while: what the model of ``irgraph.schedule.sharing`` rests on.
"""

from __future__ import annotations

import gzip
import json
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

SLOW = 200_000
"""Microseconds: one step of each rank takes longer, and is left out."""

SHORT = 20
"""Microseconds: of what is shorter, whole microseconds say too little."""


class Work(NamedTuple):
    """A stretch of device work: its kind is ``compute``, ``nccl`` or ``copy``."""

    start: int
    end: int
    stream: int
    name: str

    @property
    def kind(self) -> str:
        if self.name.startswith("nccl"):
            return "nccl"
        return "copy" if self.name.startswith("Mem") else "compute"


def steps(path: Path) -> Iterator[list[Work]]:
    """Yield the device work of each usual step in order of time."""
    with gzip.open(path) as file:
        events = [e for e in json.load(file)["traceEvents"] if e.get("ph") == "X"]
    work = sorted(
        work_of(e) for e in events if e.get("cat", "").lower() in ("kernel", "gpu_memcpy")
    )
    for event in events:
        if event["name"].startswith("ProfilerStep") and event["dur"] < SLOW:
            end = event["ts"] + event["dur"]
            yield [w for w in work if event["ts"] <= w.start < end]


def work_of(event: dict[str, Any]) -> Work:
    start, stream = event["ts"], event["args"]["stream"]
    return Work(start, start + event["dur"], stream, event["name"])


def shares(one: Work, others: list[Work]) -> Counter[str]:
    """Return for which share of its time work of each kind ran on other streams."""
    found: Counter[str] = Counter()
    for other in others:
        common = min(one.end, other.end) - max(one.start, other.start)
        if other.stream != one.stream and common > 0:
            found[other.kind] += common / (one.end - one.start)
    return found


@pytest.fixture(scope="module")
def slowdowns(data_dir: Path) -> dict[str, list[float]]:
    """Return, by what runs beside it, how much longer computing takes than alone."""
    times: dict[tuple[str, int, int], list[tuple[int, Counter[str]]]] = defaultdict(list)
    paths = sorted((data_dir / "traces/dlrm_4xV100_overlap").glob("*.json.gz"))
    for step in (step for path in paths for step in steps(path)):
        seen: Counter[tuple[str, int]] = Counter()
        for one in step:
            seen[one.name, one.stream] += 1
            if one.kind == "compute" and one.end > one.start:
                place = (one.name, one.stream, seen[one.name, one.stream])
                times[place].append((one.end - one.start, shares(one, step)))
    return {kind: list(ratios(times.values(), kind)) for kind in ("compute", "nccl")}


def ratios(groups: Any, kind: str) -> Iterator[float]:
    for group in groups:
        alone = [time for time, beside in group if beside.total() < 0.05]
        shared = [time for time, beside in group if beside[kind] > 0.9]
        if alone and shared and statistics.fmean(alone) >= SHORT:
            yield statistics.fmean(shared) / statistics.fmean(alone)


@pytest.mark.data
def test_two_kernels_slow_each_other_down(slowdowns: dict[str, list[float]]) -> None:
    # few, and their sizes depend on data: enough to tell sharing from none
    assert len(slowdowns["compute"]) >= 5
    assert 1.3 < statistics.median(slowdowns["compute"]) < 2.2


@pytest.mark.data
def test_kernels_and_collectives_do_not_share(slowdowns: dict[str, list[float]]) -> None:
    assert len(slowdowns["nccl"]) >= 40
    assert statistics.median(slowdowns["nccl"]) == pytest.approx(1.0, rel=0.05)
