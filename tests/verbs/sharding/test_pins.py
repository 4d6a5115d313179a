"""Pins of activations along the sequence, proven by running all ranks."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from irgraph.diagnostics import IrgraphError
from irgraph.execute import compare_ranks
from irgraph.ir.graph import Graph
from irgraph.ir.ranks import is_collective
from irgraph.plans.plan import Mesh, Plan
from irgraph.text import parse
from irgraph.verbs.refusal import RefusedError
from irgraph.verbs.sharding.shard import shard
from tests.execute.test_parallel_layers import HEADS, PAIRS, WIDTH, WORDS, Layer, captured
from tests.verbs.sharding.test_captured_models import step_of

LENGTH = 8


class Everywhere(Layer):
    """A layer whose words see all words."""

    def forward(self, x: Tensor) -> Tensor:
        """Return [samples, words, width]."""
        given = self.norm1(x)
        query, key, value = (
            layer(given).view(*x.shape[:2], HEADS, -1).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value)
        x = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
        return x + self.mlp(self.norm2(x))


@cache
def language(kind: type[Layer] = Layer) -> Graph:
    class Step:
        def __init__(self, batch: int) -> None:
            self.model = nn.Sequential(nn.Embedding(WORDS, WIDTH), kind(), nn.Linear(WIDTH, WORDS))
            self.model.to("meta")
            self.optimizer = torch.optim.AdamW(self.model.parameters(), fused=True)
            self.text = torch.zeros(batch, LENGTH + 1, dtype=torch.int64)

        def __call__(self) -> Tensor:
            text = self.text.to("meta")
            self.optimizer.zero_grad()
            scores = self.model(text[:, :-1]).flatten(0, 1)
            loss = functional.cross_entropy(scores, text[:, 1:].flatten())
            loss.backward()
            self.optimizer.step()
            return loss.detach()

    return captured(Step)


def proven(graph: Graph, plan: Plan) -> Graph:
    """Return the model of the last rank, after all ranks were compared with the step."""
    models = [shard(graph, plan, rank).graph for rank in range(plan.ranks)]
    assert compare_ranks(graph, models, draws=1).same
    return models[-1]


def moves(graph: Graph, phase: str) -> list[tuple[str, int]]:
    """Return the collectives of a phase, except sums of parameters, and the bytes they send."""
    calls = [op for op in graph.leaves() if is_collective(op) and op.phase == phase]
    return [
        (op.base, op.inputs[0].nbytes) for op in calls if len(op.inputs) == 1 and op.inputs[0].shape
    ]


@pytest.mark.parametrize("ranks", [2, 4])
def test_activations_between_layers_are_split_along_the_sequence(ranks: int) -> None:
    """Megatron-LM's sequence parallelism (arXiv:2205.05198): a gathering and a scattering each."""
    graph = language()
    model = proven(graph, Plan(ranks, layers=PAIRS, pins={"0": "split 1"}))
    whole = graph.by_name["embedding1"].nbytes
    assert (
        moves(model, "forward")
        == [("all_gather_into_tensor", whole // ranks), ("reduce_scatter_tensor", whole)] * 2
    )
    backward = moves(model, "backward")[:4]
    assert backward == moves(model, "forward")
    sizes = {name: model.by_name[name].numel for name in ("layer_norm1", "layer_norm2", "add2")}
    assert all(size * ranks == graph.by_name[name].numel for name, size in sizes.items())


@pytest.mark.parametrize("ranks", [2, 4])
def test_queries_are_split_and_keys_gathered(ranks: int) -> None:
    """Context parallelism: gradients of keys and values are scattered."""
    graph = language(Everywhere)
    pins = {"0": "split 1", "1.key": "same", "1.value": "same"}
    model = proven(graph, Plan(ranks, pins=pins))
    part = graph.by_name["embedding1"].nbytes // ranks
    assert moves(model, "forward") == [("all_gather_into_tensor", part)] * 2
    assert "all_gather_into_tensor" not in dict(moves(model, "backward"))
    assert "reduce_scatter_tensor" in dict(moves(model, "backward"))


def test_causal_attention_exchanges_the_sequence_for_heads() -> None:
    """A causal mask depends on positions, so blocks of heads attend (arXiv:2309.14509)."""
    model = proven(language(), Plan(2, pins={"0": "split 1"}))
    assert [name for name, _ in moves(model, "forward")] == ["all_to_all_single"] * 4


class Grouped(nn.Module):
    """A norm over groups of channels, between convolutions."""

    groups, order = 4, torch.contiguous_format

    def __init__(self) -> None:
        super().__init__()
        self.body, self.norm = nn.Conv2d(3, 8, 3), nn.GroupNorm(self.groups, 8)
        self.next, self.scores = nn.Conv2d(8, 6, 3), nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores."""
        images = self.body(x.contiguous(memory_format=self.order))
        return self.scores(self.next(self.norm(images).relu()).mean((2, 3)))


class Last(Grouped):
    """The same with channels in the last place of memory."""

    order = torch.channels_last


class Single(Grouped):
    """The same with one group, which ranks cannot share."""

    groups = 1


@pytest.mark.parametrize(
    ("kind", "groups"), [(Grouped, 2), (Last, 2), (Single, 1)], ids=["rows", "last", "single"]
)
def test_a_group_norm_runs_on_groups_of_channels(kind: type[nn.Module], groups: int) -> None:
    model = proven(step_of(kind), Plan(2, pins={"body": "split 1"}))
    norms = [op for op in model.leaves() if "group_norm" in op.name]
    assert [(op.attributes["C"], op.attributes["group"]) for op in norms] == [
        (8 if groups == 1 else 4, groups)
    ] * 2
    moved = [op.base for op in model.leaves() if is_collective(op) and op.phase == "forward"]
    assert moved == ["all_gather_into_tensor" if groups == 1 else "all_reduce_"]


def test_pins_on_a_mesh() -> None:
    plan = Plan(4, layers=PAIRS, pins={"0": "split 1"}, mesh=Mesh(2, 2))
    model = proven(language(), plan)
    part = language().by_name["embedding1"].nbytes // 4
    assert moves(model, "forward")[0] == ("all_gather_into_tensor", part)


def test_features_are_pinned() -> None:
    graph = language(Everywhere)
    model = proven(graph, Plan(2, pins={"%add1": "split 2"}))
    cuts = [op for op in model.leaves() if op.base == "slice" and op.inputs[0].name == "add1"]
    assert [cut.outputs[0].shape[2] * 2 for cut in cuts] == [WIDTH]


@pytest.mark.parametrize(
    ("pins", "error"),
    [
        ({"0": "split 0"}, r"\[B, 8, 32\] has no axis 0 that 2 ranks"),
        ({"0": "split 3"}, "has no axis 3"),
        ({"%t_0_weight": "split 0"}, "no activation"),
    ],
)
def test_pins_that_ranks_cannot_share_are_refused(pins: dict[str, str], error: str) -> None:
    with pytest.raises(RefusedError, match=error):
        shard(language(), Plan(2, pins=pins), 0)


@pytest.mark.parametrize(
    ("pins", "error"),
    [
        ({"0": "halved"}, "'0' cannot be 'halved'"),
        ({"9": "same"}, "has no module with results '9'"),
        ({"%none": "same"}, "has no tensor '%none'"),
        ({"0": "same", "%embedding1": "split 1"}, "is same, and split\\(1\\) by"),
    ],
)
def test_pins_that_do_not_fit_the_model_are_errors(pins: dict[str, str], error: str) -> None:
    with pytest.raises(IrgraphError, match=error):
        shard(language(), Plan(2, pins=pins), 0)


def test_a_pin_follows_a_write_of_its_memory_before_its_first_use() -> None:
    text = """model "written" { format = 2 }

device @gpu0 "v100"
input %x : f32[4, 8] in $x

%h = aten.neg(%x) : f32[4, 8] in $h
%v = aten.view(%h, size = [4, 2, 4]) : f32[4, 2, 4] in $h
aten.relu_(%h!)
%y = aten.neg(%v) : f32[4, 2, 4] in $y
return %y
"""
    proven(parse(text), Plan(2, pins={"%x": "split 1", "%v": "same"}))


def test_a_comparison_tells_the_samples_of_its_draws_once() -> None:
    graph = step_of(Grouped)
    models = [shard(graph, Plan(2, pins={"body": "split 1"}), rank).graph for rank in range(2)]
    found = compare_ranks(graph, models, draws=2)
    assert found.notes == ("all samples on each of 2 ranks", "2 draws from seed 0")
