"""Figures of HolisticTraceAnalysis 0.6.1 and by TraceLens's definitions on DLRM's eight ranks.

Those of the first stand here as it printed them (``docs/from-hta.md``); the rest is arithmetic.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from irgraph.analyze import Analysis, analyze, launches
from irgraph.analyze.roofline import works_of
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
        7: (225, 25),
        22: (5, 1),
        24: (23, 1),
        84: (8, 1),
    }
    delays = launches.launch_delays(trees[:1])
    assert sum(row["calls"] for row in delays) == 261
    assert sum(row["short"] for row in delays) == 180


def test_rank_2_is_no_straggler(found: Analysis) -> None:
    """HTA names 2 and 7, the ranks with the least time in collectives."""
    last = {row["rank"]: row["last"] for row in found.stragglers}
    assert (last[2], last[7], last[5], last[4]) == (0, 5, 2, 1)


def test_figures_by_the_definitions_of_tracelens(
    trees: list[Tree], found: Analysis, data_dir: Path
) -> None:
    """Computation has fills, communication ``nccl`` in its name, and time ends with the work."""
    events = raw.read(paths(data_dir)[0])
    copies = [e for e in events if e["cat"] == "gpu_memcpy"]
    work = [e for e in events if e["cat"] in ("kernel", "gpu_memset")]
    talks = [e for e in work if "nccl" in e["name"]]
    rest = [e for e in work if "nccl" not in e["name"]]
    ends = raw.on_device([*work, *copies])
    span = min(start for start, _ in ends), max(end for _, end in ends)
    compute, communication, both, copied, busy = (
        raw.busy(raw.on_device(some), span)
        for some in (rest, talks, work, copies, [*work, *copies])
    )
    assert (compute, communication, both - compute, copied) == (1034, 5798, 5537, 19)
    total = float(span[1] - span[0])
    assert (busy - both, busy, total - busy, total) == (19, 6590, 6419, 13009)
    step = found.steps[0]
    ours = (step.compute, step.communication, step.exposed, step.copies, step.active)
    assert ours == pytest.approx((compute, communication, both - compute, copied, busy))
    product = next(
        work
        for work in works_of(trees[:1])[0]
        if work.op == "aten::addmm" and "f32[16,512] f32[512,512]" in work.shape
    )
    assert product.flop == 2 * 16 * 512 * 512 == 8_396_800 - 16 * 512
