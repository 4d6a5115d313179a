"""Which launches of a region may delay its end, and that few do."""

from __future__ import annotations

import numpy as np
import pytest

from irgraph.schedule.steps.host_draws import HostDraws
from irgraph.schedule.steps.node_graph import NodeGraph
from irgraph.schedule.steps.products import KernelSamples, Lengths, Products, Sums
from irgraph.schedule.steps.regions import Region, candidates_alive
from irgraph.schedule.tasks import Floats, TaskBuilder

DRAWS = 9


def bounds(lengths: Floats) -> tuple[Floats, Floats]:
    """Return the most and the least over steps, as of one batch."""
    return lengths.max(1)[:, None], lengths.min(1)[:, None]


@pytest.mark.parametrize("seed", range(40))
def test_the_latest_candidate_is_never_left_out(seed: int) -> None:
    """Regions of several lengths, of kernels that take about as long as the host launches them."""
    choose = np.random.default_rng(seed)
    kernels, steps, first, regions = 5, 4, 0, []
    for count in choose.integers(1, 12, 6).tolist():
        closing = int(choose.choice([-1, 100]))
        run = tuple(choose.integers(0, kernels, count).tolist())
        regions.append(Region(-1, tuple(range(count)), closing, first, run))
        first += regions[-1].candidates
    launched = np.cumsum(choose.uniform(-1, 5, (first, DRAWS)), 0)
    lengths = choose.uniform(0, 2, (kernels, 1, DRAWS)) + choose.uniform(0, 3, (1, steps, 1))
    alive = candidates_alive(regions, launched, *bounds(lengths))[:, 0]
    for region in regions:
        rows = range(region.candidates)
        after = [lengths[list(region.kernels[row:])].sum(0) for row in rows]  # [steps, draws]
        ends = np.array([launched[region.first + row] + after[row] for row in rows])
        living = alive[region.first : region.first + region.candidates, None]
        best = np.where(living, ends, -np.inf).max(0)
        assert best == pytest.approx(ends.max(0), rel=1e-12)
    assert not alive.all()


@pytest.mark.parametrize(("length", "alive"), [(1.0, [False, True]), (50.0, [True, False])])
def test_what_is_sure_leaves_one_launch(length: float, alive: list[bool]) -> None:
    """The last where the host is slower, the first where the device is."""
    region = Region(-1, (0, 1), -1, 0, (0, 0))
    launched = np.array([[0.0] * DRAWS, [10.0] * DRAWS])
    found = candidates_alive([region], launched, *bounds(np.full((1, 1, DRAWS), length)))
    assert found[:, 0].all(1).tolist() == alive


def test_regions_are_between_waits_of_the_host() -> None:
    build = TaskBuilder()
    for number in range(7):
        launched = build.add(0, "T4", 1.0)
        build.add(1, "gap", 0.5)
        kernel = build.add(1, "kernel", 5.0, waits=(launched,))
        if number in (2, 3):
            build.add(0, "sync", 1.0, waits=(kernel,))
    tasks = build.tasks()
    work = np.flatnonzero(tasks.has_cause("kernel"))
    collapsed = NodeGraph(tasks, work)
    folded = np.ones((len(collapsed.folds), DRAWS))
    drawn = HostDraws(collapsed, folded, np.arange(7))
    found = [(region.kernels, region.closing >= 0) for region in drawn.regions.values()]
    assert found == [((0, 1, 2), True), ((3,), True), ((4, 5, 6), False)]


def some_lengths(choose: np.random.Generator) -> tuple[KernelSamples, Lengths]:
    """Return kernels of which draws would leave less than nothing, in some of the steps."""
    work = KernelSamples(
        np.arange(6),
        choose.uniform(0, 5, (6, 8)),
        choose.uniform(0, 6, (6, 8)),
        choose.integers(0, 3, 6),
        choose.standard_normal((3, DRAWS)),
    )
    return work, Products(work).lengths_of(np.array([1, 4, 6]))


def expected(work: KernelSamples) -> Floats:
    """Return the lengths in the steps of ``some_lengths``, ``float64[kernels, draws, steps]``."""
    errors = work.errors[work.families][:, :, None]
    found = work.lengths[:, None] + work.deviations[:, None] * errors
    return np.asarray(np.maximum(found, 0.0)[:, :, [1, 4, 6]])


@pytest.mark.parametrize("seed", range(10))
def test_sums_of_kernels_are_those_of_their_lengths(seed: int) -> None:
    choose = np.random.default_rng(seed)
    work, lengths = some_lengths(choose)
    alone, row = expected(work), choose.uniform(0, 9, DRAWS)
    counts = choose.integers(0, 3, 6).astype(np.float64)
    total = np.tensordot(counts, alone, 1) + row[:, None]
    assert lengths.total(counts, row) == pytest.approx(total, rel=1e-12)
    draws = np.array([0, 3, 8])
    sums = Sums(lengths)
    for _ in range(2):  # what was taken before is forgotten
        sums.reset()
        sums.add([2, 2, 5], 1.0)
        sums.add([1], -1.0)
        found = 2 * alone[2] + alone[5] - alone[1] + row[:, None]
        assert sums.sums_of(draws, row[draws]) == pytest.approx(found[draws], rel=1e-11, abs=1e-12)


@pytest.mark.parametrize("seed", range(10))
def test_no_length_is_beyond_its_bounds(seed: int) -> None:
    work, _ = some_lengths(np.random.default_rng(seed))
    upper, lower = Products(work).bounds(np.array([1, 4, 6]))
    alone = expected(work)
    assert (alone.max(2) <= upper + 1e-12).all() and (alone.min(2) >= lower - 1e-12).all()
