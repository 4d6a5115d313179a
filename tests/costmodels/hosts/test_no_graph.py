"""Host times without a graph: compared at equal speed of launches."""

from __future__ import annotations

import pytest

from costmodels.hosts.no_graph import no_graph_ratio
from costmodels.hosts.rented_gpu import step_tables
from irgraph.overheads.format import FORMAT, HostFile, OpEntry, Stat
from irgraph.overheads.table import LAUNCH_EXPONENTS

NODE = {"autograd.ReluBackward0": OpEntry(t2=Stat(9.0, count=1))}


def step(
    time: float, launch: float = 3.0, *, trains: bool = False, name: str = "aten.relu"
) -> HostFile:
    """Return the table of a step of one operation, whose times add up to ``time``."""
    entry = OpEntry(t2=Stat(time - 1.0, count=10), t3=Stat(1.0, count=10))
    ops = {name: entry, **(NODE if trains else {})}
    return HostFile(FORMAT, "step", Stat(1.0), {"kernel": Stat(launch)}, ops)


def test_operations_of_both_steps_are_compared() -> None:
    assert no_graph_ratio([step(6.0), step(10.0, trains=True)]) == 0.6


def test_a_slow_run_is_no_graph() -> None:
    """The inference ran at half the speed: launches, too, took twice as long."""
    slow = 6.0 * 2 ** LAUNCH_EXPONENTS["T2"]
    assert no_graph_ratio([step(slow, 6.0), step(10.0, trains=True)]) == 0.6


def test_launches_early_and_late_are_one_time() -> None:
    """A cast launches first: nearly all of the operation's time is behind it."""
    late = HostFile(
        FORMAT,
        "cast",
        Stat(1.0),
        {"kernel": Stat(3.0)},
        {
            "aten.relu": OpEntry(t2=Stat(1.0, count=10), t5=Stat(5.0, count=10)),
        },
    )
    assert no_graph_ratio([late, step(10.0, trains=True)]) == 0.6


@pytest.mark.parametrize(
    "files",
    [[step(10.0, trains=True)], [], [step(6.0)], [step(6.0, name="a.b"), step(9.0, trains=True)]],
)
def test_without_a_pair_of_steps_there_is_no_ratio(files: list[HostFile]) -> None:
    assert no_graph_ratio(files) == 1.0


def test_other_operations_say_nothing() -> None:
    """The median is of training steps that call the same operations."""
    other = step(1.0, trains=True, name="aten.gelu")
    assert no_graph_ratio([step(6.0), other, step(10.0, trains=True)]) == 0.6


def test_each_traced_inference_leads_to_a_similar_ratio() -> None:
    """Three programs: the ratio without one of them differs by at most a tenth."""
    device = "h100-80gb-hbm3"
    ratios = [
        no_graph_ratio(step_tables(device, model)) for model in ("resnet50", "gpt", "dlrm-mlperf")
    ]
    assert max(ratios) / min(ratios) < 1.1
