"""``shard``, proven by running all ranks in one process, and what does not fit together."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
import torch
from msgspec.structs import replace

from examples.dlrm import Config, DLRMStep
from irgraph.api import rewrite
from irgraph.capture.common.result import Capture
from irgraph.capture.common.symbolic import other_sizes, with_symbolic_batch
from irgraph.capture.live import capture
from irgraph.diagnostics import IrgraphError
from irgraph.execute import compare_ranks
from irgraph.execute.ranks.collectives import computations
from irgraph.ir.edit import Edit
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.ir.ranks import is_collective
from irgraph.ops.verify import verify
from irgraph.plans.plan import Plan, TableSharding, uniform
from irgraph.predict.prediction import predict
from irgraph.text import parse, print_graph
from irgraph.verbs.refusal import RefusedError
from irgraph.verbs.sharding.embeddings.tables import table_sizes
from irgraph.verbs.sharding.shard import shard

SMALL = Config((4, 8, 8), (6, 1), (24, 16, 40, 36, 31), 3, "bce")
SCHEMES = ("table-wise", "column-wise", "row-wise", "table-row-wise", "data-parallel")


@cache
def dlrm(optimizer: str = "sgd") -> Graph:
    """Return a step of a small DLRM with five tables, captured on the meta device."""

    def program(batch: int, device: str) -> DLRMStep:
        step = DLRMStep(SMALL, batch, device)
        if optimizer == "adam":
            step.optimizer = torch.optim.Adam(step.model.parameters(), foreach=True)
        if optimizer == "fused":
            step.optimizer = torch.optim.AdamW(step.model.parameters(), fused=True)
        if optimizer == "momentum":
            step.optimizer = torch.optim.SGD(step.model.parameters(), lr=0.1, momentum=0.9)
        return step

    def at(batch: int) -> Capture:
        return capture(program(batch, "meta"), device="meta", dims={"B": batch})

    return with_symbolic_batch(at(64), 64, at, other_sizes(64)).graph


def shared(graph: Graph, plan: Plan) -> list[Graph]:
    """Return the models of all ranks, each sound and as its text reads."""
    models = [shard(graph, plan, rank).graph for rank in range(plan.ranks)]
    for model in models:
        assert verify(model) == []
        assert parse(print_graph(model)) == model
    return models


def mixed(ranks: int) -> Plan:
    """Return a plan in which every scheme occurs."""
    last = ranks - 1
    placed = [
        TableSharding("table-wise", (last,)),
        TableSharding("column-wise", (last, 0)),
        TableSharding("row-wise"),
        TableSharding("table-row-wise", (last, 0)),
        TableSharding("data-parallel"),
    ]
    return Plan(ranks, dict(zip(table_sizes(dlrm()), placed, strict=True)))


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_ranks_leave_together_what_the_whole_step_leaves(scheme: str, ranks: int) -> None:
    models = shared(dlrm(), uniform(scheme, ranks, table_sizes(dlrm())))
    result = compare_ranks(dlrm(), models, draws=1)
    assert result.same, str(result)
    assert {one.kind for one in result.compared} >= {"param", "gradient", "returned"}


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "momentum"])
def test_all_schemes_together_with_the_optimizers_state(optimizer: str) -> None:
    models = shared(dlrm(optimizer), mixed(4))
    result = compare_ranks(dlrm(optimizer), models)
    assert result.same, str(result)


def split(plan: Plan) -> Plan:
    """Return a plan in which ranks share the optimizer's state."""
    return replace(plan, optimizer="split")


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "momentum"])
def test_ranks_that_share_the_optimizers_state_leave_what_the_step_leaves(
    optimizer: str, ranks: int
) -> None:
    plan = split(uniform("data-parallel", ranks, table_sizes(dlrm(optimizer))))
    models = shared(dlrm(optimizer), plan)
    result = compare_ranks(dlrm(optimizer), models, draws=1)
    assert result.same, str(result)
    assert {one.kind for one in result.compared} >= {"param", "state", "gradient"}
    names = [op.base for op in models[0].leaves() if is_collective(op)]
    assert names.count("all_gather_into_tensor") == 1
    assert "reduce_scatter_tensor" in names


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "momentum", "fused"])
def test_state_is_shared_beside_spread_tables(optimizer: str) -> None:
    models = shared(dlrm(optimizer), split(mixed(4)))
    result = compare_ranks(dlrm(optimizer), models)
    assert result.same, str(result)


def test_a_rank_keeps_its_rows_of_the_state() -> None:
    graph, plan = dlrm("adam"), uniform("data-parallel", 4, table_sizes(dlrm("adam")))
    whole, part = (shard(graph, one, 2).graph for one in (plan, split(plan)))
    sizes = {d.tensor.name: d.tensor.numel for d in whole.tensors if d.role == "state"}
    kept = {d.tensor.name: d.tensor.numel for d in part.tensors if d.role == "state"}
    shares = [kept[name] / size for name, size in sizes.items() if size > 40]
    assert sizes.keys() == kept.keys()
    assert shares.count(0.25) >= 10
    params = {d.tensor.name: d.tensor.shape for d in whole.tensors if d.role == "param"}
    assert params == {d.tensor.name: d.tensor.shape for d in part.tensors if d.role == "param"}
    assert predict(part, "v100").memory.peak < predict(whole, "v100").memory.peak


@pytest.mark.parametrize("name", ["all_gather_into_tensor", "reduce_scatter_tensor"])
def test_rows_that_are_not_exchanged_show(name: str) -> None:
    plan = split(uniform("data-parallel", 2, table_sizes(dlrm())))
    models = []
    for model in shared(dlrm(), plan):
        edit = Edit(model)
        for op in model.leaves():
            if op.base == name:
                edit.remove(op)
                zeros = Op("aten.zeros", (), (op.outputs[0],), {"size": op.outputs[0].shape})
                edit.insert(zeros, before=op)
        models.append(edit.commit())
    result = compare_ranks(dlrm(), models, draws=1)
    assert {one.kind for one in result.different} >= {"param"}


def test_an_optimizer_that_reads_across_rows_is_not_split() -> None:
    class Scaled(torch.optim.SGD):
        def step(self, closure: object = None) -> None:
            for p in self.param_groups[0]["params"]:
                table = p.dim() == 2 and p.shape[1] == SMALL.width
                p.data.sub_(p.grad if table else p.grad * p.data.norm())

    def program(batch: int) -> DLRMStep:
        step = DLRMStep(SMALL, batch, "meta")
        step.optimizer = Scaled(step.model.parameters(), lr=0.1)
        return step

    def at(batch: int) -> Capture:
        return capture(program(batch), device="meta", dims={"B": batch})

    graph = with_symbolic_batch(at(64), 64, at, other_sizes(64)).graph
    plan = split(uniform("row-wise", 2, table_sizes(graph)))
    with pytest.raises(RefusedError, match="updates no parameter whose rows 2 ranks can share"):
        shard(graph, plan, 0)
    bare = replace(graph, ops=tuple(op for op in graph.ops if "Optimizer.step" not in op.name))
    with pytest.raises(RefusedError, match="has 0 steps of one"):
        shard(bare, plan, 0)


def test_each_rank_may_be_rewritten_on() -> None:
    models = [rewrite(m, "fuse-embedding").graph for m in shared(dlrm(), mixed(2))]
    assert any(op.name == "irgraph.batched_embedding" for op in models[0].leaves())
    assert compare_ranks(dlrm(), models, draws=1).same


def test_gradients_may_be_summed_one_by_one_and_in_buckets() -> None:
    models = [_apart(model) for model in shared(dlrm(), mixed(2))]
    sums = [op for op in models[0].leaves() if op.name == "_c10d_functional.all_reduce_"]
    assert len(sums) > 4
    assert compare_ranks(dlrm(), models, draws=1).same
    together = [rewrite(model, "bucket-allreduce").graph for model in models]
    made = [op for op in together[0].leaves() if "coalesced" in op.name]
    assert sum(len(op.inputs) for op in made) == len(sums)
    assert len(made) < len(sums)
    assert compare_ranks(dlrm(), together, draws=1).same


def _apart(graph: Graph) -> Graph:
    """Return a graph that sums its gradients one by one."""
    edit = Edit(graph)
    for op in graph.leaves():
        if op.name == "_c10d_functional.all_reduce_coalesced_":
            edit.remove(op)
            for t in op.inputs:
                name, written = op.name.replace("coalesced_", ""), frozenset([t.name])
                edit.insert(replace(op, name=name, operands=(t,), written=written), before=op)
    return edit.commit()


def without(graph: Graph, name: str) -> Graph:
    """Return a graph without its ops of a name."""
    edit = Edit(graph)
    for op in graph.leaves():
        if op.name == name:
            edit.remove(op)
    return edit.commit()


def test_gradients_that_are_not_summed_show() -> None:
    models = [
        without(model, "_c10d_functional.all_reduce_coalesced_")
        for model in shared(dlrm(), mixed(2))
    ]
    result = compare_ranks(dlrm(), models, draws=1)
    assert not result.same
    assert "bot_mlp_0_weight" in {one.name for one in result.different}


def test_ranks_that_come_to_other_collectives_are_told_apart() -> None:
    first, second = shared(dlrm(), mixed(2))
    second = without(second, "_c10d_functional.reduce_scatter_tensor")
    with pytest.raises(IrgraphError, match="reduce_scatter_tensor on rank 0"):
        compare_ranks(dlrm(), [first, replace(second, ops=second.ops)], draws=1)


def test_all_ranks_are_needed() -> None:
    with pytest.raises(IrgraphError, match="models of all ranks are needed, in order: these are 0"):
        compare_ranks(dlrm(), shared(dlrm(), mixed(2))[:1])


def test_one_rank_exchanges_nothing() -> None:
    (model,) = shared(dlrm(), uniform("row-wise", 1, table_sizes(dlrm())))
    assert not any(map(is_collective, model.leaves()))
    assert compare_ranks(dlrm(), [model], draws=1).same


def test_bytes_between_ranks_are_those_of_the_schemes() -> None:
    """Ids and offsets of four bytes to every holder; bags of all samples, 8 columns of f32."""
    model = shared(dlrm(), uniform("table-wise", 2, table_sizes(dlrm())))[1]
    sizes = [
        tuple(map(int, op.attributes[name]))
        for op in model.leaves()
        if op.base == "all_to_all_single"
        for name in ("input_split_sizes", "output_split_sizes")
    ]
    local, lookups, width = 32, 3, 8
    ids, bags = local * lookups, local * width
    assert sizes == [
        (3 * ids, 2 * ids),
        (2 * ids, 2 * ids),  # three tables on rank 0, two here
        (3 * local, 2 * local),
        (2 * local, 2 * local),
        (2 * bags, 2 * bags),
        (3 * bags, 2 * bags),
        (3 * bags, 2 * bags),
        (2 * bags, 2 * bags),
    ]


@pytest.mark.parametrize("weight", ["weight", "pos_weight"])
def test_losses_with_weights_are_means_over_all_ranks(weight: str) -> None:
    """The reduction of a loss is looked for where its schema has it, behind the weights."""

    def program(batch: int) -> Callable[[], torch.Tensor]:
        bags, layer = torch.nn.EmbeddingBag(32, 8, mode="sum"), torch.nn.Linear(8, 1)
        model = torch.nn.ModuleList([bags, layer]).to("meta")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        indices, offsets = torch.randint(0, 32, (3 * batch,)), torch.arange(0, 3 * batch, 3)
        wanted = torch.rand(batch, 1)
        weights = torch.rand(batch, 1) if weight == "weight" else torch.rand(1)
        beside = weights.to("meta") if weight == "pos_weight" else None

        def step() -> torch.Tensor:
            optimizer.zero_grad()
            made = layer(bags(indices.to("meta"), offsets.to("meta")))
            given = {weight: weights.to("meta") if beside is None else beside}
            function = torch.nn.functional.binary_cross_entropy_with_logits
            loss = function(made, wanted.to("meta"), **given)
            loss.backward()
            optimizer.step()
            return 3 * loss.detach() + 1

        step.model = model  # type: ignore[attr-defined]
        return step

    def at(batch: int) -> Capture:
        return capture(program(batch), device="meta", dims={"B": batch})

    graph = with_symbolic_batch(at(64), 64, at, other_sizes(64)).graph
    models = shared(graph, uniform("table-wise", 2, table_sizes(graph)))
    assert compare_ranks(graph, models).same


def test_a_functional_broadcast_copies_the_tensor_of_its_source() -> None:
    name = "_c10d_functional.broadcast_"
    ops = [Op(name, (), attributes={"src": 1, "group_name": "0"})] * 3
    values = [[torch.full((2,), float(rank))] for rank in range(3)]
    computations()[name](ops, values)
    assert [value.tolist() for (value,) in values] == [[1.0, 1.0]] * 3


def test_collectives_of_lists_are_computed_only_by_tensor() -> None:
    names = computations()
    assert "c10d.allreduce_coalesced_" in names
    assert "_c10d_functional.all_gather_into_tensor_coalesced" not in names
    assert "c10d.reduce_scatter_" not in names
