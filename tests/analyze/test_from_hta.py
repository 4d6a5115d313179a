"""Figures of HolisticTraceAnalysis 0.5.0 on DLRM's eight ranks, and why ours are what they are.

Its figures stand here as it printed them (``docs/from-hta.md``); the rest is arithmetic.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from irgraph.analyze import Analysis, analyze, launches
from irgraph.capture.kineto import read_kineto
from irgraph.capture.kineto.events.tree import Tree, build_tree
from tests.analyze import raw

pytestmark = pytest.mark.data

COMPUTE = (1034, 1246, 1068, 1240, 1126, 1041, 1051, 1059)
IDLE = (6419, 6428, 7046, 8145, 8887, 9121, 7051, 8308)
NEITHER = (5556, 11075, 3236, 9468, 6576, 6230, 3308, 1600)
OVERLAP = (4.50, 2.47, 7.88, 3.31, 0.56, 0.64, 7.56, 9.51)
WITH_ORPHANS = (1, 3)
"""Ranks of which the file holds work of the step before, which HTA takes for this one's."""


def paths(data_dir: Path) -> list[Path]:
    return [data_dir / f"traces/dlrm_8xV100/kineto_rank{rank}.json.gz" for rank in range(8)]


@pytest.fixture(scope="module")
def trees(data_dir: Path) -> list[Tree]:
    return [build_tree(read_kineto(path)) for path in paths(data_dir)]


@pytest.fixture(scope="module")
def found(trees: list[Tree]) -> Analysis:
    return analyze(trees)


def test_computation_and_overlap_are_the_same(found: Analysis) -> None:
    assert [step.compute for step in found.steps] == pytest.approx(COMPUTE)
    shares = [100 * step.overlapped / step.communication for step in found.steps]
    assert shares == pytest.approx(OVERLAP, abs=0.01)


def test_idle_time_differs_by_what_lies_before_and_after_the_kernels(
    found: Analysis, data_dir: Path
) -> None:
    for rank, (path, step) in enumerate(zip(paths(data_dir), found.steps, strict=True)):
        if rank in WITH_ORPHANS:
            continue
        work = raw.on_device(raw.read(path))
        span = float(max(end for _, end in work) - min(start for start, _ in work))
        assert step.idle == pytest.approx(IDLE[rank] + step.time - span)
        assert step.active - step.compute == pytest.approx(NEITHER[rank], abs=1)


def test_queues_and_launches_are_the_same(trees: list[Tree]) -> None:
    rows = {row["stream"]: row for row in launches.queues(trees[:1])}
    assert {s: (r["launches"], r["waiting_most"]) for s, r in rows.items()} == {
        7: (225, 25), 22: (5, 1), 24: (23, 1), 84: (8, 1)
    }  # fmt: skip
    delays = launches.launch_delays(trees[:1])
    assert sum(row["calls"] for row in delays) == 261
    assert sum(row["short"] for row in delays) == 180


def test_rank_2_is_no_straggler(found: Analysis) -> None:
    """HTA names 2 and 7, the ranks with the least time in collectives."""
    last = {row["rank"]: row["last"] for row in found.stragglers}
    assert (last[2], last[7], last[5], last[4]) == (0, 5, 2, 1)
