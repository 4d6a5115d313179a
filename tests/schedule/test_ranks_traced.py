"""Eight traced ranks of a DLRM together: measured kernels, collectives by their transfer alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from irgraph.capture.kineto import read_kineto
from irgraph.capture.kineto.events.tree import build_tree
from irgraph.replay.host_times import HostTimes
from irgraph.replay.replay import Replayed, build_replayer
from irgraph.schedule.critical_path import critical_path
from irgraph.schedule.ranks import Ranks, longest, shortest, simulate_ranks

RANKS = 8


@pytest.fixture(scope="module")
def steps(data_dir: Path) -> tuple[list[Replayed], list[float]]:
    """Return each rank's step, host times being the means of its trace, and when it began."""
    found, begun = [], []
    for rank in range(RANKS):
        tree = build_tree(read_kineto(data_dir / f"traces/dlrm_8xV100/kineto_rank{rank}.json.gz"))
        one = build_replayer(tree)
        step = next(step for step in tree.steps if step.complete)
        found.append(one.replay(step, HostTimes(one.samples())))
        begun.append((tree.trace.base + step.start) / 1000)
    return found, [begin - min(begun) for begin in begun]


@pytest.fixture(scope="module")
def together(steps: tuple[list[Replayed], list[float]]) -> Ranks:
    found, starts = steps
    return simulate_ranks([r.timeline for r in found], starts=starts, transfer=shortest)


@pytest.mark.data
def test_every_ranks_step_is_found(
    steps: tuple[list[Replayed], list[float]], together: Ranks
) -> None:
    errors = [t / r.measured - 1 for t, r in zip(together.steps, steps[0], strict=True)]
    assert max(map(abs, errors)) < 0.02


@pytest.mark.data
def test_the_rank_that_comes_last_is_found(
    steps: tuple[list[Replayed], list[float]], together: Ranks
) -> None:
    # NCCL's kernels run from a rank's arrival on: on the last to come they are shortest
    assert together.meetings[0].last == 7
    assert together.straggler == 7
    assert together.waiting[7] == min(together.waiting)
    assert max(together.waiting) > 5 * min(together.waiting)


@pytest.mark.data
def test_the_path_explains_the_ranks(together: Ranks) -> None:
    path = critical_path(together.timeline)
    assert sum(path.by_cause().values()) == pytest.approx(together.step_time)
    # the step is long because the last rank begins late
    assert path.by_cause()["start"] == pytest.approx(7513.0, abs=1.0)


@pytest.mark.data
def test_waiting_left_in_the_transfers_is_counted_twice(
    steps: tuple[list[Replayed], list[float]], together: Ranks
) -> None:
    found, starts = steps
    naive = simulate_ranks([r.timeline for r in found], starts=starts, transfer=longest)
    assert naive.steps[7] > 1.5 * together.steps[7]
