"""Which calls of backward had ended before another began, by hand-written ranges."""

from __future__ import annotations

from irgraph.capture.common.interrupted import EVALUATE, close_interrupted
from irgraph.capture.common.nodes import RecordedNode


def parents(*rows: tuple[str, int]) -> list[int]:
    """Return what the ranges, numbered from 1 and each with its caller, are called by at last."""
    nodes = [RecordedNode(at, name, parent=parent) for at, (name, parent) in enumerate(rows, 1)]
    close_interrupted(nodes)
    return [node.parent for node in nodes]


def test_what_follows_an_interrupted_range_is_beside_it() -> None:
    found = parents(
        ("thread", 0),
        (f"{EVALUATE}AddmmBackward0", 1),
        ("AddmmBackward0", 2),
        ("module", 3),
        ("aten::to", 99),  # its caller was interrupted
        ("aten::mm", 4),
        (f"{EVALUATE}TBackward0", 4),
        ("TBackward0", 7),
        ("Optimizer.step#SGD.step", 3),
        ("aten::add_", 9),
    )
    assert found == [0, 1, 2, 3, 99, 4, 1, 7, 1, 9]


def test_backward_within_a_function_written_in_python_stays_there() -> None:
    rows = [
        ("thread", 0),
        (f"{EVALUATE}CheckpointFunctionBackward", 1),
        ("CheckpointFunctionBackward", 2),
        (f"{EVALUATE}AddmmBackward0", 3),
        ("AddmmBackward0", 4),
        (f"{EVALUATE}TBackward0", 3),
    ]
    assert parents(*rows) == [parent for _, parent in rows]


def test_a_function_written_in_python_may_be_interrupted_too() -> None:
    found = parents(
        (f"{EVALUATE}MineBackward", 0),
        ("MineBackward", 1),
        ("aten::to", 77),
        (f"{EVALUATE}TBackward0", 2),
    )
    assert found == [0, 1, 77, 0]
