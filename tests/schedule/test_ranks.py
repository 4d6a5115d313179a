"""Ranks together: collectives start with the last to come, and who that is is found."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from costmodels.collectives.load import find_curve
from irgraph.diagnostics import IrgraphError
from irgraph.ir.cost import Kernel
from irgraph.ir.op import Op
from irgraph.ir.ranks import groups_at
from irgraph.predict.prediction import predict
from irgraph.predict.ranks import predict_ranks
from irgraph.schedule.critical_path import critical_path
from irgraph.schedule.rank_classes import kinds_of
from irgraph.schedule.rank_path import hops, rank_path, times_by_activity
from irgraph.schedule.ranks import (
    draw_step_times,
    is_collective,
    shortest,
    simulate_ranks,
    transfer_time,
)
from irgraph.schedule.simulate import simulate
from irgraph.schedule.timeline import Timeline
from irgraph.text import parse
from tests.predict.test_target import REDUCED
from tests.schedule.graphs import FlatHost, kernel, priced
from tests.schedule.test_simulate import PLAIN


def rank(before: float, transfer: float = 50.0, after: float = 20.0, meetings: int = 1) -> Timeline:
    calls = [(Op("aten.linear"), [kernel(before)])]
    exchange = kernel(transfer, "collective")
    calls += [(Op("c10d.allreduce_"), [exchange]) for _ in range(meetings)]
    calls.append((Op("aten.sum"), [kernel(after, "reduce")]))
    return simulate(priced(*calls), FlatHost(), accounting=PLAIN)


def test_a_collective_starts_when_the_last_rank_has_come() -> None:
    found = simulate_ranks([rank(100.0), rank(300.0), rank(200.0)])
    meeting = found.meetings[0]
    assert (meeting.start, meeting.transfer, meeting.last) == (307.0, 50.0, 1)
    assert meeting.waits == (200.0, 0.0, 100.0)
    assert found.steps == (377.0, 377.0, 377.0)
    assert found.step_time == 377.0
    assert found.straggler == 1
    assert found.waiting == (200.0, 0.0, 100.0)
    # what is not work of its own until the reduction ends
    assert found.exposed == (250.0, 50.0, 150.0)
    # 100, 300 and 200 before, each 50 of transfer and 20 after it
    assert found.bubble == pytest.approx(1 - (170 + 370 + 270) / (3 * 377))


def test_a_rank_that_begins_later_is_waited_for() -> None:
    found = simulate_ranks([rank(100.0), rank(100.0)], starts=[0.0, 500.0])
    assert found.meetings[0].waits == (500.0, 0.0)
    assert found.straggler == 1
    assert found.steps == (677.0, 177.0)
    assert found.step_time == 677.0
    assert critical_path(found.timeline).by_cause()["start"] == 500.0


def test_ranks_that_need_nothing_of_each_other_keep_their_times() -> None:
    alone = rank(100.0)
    found = simulate_ranks([alone])
    assert found.steps == (alone.step_time,)
    assert found.timeline.active_time == alone.active_time
    assert found.waiting == (0.0,)


def test_ranks_explain_their_step_by_the_one_that_came_last() -> None:
    found = simulate_ranks([rank(100.0), rank(300.0)])
    path = critical_path(found.timeline)
    assert path.length == pytest.approx(found.step_time)
    assert path.by_cause()["kernel gemm"] == 300.0
    assert path.by_cause()["kernel collective"] == 50.0
    names = {str(found.timeline.resources[i.resource]) for i in path.intervals if i.kernel}
    assert "gpu0 rank 1 default" in names


def test_the_transfer_may_be_the_shortest_that_was_measured() -> None:
    ranks = [rank(100.0, 250.0), rank(300.0, 50.0)]
    found = simulate_ranks(ranks, transfer=shortest)
    assert found.meetings[0].transfer == 50.0


def test_measured_times_contain_waiting_and_modelled_ones_do_not() -> None:
    timed = [Kernel("k", "collective", time, by="measured") for time in (900.0, 200.0)]
    modelled = [Kernel("k", "collective", time) for time in (50.0, 60.0)]
    assert transfer_time(timed) == 200.0
    assert transfer_time(modelled) == 60.0
    assert transfer_time([*timed, *modelled]) == 60.0


def test_a_rank_that_lost_the_race_once_waits_the_next_time() -> None:
    found = simulate_ranks([rank(100.0, meetings=2), rank(300.0, meetings=2)])
    assert [m.waits for m in found.meetings] == [(200.0, 0.0), (0.0, 0.0)]


def test_ranks_with_different_numbers_of_collectives_are_refused() -> None:
    with pytest.raises(IrgraphError, match=r"numbers of collectives \(rank 0: 1, rank 1: 2\)"):
        simulate_ranks([rank(1.0), rank(1.0, meetings=2)])


def test_ranks_that_do_different_collectives_are_refused() -> None:
    def named(name: str) -> Timeline:
        made = Kernel(f"{name} of 2, 4 B", "collective", 1.0)
        return simulate(priced((Op("c10d.any"), [made])), FlatHost())

    message = "is all_reduce of 2, 4 B on rank 0 and broadcast of 2, 4 B on rank 1"
    with pytest.raises(IrgraphError, match=message):
        simulate_ranks([named("all_reduce"), named("broadcast")])


@pytest.mark.parametrize(
    ("names", "fits"),
    [
        (("all_reduce of 2, 4 B", "all_reduce of 2, 8 B"), False),
        (("all_reduce of 2, 4 B", "all_reduce of 4, 4 B"), False),
        (("all_to_allv of 2, 4 B", "all_to_allv of 2, 8 B"), True),
    ],
)
def test_messages_must_be_alike_but_of_uneven_exchanges(names: tuple[str, ...], fits: bool) -> None:
    ranks = [
        simulate(priced((Op("c10d.any"), [Kernel(name, "collective", 1.0)])), FlatHost())
        for name in names
    ]
    if fits:
        assert len(simulate_ranks(ranks).meetings) == 1
        return
    with pytest.raises(IrgraphError, match=f"is {names[0]} on rank 0 and {names[1]} on rank 1"):
        simulate_ranks(ranks)


def test_no_ranks_are_an_error() -> None:
    with pytest.raises(IrgraphError, match="no ranks to simulate"):
        simulate_ranks([])


def test_each_rank_needs_its_start() -> None:
    with pytest.raises(IrgraphError, match="2 ranks have 1 starts: give one each"):
        simulate_ranks([rank(1.0), rank(1.0)], starts=[5.0])


def test_predicted_ranks_meet_in_their_reductions() -> None:
    both = [predict(parse(REDUCED), ranks=2).timeline for _ in range(2)]
    found = simulate_ranks(both, starts=[0.0, 100.0])
    (meeting,) = found.meetings
    assert meeting.name == "all_reduce of 2, 4194304 B"
    assert meeting.waits == (pytest.approx(100.0), 0.0)
    assert meeting.transfer == pytest.approx(find_curve("all_reduce", 2).time(2**22))


def test_predicted_ranks_whose_reductions_have_no_time_are_refused() -> None:
    message = r"rank 0 has collectives without a time: c10d.allreduce_ x1"
    with pytest.raises(IrgraphError, match=message):
        simulate_ranks([predict(parse(REDUCED)).timeline] * 2)


def test_collectives_are_told_by_family_or_by_their_librarys_name() -> None:
    assert is_collective(kernel(1.0, "collective"))
    assert is_collective(Kernel("ncclKernel_SendRecv_RING(ncclWork)", "other", 1.0))
    assert is_collective(Kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", "other", 1.0))
    assert not is_collective(kernel(1.0))


def test_the_example_of_the_documentation_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "schedule.md").read_text(encoding="utf-8")
    code = page.partition("## Ranks")[2].partition("```python\n")[2].partition("```")[0]
    assert "predict_ranks" in code
    (tmp_path / "rank.ir").write_text(REDUCED, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(code, names)
    assert names["found"].waiting == (pytest.approx(100.0), 0.0)


def test_many_ranks_of_few_kinds_are_those_simulated_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kinds = [rank(100.0 + 10.0 * n, 50.0 + n, meetings=3) for n in range(3)]
    timelines = [kinds[n % 3] for n in range(70)]
    starts = [0.0 if n % 2 else 25.0 for n in range(70)]
    quick = simulate_ranks(timelines, starts=starts)
    assert len(quick.timeline.resources) < len(timelines)
    monkeypatch.setattr("irgraph.schedule.ranks.MAX_SEPARATE_RANKS", 100)
    slow = simulate_ranks(timelines, starts=starts)
    assert (quick.steps, quick.exposed, quick.meetings) == (slow.steps, slow.exposed, slow.meetings)
    assert critical_path(quick.timeline).by_cause() == critical_path(slow.timeline).by_cause()


def test_a_thousand_ranks_of_eight_kinds_are_quick() -> None:
    kinds = [rank(100.0 + n, meetings=1000) for n in range(8)]
    begun = process_time()
    found = simulate_ranks([kinds[n % 8] for n in range(1024)])
    assert process_time() - begun < 10.0  # 0.2 s where little else runs
    assert (len(found.steps), found.straggler) == (1024, 7)


def test_ranks_meet_within_their_groups() -> None:
    def timeline(before: float) -> Timeline:
        calls = [
            (Op("aten.linear"), [kernel(before)]),
            (Op("c10d.allreduce_"), [replace(kernel(50.0, "collective"), group="tp")]),
            (Op("c10d.allreduce_"), [replace(kernel(50.0, "collective"), group="dp")]),
        ]
        return simulate(priced(*calls), FlatHost(), accounting=PLAIN)

    groups = [{"tp": (n // 2 * 2, n // 2 * 2 + 1), "dp": (n % 2, n % 2 + 2)} for n in range(4)]
    found = simulate_ranks([timeline(t) for t in (100.0, 300.0, 200.0, 100.0)], groups=groups)
    waits = [meeting.waits for meeting in found.meetings]
    assert waits == [
        (0.0, 0.0, 0.0, 100.0),
        (200.0, 0.0, 0.0, 0.0),
        (0.0, 0.0, 100.0, 0.0),
        (0.0, 0.0, 0.0, 100.0),
    ]
    assert [meeting.last for meeting in found.meetings] == [2, 1, 0, 1]
    assert critical_path(found.timeline).length == pytest.approx(found.step_time)


def meeting_rank(stage: float, odd: float = 0.0) -> Timeline:
    """A rank of a mesh: work, a tensor-parallel sum, a send along the pipeline, a gradient sum."""
    calls = [
        (Op("aten.linear"), [kernel(stage)]),
        (Op("c10d.allreduce_"), [replace(kernel(20.0, "collective"), group="tp")]),
        (Op("aten.linear"), [kernel(odd)]),
        (Op("c10d.allreduce_"), [replace(kernel(30.0, "collective"), group="pp")]),
        (Op("c10d.allreduce_"), [replace(kernel(40.0, "collective"), group="dp")]),
        (Op("c10d.allreduce_"), [kernel(5.0, "collective")]),
    ]
    return simulate(priced(*calls), FlatHost(), accounting=PLAIN)


def mesh(data: int, stages: int, tensor: int) -> list[dict[str, tuple[int, ...]]]:
    """Groups of ranks numbered by data, stage and tensor, the last the fastest."""

    def at(d: int, p: int, t: int) -> int:
        return (d * stages + p) * tensor + t

    return [
        {
            "tp": tuple(at(d, p, i) for i in range(tensor)),
            "pp": tuple(at(d, i, t) for i in range(stages)),
            "dp": tuple(at(i, p, t) for i in range(data)),
        }
        for d in range(data)
        for p in range(stages)
        for t in range(tensor)
    ]


def test_ranks_of_a_mesh_are_simulated_by_kinds_as_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    groups = mesh(4, 3, 2)
    kinds = [meeting_rank(100.0 + 50.0 * p, 10.0 * t) for p in range(3) for t in range(2)]
    timelines = [kinds[rank % 6] for rank in range(24)]
    starts = [70.0 if rank == 7 else 0.0 for rank in range(24)]
    slow = simulate_ranks(timelines, starts=starts, groups=groups)
    monkeypatch.setattr("irgraph.schedule.ranks.MAX_SEPARATE_RANKS", 1)
    quick = simulate_ranks(timelines, starts=starts, groups=groups)
    assert len(quick.meetings) < len(slow.meetings)
    assert len(quick.timeline.resources) < len(slow.timeline.resources)
    assert quick.steps == pytest.approx(slow.steps)
    assert quick.waiting == pytest.approx(slow.waiting)
    for one, other in zip(quick.shares, slow.shares, strict=True):
        assert one == pytest.approx(other)
    path = times_by_activity(rank_path(quick))
    assert {w: t for w, (t, _) in path.items()} == pytest.approx(
        {w: t for w, (t, _) in times_by_activity(rank_path(slow)).items()}
    )


def test_kinds_are_split_by_whom_their_ranks_meet() -> None:
    """Two ranks with the same model are of two kinds where one's peer is late."""
    same = meeting_rank(100.0)
    groups = mesh(2, 2, 1)
    assert kinds_of([same] * 4, [0.0] * 4, groups) == [0, 0, 0, 0]
    assert len(set(kinds_of([same] * 4, [0.0, 0.0, 0.0, 9.0], groups) or ())) == 4
    odd = [{**each, "tp": (0, 1, 2, 3)} if rank else each for rank, each in enumerate(groups)]
    assert kinds_of([same] * 4, [0.0] * 4, odd) is None


def test_a_thousand_ranks_of_a_mesh_are_quick() -> None:
    data, stages, tensor = 32, 4, 8
    kinds = [meeting_rank(100.0 + 50.0 * p) for p in range(stages)]
    timelines = [kinds[rank // tensor % stages] for rank in range(data * stages * tensor)]
    begun = process_time()
    found = simulate_ranks(timelines, groups=mesh(data, stages, tensor))
    assert process_time() - begun < 2.0
    assert len(found.steps) == 1024
    assert max(found.shares[0].values()) == found.shares[0]["wait pp"] == pytest.approx(150.0)


def test_shares_of_a_rank_add_up_to_its_step() -> None:
    timelines = [meeting_rank(100.0 + 50.0 * p, 10.0 * t) for p in range(3) for t in range(2)]
    found = simulate_ranks(timelines, starts=[0, 9, 0, 0, 0, 0], groups=mesh(1, 3, 2))
    for share, step, exposed in zip(found.shares, found.steps, found.exposed, strict=True):
        assert sum(share.values()) == pytest.approx(step)
        others = share["work"] + share["idle"]
        assert exposed == pytest.approx(step - others)
        assert {"wait tp", "wait pp", "transfer tp", "transfer pp", "wait"} <= set(share)


def test_one_path_hops_between_ranks_and_adds_up_to_the_step() -> None:
    timelines = [meeting_rank(100.0, 10.0), meeting_rank(300.0, 0.0), meeting_rank(50.0, 500.0)]
    groups = [{"tp": (0, 1)}, {"tp": (0, 1)}, {}]
    for each in groups:
        each["pp"] = (0, 1, 2)
    groups[2]["tp"] = (2,)
    found = simulate_ranks(timelines, groups=groups)
    path = rank_path(found)
    assert sum(stretch.time for stretch in path) == pytest.approx(found.step_time)
    assert all(a.start + a.time == pytest.approx(b.start) for a, b in pairwise(path))
    totals = times_by_activity(path)
    assert totals["kernel gemm"] == (550.0, [2])
    assert {"transfer pp", "transfer tp", "transfer"} <= set(totals)
    assert hops(path) >= 1
    late = simulate_ranks([timelines[0]] * 2, starts=[0.0, 400.0], groups=[{}, {}])
    (start,) = [stretch for stretch in rank_path(late) if stretch.activity == "start"]
    assert (start.rank, start.time) == (1, 400.0)


def test_many_draws_of_starts_are_those_simulated_one_by_one() -> None:
    timelines = [rank(100.0, meetings=2), rank(140.0, meetings=2), rank(90.0, meetings=2)]
    starts = np.random.default_rng(0).exponential(80.0, (3, 5))
    found = draw_step_times(timelines, starts)
    one_by_one = [simulate_ranks(timelines, starts=draw).step_time for draw in starts.T.tolist()]
    assert found == pytest.approx(one_by_one)
    with pytest.raises(IrgraphError, match="3 ranks have 2 starts"):
        draw_step_times(timelines, starts[:2])


def test_a_captured_rank_stands_for_those_of_its_mesh() -> None:
    text = REDUCED.replace(
        "format = 1", 'format = 1  ranks = 4  rank = 3  groups = "tp=2,3 dp=1,3"'
    )
    graph = parse(text)
    assert groups_at(graph, 0) == {"tp": (0, 1), "dp": (0, 2)}
    assert len(predict_ranks([graph] * 4, "v100").steps) == 4
    with pytest.raises(IrgraphError, match="2 models, and a process group has rank 3"):
        predict_ranks([graph] * 2, "v100")
    odd = parse(text.replace("tp=2,3", "tp=0,1,3"))
    with pytest.raises(IrgraphError, match="not evenly spaced"):
        predict_ranks([odd] * 4, "v100")
