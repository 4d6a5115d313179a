"""What must hold for forward ops to change with their backward, on models written for it."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import nn

from irgraph.execute import compare
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor
from irgraph.language import load_script, run
from irgraph.ops.verify import verify
from irgraph.text import IrgraphError, parse
from irgraph.verbs import RefusedError
from irgraph.verbs.autograd.find_backward import MAX_TRIES, backward_of
from irgraph.verbs.autograd.replacements import ReplacementBatch
from tests.verbs.test_both_passes import graph_of, step_of

HEAD = 'model "m" { format = 2 }\n\ndevice @gpu0 "v100"\n'
T = "f32[4, 8]"


class Gated(nn.Module):
    """Products, whose backward are products as well."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Any) -> Any:
        """Return [B, 3] for [B, 8]."""
        x = self.one(x)
        gated = x * torch.sigmoid(x)
        return self.two(gated * torch.tanh(gated))


TWICE = """%y = aten.mul(%a, %b) with {
  %n = aten.neg(%b)  %m = aten.neg(%n)  %y = aten.mul(%a, %m)
} and backward"""


@pytest.mark.parametrize(("first", "count"), [("replace many", 2), ("replace", 1)])
def test_a_pattern_that_fits_the_backward_as_well(first: str, count: int) -> None:
    before = graph_of(step_of(torch.relu, model=Gated()))
    done = run(load_script(f"{first} {TWICE}"), before)
    assert done.report.entries[0].groups == count
    assert not done.report.entries[0].refused
    assert verify(done.graph) == []
    assert compare(before, done.graph).same


def test_a_pattern_that_fits_the_backward_alone_says_so() -> None:
    before = graph_of(step_of(torch.relu, model=Gated()))
    script = f"replace many {TWICE}".replace(" with", " where op.phase == backward with")
    done = run(load_script(script), before)
    assert done.graph is before
    assert len(done.report.entries[0].refused) == 6


LOST = f"""{HEAD}input %x : {T} in $x
input %g : {T} in $g

%h = aten.abs(%x) : {T} in $h
%y = aten.sigmoid(%h) : {T} in $y
%z = aten.exp(%y) : {T} in $z
autograd.SigmoidBackward0(%g) phase backward {{
  %d = aten.sigmoid_backward(%g, %y) : {T} in $d
}}
%r = aten.neg(%d) : {T} in $r phase backward
return %r, %z
"""


def test_a_removal_whose_backward_reads_other_values_is_refused() -> None:
    script = "remove many %y = aten.sigmoid(%x) using %x for %y and backward"
    assert len(run(load_script(script), parse(LOST)).graph.ops) == 3
    line = f"%z = aten.exp(%y) : {T} in $z\n"
    for write in ("aten.mul_(%y!, 2)\n", f"%w = aten.abs(%z) : {T} in $y\n"):
        graph = parse(LOST.replace(line, line + write))
        (told,) = run(load_script(script), graph).report.entries[0].refused
        assert "%y is written before the backward pass reads it" in told.message


LINEAR = f"""{HEAD}input %x : {T} in $x
param %w : f32[8, 8] in $w
param %c : f32[8] in $c
input %g : {T} in $g

%y = aten.linear(%x, %w, %c) : {T} in $y {{
  %t = aten.t(%w) : f32[8, 8; 1, 8] in $w
  %y = aten.addmm(%c, %x, %t, beta = 2) : {T} in $y
}}
%z = aten.exp(%y) : {T} in $z
autograd.AddmmBackward0(%g) phase backward {{
  %k = aten.t(%x) : f32[8, 4; 1, 8] in $x
  %d = aten.mm(%k, %g) : f32[8, 8] in $d
}}
return %z, %d
"""


def test_a_call_whose_parts_do_something_else_is_not_taken_for_it() -> None:
    graph = parse(LINEAR)
    with pytest.raises(RefusedError, match=r"runs aten.addmm\(%c, %x, %t\) for it"):
        backward_of(graph, graph.ops[:1])


def test_a_gradient_that_nobody_asked_for_is_refused_as_such() -> None:
    graph = parse(LOST.replace("input %g", f"param %p : {T} in $p\ninput %g"))
    sigmoid = graph.ops[1]
    plus = Op("aten.add", (sigmoid.inputs[0], graph.by_name["p"]), sigmoid.results)
    with pytest.raises(RefusedError, match="%p would get a gradient that it did not have"):
        ReplacementBatch(graph).replace([sigmoid], [plus], caller="test")


def test_calls_that_torch_records_otherwise_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import irgraph.verbs.autograd.splice as module

    derive = module.derive

    def fewer(*asked: Any, **how: Any) -> Any:
        made = derive(*asked, **how)
        return replace(made, graph=replace(made.graph, ops=made.graph.ops[1:]))

    monkeypatch.setattr(module, "derive", fewer)
    script = "replace %y = aten.sigmoid(%x) with { %n = aten.neg(%x)  %y = aten.exp(%n) }"
    with pytest.raises(IrgraphError, match=r"this version of torch runs aten\.exp for the new ops"):
        run(load_script(f"{script} and backward"), parse(LOST))


def products(count: int) -> Graph:
    """Return products of so many inputs, of whose backward the graph has nothing."""
    tensors = "".join(f"input %x{k} : f32[8] in $x{k}\n" for k in range(count))
    ops = "".join(
        f"%y{k} = aten.mul(%{'y' if k > 1 else 'x'}{k - 1}, %x{k}) : f32[8] in $y{k}\n"
        for k in range(1, count)
    )
    last = f"%z = aten.exp(%y{count - 1}) : f32[8] in $z\n"
    return parse(
        f"{HEAD}{tensors}input %g : f32[8] in $g\n\n{ops}{last}"
        "%d = aten.neg(%g) : f32[8] in $d phase backward\nreturn %d, %z\n"
    )


@pytest.mark.long
def test_so_many_inputs_that_not_all_ways_can_be_tried_are_told() -> None:
    start = time.process_time()
    graph = products(40)
    with pytest.raises(RefusedError, match=f"{MAX_TRIES} were tried"):
        backward_of(graph, graph.ops[:39])
    assert time.process_time() - start < 30
    few = products(2)
    with pytest.raises(RefusedError) as caught:
        backward_of(few, few.ops[:1])
    assert "were tried" not in caught.value.reason


def test_more_results_than_torch_makes_are_refused() -> None:
    graph = parse(LOST)
    made = Tensor("more", "f32", (4, 8), "more")
    sigmoid = replace(graph.ops[1], results=(*graph.ops[1].results, made))
    broken = replace(graph, ops=(graph.ops[0], sigmoid, *graph.ops[2:]))
    with pytest.raises(RefusedError, match="torch makes 1 of its 2 results"):
        backward_of(broken, [sigmoid])
