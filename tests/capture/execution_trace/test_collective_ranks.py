"""How many ranks a recorded step had: what traces and the running process say."""

from __future__ import annotations

from pathlib import Path

import pytest

from irgraph.capture.execution_trace import lower_execution_trace
from irgraph.capture.live.build_graph import live_ranks
from tests.capture.execution_trace.traces import Row, literal, node, tensor, trace


def note(number: int, *group: int) -> Row:
    """Return what torch notes beside a collective: a group's first rank, stride and size last."""
    head = [literal(0, "Int"), literal("allreduce", "String")]
    return node(number, "record_param_comms", [*head, *(literal(n, "Int") for n in group)])


@pytest.mark.parametrize(
    ("groups", "ranks"),
    [
        (((0, 1, 8),), 8),
        (((0, 1, 8), (0, 1, 8)), 8),
        (((0, 1, 8), (-1, -1, 1)), 8),
        (((0, 1, 8), (0, 1, 2)), None),
        ((), None),
        (((8,),), None),
    ],
    ids=str,
)
def test_groups_of_one_size_are_the_ranks_of_the_step(
    groups: tuple[tuple[int, ...], ...], ranks: int | None
) -> None:
    x, y = tensor(10, 11, 8), tensor(12, 13, 8)
    notes = [note(5 + i, *group) for i, group in enumerate(groups)]
    nodes = trace(node(4, "aten::relu", [x], [y]), *notes)
    assert lower_execution_trace(nodes).graph.settings.get("ranks") == ranks


@pytest.mark.data
def test_a_recorded_step_of_two_ranks_says_so(data_dir: Path) -> None:
    path = data_dir / "traces/formats/et_1.1.0_resnet50_2gpu.json.gz"
    assert lower_execution_trace(path).graph.settings["ranks"] == 2


def test_a_process_of_a_group_knows_its_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch.distributed as dist

    assert live_ranks() == {}
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda: 4)
    assert live_ranks() == {"ranks": 4}
