"""Column- and row-parallel layers, proven by running all ranks in one process."""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor, nn
from torch.nn import functional

from irgraph.capture.common.result import Capture
from irgraph.capture.common.symbolic import other_sizes, with_symbolic_batch
from irgraph.capture.live import capture, capture_file
from irgraph.diagnostics import IrgraphError
from irgraph.execute import compare_ranks
from irgraph.ir.edit import Edit
from irgraph.ir.graph import Graph
from irgraph.ir.ranks import group_of, groups_at, groups_of, is_collective
from irgraph.ops.verify import verify
from irgraph.plans.plan import Mesh, Plan
from irgraph.plans.reading import read_plan
from irgraph.predict.ranks import predict_ranks
from irgraph.text import parse, print_graph
from irgraph.verbs.refusal import RefusedError
from irgraph.verbs.sharding.shard import ShardResult, shard

COLUMN, ROW = "column-parallel", "row-parallel"
WIDTH, WORDS, HEADS, LENGTH = 32, 48, 8, 6
PAIRS = {"*.query": COLUMN, "*.key": COLUMN, "*.value": COLUMN, "*.out": ROW, "*.mlp.0": COLUMN,
         "*.mlp.2": ROW}  # fmt: skip
"""Megatron-LM's transformer layer: heads, and columns of the perceptron."""


class Layer(nn.Module):
    """Causal attention and a two-layer perceptron, each after a normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor) -> Tensor:
        given = self.norm1(x)
        query, key, value = (
            layer(given).view(*x.shape[:2], -1, WIDTH // HEADS).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(*x.shape[:2], -1))
        return x + self.mlp(self.norm2(x))


class Language:
    """A step of a language model of one layer."""

    def __init__(self, batch: int) -> None:
        self.model = nn.Sequential(nn.Embedding(WORDS, WIDTH), Layer(), nn.Linear(WIDTH, WORDS))
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


class Perceptron:
    """A step of four layers, some without bias."""

    def __init__(
        self,
        batch: int,
        optimizer: str = "sgd",
        dropout: float = 0.0,
        *,
        clip: bool = False,
        device: str = "meta",
    ) -> None:
        drop = [nn.Dropout(dropout)] if dropout else []
        self.model = nn.Sequential(
            nn.Linear(16, 64),
            nn.ReLU(),
            nn.Linear(64, 24, bias=False),
            nn.Tanh(),
            *drop,
            nn.Linear(24, 24, bias=False),
            nn.Linear(24, 1),
        ).to(device)
        made = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[optimizer]
        self.optimizer = made(self.model.parameters(), lr=0.1, foreach=optimizer == "adam")
        self.clip, self.device = clip, device
        self.given, self.wanted = torch.zeros(batch, 16), torch.zeros(batch, 1)

    def __call__(self) -> Tensor:
        self.optimizer.zero_grad()
        loss = functional.mse_loss(
            self.model(self.given.to(self.device)), self.wanted.to(self.device)
        )
        loss.backward()
        if self.clip:
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return loss.detach()


def captured(kind: type, **options: object) -> Graph:
    def at(batch: int) -> Capture:
        return capture(kind(batch, **options), device="meta", dims={"B": batch})

    return with_symbolic_batch(at(8), 8, at, other_sizes(8)).graph


@cache
def language() -> Graph:
    return captured(Language)


@cache
def perceptron(optimizer: str = "sgd") -> Graph:
    return captured(Perceptron, optimizer=optimizer)


def plan(ranks: int, **layers: str) -> Plan:
    """Return a plan of layers ``_0`` for ``0``."""
    return read_plan(str(Plan(ranks, layers={k.strip("_"): v for k, v in layers.items()})))


def proven(graph: Graph, given: Plan, draws: int = 1) -> ShardResult:
    """Return rank 0's step; all ranks are sound, and leave what the whole step leaves."""
    done = [shard(graph, given, rank) for rank in range(given.ranks)]
    for one in done:
        assert verify(one.graph) == []
        assert parse(print_graph(one.graph)) == one.graph
    result = compare_ranks(graph, [one.graph for one in done], draws=draws)
    assert result.same, str(result)
    assert {one.kind for one in result.compared} >= {"param", "gradient", "returned"}
    return done[0]


def exchanged(graph: Graph) -> Counter[tuple[str, int]]:
    """Return the collectives of a model by kind and bytes."""
    return Counter(
        (op.base.rstrip("_"), sum(t.nbytes for t in op.inputs))
        for op in graph.leaves()
        if is_collective(op)
    )


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_column_and_a_row_parallel_layer_need_one_sum(optimizer: str, ranks: int) -> None:
    done = proven(perceptron(optimizer), plan(ranks, _0=COLUMN, _2=ROW))
    assert exchanged(done.graph) == {("all_reduce", 8 * 24 * 4): 1}  # data need no gradient


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_a_transformer_layer_needs_four_sums(ranks: int) -> None:
    """Megatron-LM, arXiv:1909.08053, section 3: two in the forward and two in the backward pass."""
    done = proven(language(), Plan(ranks, layers=PAIRS))
    assert exchanged(done.graph) == {("all_reduce", 8 * LENGTH * WIDTH * 4): 4}
    sizes = {d.label: d.tensor.shape for d in done.graph.tensors if d.role == "param"}
    assert sizes["1.query.weight"] == sizes["1.key.weight"] == (WIDTH // ranks, WIDTH)
    assert sizes["1.out.weight"] == (WIDTH, WIDTH // ranks)
    assert (sizes["1.mlp.0.bias"], sizes["1.mlp.2.bias"]) == ((4 * WIDTH // ranks,), (WIDTH,))
    whole, part = (
        sum(d.tensor.nbytes for d in graph.tensors if d.role == "state")
        for graph in (language(), done.graph)
    )
    assert part < whole * (0.3 + 0.7 / ranks)


def test_a_rank_may_hold_one_head_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "HEADS", 2)
    done = proven(captured(Language), Plan(2, layers=PAIRS))
    assert exchanged(done.graph) == {("all_reduce", 8 * LENGTH * WIDTH * 4): 4}


def by_hand(query: Tensor, key: Tensor, value: Tensor, **_: object) -> Tensor:
    """Attention as products and a softmax of their own."""
    return torch.softmax(query @ key.transpose(-2, -1), -1) @ value


def test_gradients_that_ranks_cut_are_whole_to_fused_optimizers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Torch's fused kernels read a gradient with gaps as if it had none."""
    monkeypatch.setattr(functional, "scaled_dot_product_attention", by_hand)
    done = proven(captured(Language), Plan(2, layers=PAIRS))
    (update,) = (op for op in done.graph.leaves() if op.base == "_fused_adamw_")
    assert all(tensor.contiguous for tensor in update.inputs)


class Turned(Perceptron):
    """Fused AdamW of split layers, and of a parameter that is kept column by column."""

    def __init__(self, batch: int) -> None:
        super().__init__(batch)
        self.model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 16)).to("meta")
        self.last = nn.Parameter(torch.empty(24, 16, device="meta").t())
        parameters = [*self.model.parameters(), self.last]
        self.optimizer = torch.optim.AdamW(parameters, fused=True)

    def __call__(self) -> Tensor:
        """Return the loss of a step."""
        self.optimizer.zero_grad()
        loss = (self.model(self.given.to("meta")) @ self.last).pow(2).mean()
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def test_gradients_keep_the_layout_of_their_parameters() -> None:
    proven(captured(Turned), Plan(2, layers={"0": COLUMN, "2": ROW}))


def test_losses_take_what_a_column_parallel_layer_makes_as_a_whole() -> None:
    done = proven(language(), Plan(2, layers={"2": COLUMN}))
    assert "all_gather_into_tensor" in {kind for kind, _ in exchanged(done.graph)}


class Renamed(nn.Module):
    """A layer whose result is used by three names of the same memory, transposed first."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 24, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return [B, 24] of [B, 16]."""
        made = self.layer(x)
        turned, deeper = made.t(), made.view(-1, 2, 12)
        return turned.tanh().t() + deeper.sigmoid().view(made.shape) + made.relu()


class Names(Perceptron):
    """A step of such a layer, and of one after it."""

    def __init__(self, batch: int) -> None:
        super().__init__(batch)
        self.model = nn.Sequential(Renamed(), nn.Linear(24, 1)).to("meta")
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)


def test_a_result_with_several_names_is_summed_once_in_row_major_memory() -> None:
    """NCCL's process group refuses tensors that are not contiguous."""
    done = proven(captured(Names), Plan(2, layers={"0.layer": ROW}))
    assert exchanged(done.graph)["all_reduce", 8 * 24 * 4] == 1
    sums = [op for op in done.graph.leaves() if op.base == "all_reduce_"]
    assert all(tensor.contiguous for op in sums for tensor in op.inputs)


def test_norms_of_gradients_are_those_of_all_ranks() -> None:
    done = proven(captured(Perceptron, clip=True), plan(2, _0=COLUMN, _2=ROW))
    # two weights and a bias are split
    assert exchanged(done.graph) == {("all_reduce", 8 * 24 * 4): 1, ("all_reduce", 4): 3}


@pytest.mark.parametrize(
    "layers",
    [
        {"_0": COLUMN},
        {"_2": ROW},
        {"_0": COLUMN, "_2": COLUMN},
        {"_2": ROW, "_4": COLUMN, "_5": ROW},
        {"_0": ROW, "_2": ROW, "_4": ROW},
        {"_0": COLUMN, "_2": ROW, "_4": COLUMN, "_5": ROW},
    ],
)
def test_layers_alone_are_gathered_and_cut(layers: dict[str, str]) -> None:
    proven(perceptron(), plan(4, **layers))


PROGRAM = """
import os
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from tests.execute.test_parallel_layers import Perceptron

WAYS = {"0": ColwiseParallel(), "2": RowwiseParallel(), "4": ColwiseParallel(),
        "5": RowwiseParallel()}


def train(batch, device):
    mesh = init_device_mesh("cuda", (int(os.environ["WORLD_SIZE"]),))
    card = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(card)
    step = Perceptron(batch, "adam", device=card)
    step.model = parallelize_module(step.model, mesh, WAYS)
    step.optimizer = torch.optim.Adam(step.model.parameters(), lr=0.1)
    return step
"""


def test_sums_are_those_of_torch(tmp_path: Path) -> None:
    """The same layers by ``parallelize_module``, of which each rank captures its own part."""
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    theirs = capture_file(f"{file}:train", batch=8, symbolic=False, ranks=4, rank=1).graph
    ours = shard(perceptron(), plan(4, _0=COLUMN, _2=ROW, _4=COLUMN, _5=ROW), 1).graph
    assert exchanged(ours) == exchanged(theirs)


def test_a_sum_that_is_left_out_shows() -> None:
    models = []
    for rank in range(2):
        model = shard(perceptron(), plan(2, _0=COLUMN, _2=ROW), rank).graph
        edit = Edit(model)
        for op in model.leaves():
            if op.base == "all_reduce_":
                edit.remove(op)
        models.append(edit.commit())
    assert not compare_ranks(perceptron(), models, draws=1).same


def test_what_ranks_cannot_share_is_refused() -> None:
    with pytest.raises(RefusedError, match="layer '2' has 24 outputs, which 5 ranks cannot share"):
        shard(perceptron(), plan(5, _2=COLUMN), 0)
    with pytest.raises(RefusedError, match="there is no rank 2 among 2"):
        shard(perceptron(), plan(2, _0=COLUMN), 2)
    with pytest.raises(IrgraphError, match="no linear layer 'mlp'"):
        shard(perceptron(), plan(2, mlp=COLUMN), 0)
    with pytest.raises(IrgraphError, match="layer '0' is column-parallel, and row-parallel by"):
        shard(perceptron(), Plan(2, layers={"0": COLUMN, "*": ROW}), 0)
    with pytest.raises(RefusedError, match="draws random numbers"):
        shard(captured(Perceptron, dropout=0.5), plan(2, _0=COLUMN), 0)
    once = shard(perceptron(), plan(2, _0=COLUMN), 0).graph
    with pytest.raises(RefusedError, match="is there already"):
        shard(once, plan(2, _2=ROW), 0)


def test_one_rank_exchanges_nothing() -> None:
    done = proven(perceptron(), plan(1, _0=COLUMN, _2=ROW))
    assert not exchanged(done.graph)


MESHES = [(2, 2), (2, 4), (4, 2)]


def on_mesh(data: int, tensor: int, layers: dict[str, str]) -> Plan:
    """Return a plan of a mesh, as its text is read."""
    return read_plan(str(Plan(data * tensor, layers=layers, mesh=Mesh(data, tensor))))


@pytest.mark.parametrize(("data", "tensor"), MESHES)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_groups_of_a_mesh_share_samples_and_layers(optimizer: str, data: int, tensor: int) -> None:
    done = proven(perceptron(optimizer), on_mesh(data, tensor, {"0": COLUMN, "2": ROW}))
    held = sum(d.tensor.nbytes for d in done.graph.tensors if d.role == "param")
    assert exchanged(done.graph) == {
        ("all_reduce", 8 // data * 24 * 4): 1,
        ("all_reduce_coalesced", held): 1,
    }
    over = {group_of(op) for op in done.graph.leaves() if is_collective(op)}
    assert over == {"data", "tensor"}


def test_each_rank_of_a_mesh_knows_its_groups() -> None:
    """Ranks of one machine that follow each other share layers, as in torch's device meshes."""
    given = on_mesh(2, 4, {"0": COLUMN, "2": ROW})
    done = [shard(perceptron(), given, rank).graph for rank in range(8)]
    assert groups_of(done[6]) == {"data": (2, 6), "tensor": (4, 5, 6, 7)}
    assert groups_at(done[6], 1) == groups_of(done[1])
    found = predict_ranks(done, device="h100")
    assert len(found.meetings) == 4 + 2  # a sum for each four, and for each two ranks


@pytest.mark.parametrize("change", ["left out", "other group"])
def test_a_sum_of_a_mesh_that_is_wrong_shows(change: str) -> None:
    models = []
    for rank in range(4):
        model = shard(perceptron(), on_mesh(2, 2, {"0": COLUMN, "2": ROW}), rank).graph
        edit = Edit(model)
        for op in (op for op in model.leaves() if group_of(op) == "data"):
            edit.remove(op)
            if change == "other group":
                edit.insert(
                    replace(op, attributes={**op.attributes, "group_name": "tensor"}), before=op
                )
        models.append(edit.commit())
    assert not compare_ranks(perceptron(), models, draws=1).same


def test_a_mesh_that_does_not_fit_is_refused() -> None:
    with pytest.raises(IrgraphError, match="a mesh of 2 times 3 ranks does not have 8"):
        shard(perceptron(), Plan(8, layers={"0": COLUMN}, mesh=Mesh(2, 3)), 0)
    with pytest.raises(IrgraphError, match="a mesh shares linear layers, and none are named"):
        shard(perceptron(), Plan(4, mesh=Mesh(2, 2)), 0)
    with pytest.raises(RefusedError, match="B = 8 is no multiple of 16"):
        shard(perceptron(), on_mesh(16, 1, {"0": COLUMN}), 0)
    with pytest.raises(RefusedError, match="has 24 outputs, which 5 ranks cannot share"):
        shard(perceptron(), on_mesh(2, 5, {"2": COLUMN}), 3)
    with pytest.raises(RefusedError, match="there is no rank 4 among 4"):
        shard(perceptron(), on_mesh(2, 2, {"2": COLUMN}), 4)
    with pytest.raises(IrgraphError, match="no linear layer 'mlp'"):
        shard(perceptron(), on_mesh(2, 2, {"mlp": COLUMN}), 0)
    with pytest.raises(IrgraphError, match="a mesh of 2 times 1 times 2 ranks does not have 8"):
        shard(perceptron(), Plan(8, parameters="split", mesh=Mesh(1, 2, 2)), 0)
    with pytest.raises(IrgraphError, match="a mesh divides ranks that split parameters"):
        shard(perceptron(), Plan(4, mesh=Mesh(2, 1, 2)), 0)
    with pytest.raises(RefusedError, match="the optimizer cannot be split by the same ranks"):
        shard(perceptron(), Plan(2, layers={"2": ROW}, optimizer="split"), 0)
