"""Forward ops that change with their backward: against programs captured with the change in them.

The oracle of what is bound is torch's own sequence numbers, which the verbs do not see.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import nn

from irgraph.api import rewrite
from irgraph.capture.live import capture
from irgraph.execute import compare
from irgraph.ir.graph import DOUBLE, Graph
from irgraph.language import load_script, run
from irgraph.ops.verify import verify
from irgraph.text import IrgraphError, parse, print_graph
from irgraph.verbs import RefusedError
from irgraph.verbs.autograd.find_backward import backward_of
from tests.execute.models import attention_step, conv_step, transformer_step

GELU = "replace many %y = aten.relu(%x) with %y = aten.gelu(%x) and backward"


class Small(nn.Module):
    """Two layers with an activation that sees its input transposed, and used twice."""

    def __init__(self, activation: Callable[[Any], Any]) -> None:
        super().__init__()
        self.one, self.two, self.activation = nn.Linear(8, 8), nn.Linear(8, 3), activation

    def forward(self, x: Any) -> Any:
        """Return [B, 3] for [B, 8]."""
        hidden = self.activation(self.one(x).t()).t()
        return self.two(hidden + self.activation(hidden))


def step_of(
    activation: Callable[[Any], Any],
    loss: Callable[[Any, Any], Any] | None = None,
    model: nn.Module | None = None,
) -> Callable[[], Any]:
    """Return a training step of the small model, or another one, with plain SGD."""
    model = (model or Small(activation)).to("meta")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.rand(6, 8, device="meta")

    def step() -> Any:
        optimizer.zero_grad()
        made = (loss or plain)(model, x)
        optimizer.step()
        return made

    step.model = model  # type: ignore[attr-defined]
    return step


def plain(model: Any, x: Any) -> Any:
    loss = model(x).square().mean()
    loss.backward()
    return loss


def accumulated(model: Any, x: Any) -> Any:
    """Make two backward passes of two forward ones, whose gradients add up."""
    plain(model, x)
    return plain(model, x * 2)


def clipped(model: Any, x: Any) -> Any:
    loss = plain(model, x)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    return loss


def frozen(model: Any, x: Any) -> Any:
    model.one.requires_grad_(False)
    return plain(model, x.clone().requires_grad_())


def graph_of(step: Callable[[], Any]) -> Graph:
    return capture(step, device="meta").graph


@pytest.mark.long
@pytest.mark.parametrize("loss", [plain, accumulated, clipped, frozen])
def test_a_gelu_in_place_of_a_relu_is_the_program_with_a_gelu(loss: Any) -> None:
    before = graph_of(step_of(torch.relu, loss))
    meant = graph_of(step_of(nn.functional.gelu, loss))
    done = run(load_script(GELU), before)
    assert not any(entry.refused for entry in done.report.entries)
    assert verify(done.graph) == []
    result = compare(done.graph, meant)
    assert (result.same, result.exact) == (True, True), str(result)
    assert not compare(before, done.graph).same


@pytest.mark.long
def test_sizes_still_follow_the_batch() -> None:
    before = capture(
        Small(torch.relu), (torch.rand(4, 8),), loss=lambda y: y.sum(), optimizer=torch.optim.Adam
    ).graph
    after = rewrite(before, "relu-to-gelu").graph
    assert {str(t.shape[0]) for t in after.by_name.values() if t.rank == 2} >= {"B"}
    larger = run(load_script("resize B = 6"), after).graph
    assert compare(
        larger, rewrite(run(load_script("resize B = 6"), before).graph, "relu-to-gelu").graph
    ).same


@pytest.mark.long
@pytest.mark.parametrize("make", [conv_step, transformer_step, attention_step])
def test_what_is_bound_is_what_torch_links(make: Callable[[int, str], Any]) -> None:
    captured = capture(make(4, "meta"), device="meta")
    forward_of = dict(captured.links)
    bound = 0
    for op in (op for op in captured.graph.top_level() if op.phase == "forward" and op.outputs):
        try:
            found = backward_of(captured.graph, [op])
        except RefusedError:
            continue
        bound += 1
        mine = {inner.origin for inner in op.walk()}
        nodes = [node for node in found.ops if node.is_autograd]
        assert nodes
        assert {forward_of[node.origin] for node in nodes} <= mine, op.name
    assert bound >= 5


def twice(model: Any, x: Any) -> Any:
    loss = model(x).square().mean()
    loss.backward(retain_graph=True)
    loss.backward()
    return loss


def penalty(model: Any, x: Any) -> Any:
    """Differentiate a gradient."""
    given = x.clone().requires_grad_()
    loss = model(given).square().mean()
    (gradient,) = torch.autograd.grad(loss, given, create_graph=True)
    (loss + gradient.square().sum()).backward()
    return loss


@pytest.mark.parametrize(
    ("loss", "reason"),
    [(twice, "there are 2 of its backward's"), (penalty, "the step differentiates gradients")],
)
def test_a_backward_that_is_not_the_only_one_is_left_alone(loss: Any, reason: str) -> None:
    before = graph_of(step_of(torch.relu, loss))
    done = run(load_script(GELU), before)
    refused = [told for entry in done.report.entries for told in entry.refused]
    assert done.graph == before
    assert len(refused) == 2
    assert all(reason in told.message for told in refused)


def test_gradients_of_gradients_show_without_the_setting() -> None:
    before = graph_of(step_of(torch.relu, penalty))
    settings = {name: value for name, value in before.settings.items() if name != DOUBLE}
    done = run(load_script(GELU), replace(before, settings=settings))
    assert done.graph.ops == before.ops


MADE = """model "m" { format = 2 }

device @gpu0 "v100"
input %x : f32[4, 8] in $x
input %g : f32[4, 8] in $g

%h = aten.neg(%x) : f32[4, 8] in $h
%y = aten.relu(%h) : f32[4, 8] in $y
%z = aten.exp(%y) : f32[4, 8] in $z
autograd.ExpBackward0(%g) on backward phase backward {
  %d = aten.mul(%g, %z) : f32[4, 8] in $d
}
autograd.ReluBackward0(%d) on backward phase backward {
  %e = aten.threshold_backward(%d, %y, threshold = 0) : f32[4, 8] in $e
}
return %e
"""


def changed(old: str, new: str) -> Graph:
    assert old in MADE
    return parse(MADE.replace(old, new))


EXP = "%z = aten.exp(%y) : f32[4, 8] in $z\n"
MASK = "  %e = aten.threshold_backward(%d, %y, threshold = 0) : f32[4, 8] in $e\n"

WRONG = {
    "what the new backward reads is written": (
        (EXP, f"{EXP}aten.mul_(%h!, 2)\n"),
        "%h is written before",
    ),
    "what the old backward reads is written": (
        (EXP, f"{EXP}aten.mul_(%y!, 2)\n"),
        "%y is written before",
    ),
    "what the old backward takes is written first in the same node": (
        (MASK, f"  aten.mul_(%d!, 2)\n{MASK}"),
        "does more than its backward",
    ),
    "what is read twice is written in between": (
        (MASK, f"{MASK}  aten.add_(%e!, %d)\n  aten.mul_(%d!, 2)\n"),
        "",
    ),
    "other memory is laid over what the old backward reads": (
        (EXP, f"{EXP}%w = aten.abs(%z) : f32[4, 8] in $y\n"),
        "%y is written before",
    ),
    "an op that nobody knows is given what the old backward reads": (
        (EXP, f"{EXP}mine.touch(%y)\n"),
        "%y may be written before",
    ),
    "another threshold": (("threshold = 0", "threshold = 1"), "its backward is not there"),
    "another forward op's result": (("%d, %y, threshold", "%d, %z, threshold"), "not there"),
    "a result that the backward pass alone made is read": (
        (MASK, f"{MASK}  %f = aten.neg(%k) : f32[4, 8] in $f\n".replace("%k", "%d")),
        "",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_bindings(name: str) -> None:
    (old, new), reason = WRONG[name]
    graph = changed(old, new)
    if not reason:
        assert verify(run(load_script(GELU), graph).graph) == []
        return
    refused = run(load_script(GELU), graph).report.entries[0].refused
    assert reason in refused[0].message
    assert print_graph(run(load_script(GELU), graph).graph) == print_graph(graph)


def test_a_region_whose_inner_result_is_used_elsewhere_is_left_alone() -> None:
    script = (
        "replace { %a = aten.neg(%x)  %y = aten.relu(%a) } with { %y = aten.gelu(%x) } and backward"
    )
    graph = changed(
        EXP, "%q = aten.add(%h, %y) : f32[4, 8] in $q\n%z = aten.exp(%q) : f32[4, 8] in $z\n"
    )
    with pytest.raises(IrgraphError, match="its backward is not there"):
        run(load_script(script), graph)


NORM = """replace many %y = aten.relu(%x) with {
  %r = aten.relu(%x)
  %y = aten.layer_norm(%r, normalized_shape = [%x.shape[1]])
} and backward"""


def test_what_new_ops_keep_for_their_backward_follows_the_batch() -> None:
    before = capture(Small(torch.relu), (torch.rand(4, 8),), loss=lambda y: y.sum()).graph
    after = run(load_script(NORM), before).graph
    larger = run(load_script("resize B = 6"), after).graph
    assert verify(larger) == []
    means = [op.outputs[1] for op in larger.leaves() if op.name == "aten.native_layer_norm"]
    shapes = [[int(size) for size in mean.shape] for mean in means]
    assert shapes == [[8, 1], [6, 1]]  # the first sees its input transposed


def turned_step(batch: int, device: str) -> Any:
    """A layer whose gradient comes transposed, which its backward copies first."""
    layer, given = nn.Linear(8, 8).to(device), torch.rand(batch, 3, 8, device=device)
    return lambda: layer(given).transpose(0, 1).contiguous().relu().sum().backward()


def test_a_backward_that_copies_a_transposed_gradient_first_is_bound() -> None:
    captured = capture(turned_step(4, "meta"), device="meta")
    (layer,) = (op for op in captured.graph.top_level() if op.name == "aten.linear")
    found = backward_of(captured.graph, [layer])
    forward_of = dict(captured.links)
    nodes = [node for node in found.ops if node.is_autograd]
    assert nodes
    assert {forward_of[node.origin] for node in nodes} <= {inner.origin for inner in layer.walk()}


def test_without_a_backward_pass_the_forward_changes_alone() -> None:
    graph = graph_of(partial(Small(torch.relu).to("meta"), torch.rand(4, 8, device="meta")))
    after = run(load_script(GELU), graph).graph
    assert [op.name for op in after.walk()].count("aten.gelu") == 2


def test_a_norm_behind_an_activation_is_the_program_with_the_norm() -> None:
    def normed(x: Any) -> Any:
        return nn.functional.layer_norm(torch.relu(x), x.shape[-1:])

    before, meant = graph_of(step_of(torch.relu)), graph_of(step_of(normed))
    after = run(load_script(NORM), before).graph
    assert compare(after, meant).same


@pytest.mark.parametrize(
    ("layer", "op"),
    [
        (nn.Dropout(0.5), "aten.dropout"),
        (nn.LayerNorm(8, elementwise_affine=False), "aten.layer_norm"),
    ],
)
def test_a_layer_goes_with_its_backward(layer: nn.Module, op: str) -> None:
    before, meant = (
        graph_of(step_of(torch.relu, model=nn.Sequential(nn.Linear(8, 8), one, nn.Linear(8, 3))))
        for one in (layer, nn.Identity())
    )
    script = f"remove many %y = {op}(%x, ...) using %x for %y and backward"
    after = run(load_script(script), before).graph
    assert compare(after, meant).exact


@pytest.mark.parametrize("activation", [nn.ReLU(), nn.GELU(), nn.GELU(approximate="tanh")])
def test_a_dropout_behind_an_activation_is_the_program_with_the_dropout(activation: Any) -> None:
    before, meant = (
        graph_of(step_of(torch.relu, model=nn.Sequential(nn.Linear(8, 8), activation, last)))
        for last in (nn.Identity(), nn.Dropout(0.25))
    )
    after = rewrite(before, "add-dropout(p = 0.25)").graph
    (made,) = (op.outputs[0] for op in after.leaves() if op.name == "aten.native_dropout")
    named = print_graph(after).replace(f"%{made.name}", "%dropout1")  # draws go by names
    assert compare(parse(named), meant).exact


class Bypassed(nn.Module):
    """Hands on what it is given; its weights get gradients of zeros."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        for name, parameter in norm.named_parameters():
            self.register_parameter(name, parameter)

    def forward(self, x: Any) -> Any:
        """Return what is given."""
        return x + sum(0 * parameter.sum() for parameter in self.parameters())


@pytest.mark.parametrize(
    "norm", [nn.LayerNorm(8), nn.LayerNorm(8, bias=False), nn.LayerNorm(8, 1e-5, False)]
)
def test_a_norm_goes_and_its_weights_get_zeros(norm: nn.Module) -> None:
    _bypassed(norm)


def test_a_norm_by_root_mean_squares_goes_too() -> None:
    _bypassed(nn.RMSNorm(8))


def _bypassed(norm: nn.Module) -> None:
    before, meant = (
        graph_of(step_of(torch.relu, model=nn.Sequential(nn.Linear(8, 8), one, nn.Linear(8, 3))))
        for one in (norm, Bypassed(norm))
    )
    after = rewrite(before, "drop-norm").graph
    assert verify(after) == []
    assert not any("norm" in op.name for op in after.walk())
    compared = [one for one in compare(after, meant).compared if one.kind != "gradient"]
    assert len(compared) >= 5
    assert all(one.same for one in compared)  # gradients have other names in the other program


@pytest.mark.parametrize("activation", [nn.ReLU(), nn.GELU(), nn.GELU(approximate="tanh")])
def test_the_pass_that_adds_norms_makes_the_program_with_them(activation: nn.Module) -> None:
    last = nn.LayerNorm(8, elementwise_affine=False)
    before, meant = (
        graph_of(step_of(torch.relu, model=nn.Sequential(nn.Linear(8, 8), activation, one)))
        for one in (nn.Identity(), last)
    )
    assert compare(rewrite(before, "add-norm").graph, meant).same


def test_what_is_not_a_parameter_keeps_its_gradient() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: Any) -> Any:
            return nn.functional.layer_norm(self.one(x), [8], self.two(x[0]))

    graph = graph_of(step_of(torch.relu, model=nn.Sequential(Scaled(), nn.Linear(8, 3))))
    with pytest.raises(IrgraphError, match="has a gradient of its own"):
        run(load_script("remove %y = aten.layer_norm(%x, ...) using %x for %y and backward"), graph)
