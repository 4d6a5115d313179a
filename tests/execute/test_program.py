"""A graph as a plain function, to be timed: the same results as the machine that checks them."""

from __future__ import annotations

import torch

from irgraph.execute.machine import Machine, without_autograd
from irgraph.execute.program import GraphProgram, calls_of
from irgraph.execute.random_values import Drawer
from irgraph.ir.graph import Graph
from tests.language.models import model

TEXT = """param %w : f32[4, 6] in $w
input %x : f32[4, 6] in $x
state %n : f32[] in $n

%p = aten.linear(%x, %w) : f32[4, 4] in $q {
  %t = aten.t(%w) : f32[6, 4; 1, 6] in $w
  %p = aten.mm(%x, %t) : f32[4, 4] in $q
}
[%a] = aten.split(%p, split_size = 4, dim = 1) : [f32[4, 4] in $q]
%top, %at = aten.max(%a, dim = 1) : f32[4] in $m, i64[4] in $i
%all = aten.cat([%a, %a], dim = 1) : f32[4, 8] in $c
%mean = aten.mean(%all) : f32[] in $e
aten.add_(%n!, %mean)
aten.mul_(%w!, other = 0.5)
return %top
"""


def graph() -> Graph:
    return model(TEXT)


def test_it_goes_on_from_the_step_before() -> None:
    text = graph()
    run = GraphProgram(text, seed=3)
    for _ in range(2):
        run()
    with without_autograd():
        machine = Machine(text, {}, Drawer(text, 3))
        for _ in range(3):
            machine.run()
    for name in ("w", "x", "n"):
        assert torch.equal(run.values[name], machine.values[name])


def test_its_calls_are_the_leaves() -> None:
    calls = calls_of(graph())
    assert [op.name for op in calls.ops][:3] == ["aten.t", "aten.mm", "aten.split"]
    assert not any(op.body for op in calls.ops)


ROWS = """input %x : f32[4, 6] in $x

%t = aten.t(%x) : f32[6, 4; 1, 6] in $x
%c = aten.clone(%t) : f32[6, 4] in $c
%v = aten.view(%c, size = [24]) : f32[24] in $c
return %v
"""


def test_a_copy_lies_in_rows_where_the_model_says_so() -> None:
    run = GraphProgram(model(ROWS), seed=3)
    run()  # kept in the order of %x, it could not be viewed as one axis
