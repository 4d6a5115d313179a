"""Steps of models without spread tables whose batch ranks share, proven by running all ranks."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor, nn
from torch.nn import functional

from irgraph.execute import compare_ranks
from irgraph.ir.edit import Edit
from irgraph.ir.graph import Graph
from irgraph.ir.ranks import is_collective
from irgraph.plans.plan import Plan
from irgraph.verbs.refusal import RefusedError
from irgraph.verbs.sharding.shard import shard
from tests.execute.test_parallel_layers import (
    PAIRS,
    Perceptron,
    captured,
    exchanged,
    language,
    on_mesh,
    proven,
)

CLASSES, WIDTH = 5, 12

Loss = Callable[[Tensor, Tensor], Tensor]


class Classifier:
    """A step over classes: a table, what mixes features, and a loss."""

    def __init__(self, batch: int, mixing: nn.Module, loss: Loss, **options: bool) -> None:
        self.table = nn.Embedding(20, WIDTH, **options)
        self.model = nn.Sequential(mixing, nn.Linear(WIDTH, CLASSES)).to("meta")
        self.table.to("meta")
        parameters = [*self.table.parameters(), *self.model.parameters()]
        self.optimizer = torch.optim.SGD(parameters, lr=0.1)
        self.ids = torch.zeros(batch, 3, dtype=torch.int64)
        self.classes = torch.zeros(batch, dtype=torch.int64)
        self.loss = loss

    def __call__(self) -> Tensor:
        self.optimizer.zero_grad()
        scores = self.model(self.table(self.ids.to("meta")).sum(1))
        loss = self.loss(scores, self.classes.to("meta"))
        loss.backward()
        self.optimizer.step()
        return loss.detach()


class Mixed(nn.Module):
    """Features by attention among them, softmax and a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mask = nn.LayerNorm(WIDTH), nn.Parameter(torch.zeros(3, 3))

    def forward(self, x: Tensor) -> Tensor:
        """Return [B, width] of [B, width]."""
        given = x.view(-1, 1, 3, WIDTH // 3)
        mixed = functional.scaled_dot_product_attention(given, given, given, attn_mask=self.mask)
        return self.norm(mixed.reshape(x.shape)).softmax(1) * x


def classifier(mixing: nn.Module, loss: Loss = functional.cross_entropy, **options: bool) -> Graph:
    class Made(Classifier):
        def __init__(self, batch: int) -> None:
            super().__init__(batch, mixing, loss, **options)

    return captured(Made)


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_a_language_model_is_shared(ranks: int) -> None:
    done = proven(language(), Plan(ranks), draws=3)
    held = sum(d.tensor.nbytes for d in done.graph.tensors if d.role == "param")
    assert exchanged(done.graph) == {
        ("all_reduce", 4): 1,
        ("all_reduce_coalesced", held): 1,
    }


def test_its_optimizer_is_split() -> None:
    done = proven(language(), Plan(2, optimizer="split"))
    assert ("all_gather_into_tensor", 31648) in exchanged(done.graph)


class Counted(torch.optim.SGD):
    """Lets parameters decay by how many rows they have, which a list of numbers says."""

    @torch.no_grad()
    def step(self, closure: object = None) -> None:
        """Update the parameters."""
        for p in self.param_groups[0]["params"]:
            p.sub_(p.grad, alpha=0.1)
            (scaled,) = torch._foreach_mul([p], [float(len(p))])
            p.sub_(scaled, alpha=1e-3)


class Counting(Perceptron):
    """A step with such an optimizer."""

    def __init__(self, batch: int) -> None:
        super().__init__(batch)
        self.optimizer = Counted(self.model.parameters())


def test_numbers_that_look_like_the_shape_of_a_parameter_stay() -> None:
    proven(captured(Counting), Plan(2, optimizer="split"))


@pytest.mark.parametrize(("data", "tensor"), [(2, 2), (2, 4), (4, 2)])
def test_it_is_shared_on_a_mesh(data: int, tensor: int) -> None:
    """Four sums of activations, as Megatron-LM has them, and one of gradients."""
    done = proven(language(), on_mesh(data, tensor, PAIRS), draws=3)
    held = sum(d.tensor.nbytes for d in done.graph.tensors if d.role == "param")
    activations = language().by_name["embedding1"].nbytes // data
    assert exchanged(done.graph) == {
        ("all_reduce", activations): 4,
        ("all_reduce_coalesced", held): 1,
        ("all_reduce", 4): 1,
    }


def hooked(x: Tensor, value: float) -> Tensor:
    """Return what was given; its gradient is ``value`` where it is negative."""
    x.register_hook(lambda gradient: gradient.masked_fill(x.detach() < 0, value))
    return x


@pytest.mark.parametrize(
    "loss",
    [
        functional.cross_entropy,
        lambda x, y: functional.cross_entropy(x, y, reduction="sum"),
        lambda x, y: functional.cross_entropy(x, y, reduction="none").mean(),
        lambda x, y: functional.cross_entropy(x.masked_fill(x < 0, 0.0), y),
        lambda x, y: functional.cross_entropy(x.masked_fill(x < 0, 2.0), y),
        lambda x, y: x.masked_fill(x < 0, 0.0).square().mean(),
        lambda x, y: hooked(x, 0.0).square().mean(),
        lambda x, y: functional.cross_entropy(x, y, ignore_index=0),
        lambda x, y: functional.cross_entropy(x, y, weight=torch.arange(1.0, 6.0, device="meta")),
        lambda x, y: functional.cross_entropy(x, y, label_smoothing=0.1),
    ],
)
def test_losses_over_classes(loss: Loss) -> None:
    proven(classifier(nn.Identity(), loss), Plan(2), draws=3)


def by_place(graph: Graph) -> Graph:
    """Return a model whose losses over classes take all of their arguments by place."""
    edit = Edit(graph)
    for op in (op for op in graph.leaves() if op.base.startswith("nll_loss")):
        given = (*op.operands, *op.attributes.values())
        edit.insert(replace(op, operands=given, attributes={}), before=op)
        edit.remove(op)
    return edit.commit()


def squares(x: Tensor, y: Tensor) -> Tensor:
    """Return the mean of squared losses of samples."""
    return functional.cross_entropy(x, y, reduction="none").square().mean()


@pytest.mark.parametrize(
    "loss",
    [
        squares,
        functional.cross_entropy,
        lambda x, y: functional.cross_entropy(x, y, reduction="sum"),
    ],
)
def test_losses_take_arguments_by_place_too(loss: Loss) -> None:
    proven(by_place(classifier(nn.Identity(), loss)), Plan(2), draws=3)


class Picked(nn.Module):
    """Features at places that a tensor names, the same of every sample."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("places", torch.zeros(WIDTH, dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        """Return [B, width] of [B, width]."""
        return x[:, self.places]


def test_features_are_picked_at_places_that_all_ranks_know() -> None:
    proven(classifier(Picked()), Plan(2))


def test_gradients_of_a_layer_that_is_used_twice_are_added_up() -> None:
    layer = nn.Linear(WIDTH, WIDTH)
    done = proven(classifier(nn.Sequential(layer, nn.ReLU(), layer)), Plan(2))
    (whole,) = (d.tensor for d in done.graph.tensors if d.label == "0.0.weight")
    reduced = [t for op in done.graph.leaves() if is_collective(op) for t in op.inputs]
    assert [t.shape for t in reduced].count(whole.shape) == 1


def test_what_mixes_features_of_a_sample() -> None:
    proven(classifier(Mixed()), Plan(4))


def test_a_gradient_of_a_norm_that_is_not_summed_shows() -> None:
    models = [shard(classifier(Mixed()), Plan(2), rank).graph for rank in range(2)]
    cut = []
    for model in models:
        edit = Edit(model)
        for op in (op for op in model.leaves() if op.base.startswith("all_reduce")):
            edit.remove(op)
        cut.append(edit.commit())
    result = compare_ranks(classifier(Mixed()), cut, draws=1)
    wrong = {one.label for one in result.compared if not one.same}
    assert {"0.norm.weight", "0.norm.bias", "0.mask"} <= wrong


class Across(nn.Module):
    """Softmax over samples."""

    def forward(self, x: Tensor) -> Tensor:
        """Return [B, width] of [B, width]."""
        return x.softmax(0)


@pytest.mark.parametrize(
    ("mixing", "options", "loss"),
    [
        (Across(), {}, functional.cross_entropy),
        (nn.BatchNorm1d(WIDTH), {}, functional.cross_entropy),
        (nn.Identity(), {"scale_grad_by_freq": True}, functional.cross_entropy),
    ],
)
def test_samples_are_gathered_for_what_mixes_them(
    mixing: nn.Module, options: dict[str, bool], loss: Loss
) -> None:
    done = proven(classifier(mixing, loss, **options), Plan(2))
    moves = ("all_gather_into_tensor", "all_to_all_single")
    assert any(name in moves for name, _ in exchanged(done.graph))


@pytest.mark.parametrize(
    "loss",
    [
        lambda x, y: functional.cross_entropy(x, y) + x.square().mean(),
        lambda x, y: hooked(x, 2.0).square().mean(),
    ],
)
def test_gradients_of_means_have_the_size_of_the_whole_step(loss: Loss) -> None:
    """A rank divides by its own samples only, so that gradients are scaled before a number."""
    proven(classifier(nn.Identity(), loss), Plan(2), draws=3)


@pytest.mark.parametrize("ranks", [2, 4])
def test_parameters_are_gathered_in_each_phase_and_gradients_scattered(ranks: int) -> None:
    """As in FSDP: gathered where a phase uses them; biases of products only in the forward pass."""
    done = proven(language(), Plan(ranks, parameters="split"))
    whole = [d.tensor for d in language().tensors if d.role in ("param", "state")]
    local = {d.tensor.name: d.tensor.numel for d in done.graph.tensors}
    assert all(local[t.name] * ranks == t.numel for t in whole if t.rank)
    parameters = sum(d.role == "param" for d in language().tensors)
    products = [op.base for op in language().leaves() if op.phase == "forward"].count("addmm")
    calls = [op for op in done.graph.leaves() if is_collective(op)]
    gathered = [op.phase for op in calls if op.base == "all_gather_into_tensor"]
    scattered = [op for op in calls if op.base == "reduce_scatter_tensor"]
    assert gathered.count("forward") == len(scattered) == parameters
    assert gathered.count("backward") == parameters - products - 1


def test_parameters_and_the_optimizer_are_split_by_one_of_both() -> None:
    with pytest.raises(RefusedError, match="state is split with the parameters"):
        shard(language(), Plan(2, parameters="split", optimizer="split"), 0)
