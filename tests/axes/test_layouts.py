"""Layouts of tensors that grow."""

from __future__ import annotations

from irgraph.text import parse
from irgraph.verbs import Axis, resize

DROPPED = """model "m" { format = 2 }

device @gpu0 "v100"
input %x : f32[1, 4, 8] in $x

%y = aten.permute(%x, [2, 0, 1]) : f32[8, 1, 4; 1, 8, 8] in $x
%z = aten.relu(%y) : f32[8, 1, 4] in $z
return %z
"""


def test_strides_of_axes_of_one_element_are_arbitrary() -> None:
    """A capture omits the operand's own stride of such an axis, which the view repeats."""
    view, _ = resize(parse(DROPPED), Axis("x", 1), 6).graph.ops
    assert [(t.shape, t.strides) for t in view.outputs] == [((8, 1, 6), (1, 48, 8))]
