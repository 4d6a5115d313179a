"""Text without the canonical blank lines loses nothing."""

from __future__ import annotations

from irgraph.text import parse

LINES = (
    'model "m" { format = 1 }',
    'device @gpu0 "a100"',
    "input %x : f32[4] in $x",
    "%y = aten.relu(%x) : f32[4] in $y",
)


def test_no_line_is_lost_where_blank_lines_lack() -> None:
    graph = parse("\n".join(LINES) + "\n")
    assert [op.name for op in graph.ops] == ["aten.relu"]
    assert graph.devices[0].sheet == "a100"


def test_a_model_without_ops_is_read() -> None:
    graph = parse("\n".join(LINES[:3]) + "\n")
    assert graph.ops == ()
    assert [d.tensor.name for d in graph.tensors] == ["x"]
