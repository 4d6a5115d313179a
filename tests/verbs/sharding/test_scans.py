"""Sums of prefixes along an axis that ranks share, proven by running all ranks."""

from __future__ import annotations

import pytest

from irgraph.execute import compare_ranks
from irgraph.ir.graph import Graph
from irgraph.ir.ranks import is_collective
from irgraph.ops.verify import verify
from irgraph.plans.plan import Mesh, Plan
from irgraph.text import parse
from irgraph.verbs.sharding.shard import shard

POSITIONS = """model "positions" { format = 2 }

device @gpu0 "v100"
input %x : f32[3, 8, 5] in $x

%chosen = aten.gt(%x, 0) : bool[3, 8, 5] in $chosen
%places = aten.cumsum(%chosen, dim = 1) : i64[3, 8, 5] in $places
%sums = aten.cumsum(%x, dim = -2) : f32[3, 8, 5] in $sums
%scaled = aten.mul(%sums, %places) : f32[3, 8, 5] in $scaled
return %scaled
"""
"""Positions of the elements that are chosen, and sums."""

ROWS = """model "rows" { format = 2 }

device @gpu0 "v100"
input %x : f32[4, 8] in $x

%sums = aten.cumsum(%x, dim = 1) : f32[4, 8] in $sums
%scaled = aten.neg(%sums) : f32[4, 8] in $scaled
return %scaled
"""

BATCH = """model "batch" { format = 2  dims = {B = 8} }

device @gpu0 "v100"
input %x : f32[B, 3] in $x

%sums = aten.cumsum(%x, dim = 0, dtype = f64) : f64[B, 3] in $sums
return %sums
"""


def proven(graph: Graph, plan: Plan) -> list[Graph]:
    """Return the models of all ranks, after they were verified and compared with the step."""
    models = [shard(graph, plan, rank).graph for rank in range(plan.ranks)]
    assert not any(map(verify, models))
    assert compare_ranks(graph, models, draws=2).same
    return models


def pinned(axis: int, ranks: int) -> Plan:
    return Plan(ranks, pins={"%x": f"split {axis}", "%scaled": f"split {axis}"})


def exchanged(model: Graph) -> list[tuple[str, tuple[int, ...]]]:
    """Return the type and shape of what a rank sends to others before the step's end."""
    calls = [op for op in model.leaves() if is_collective(op) and op.results]
    return [(op.inputs[0].dtype, op.inputs[0].shape) for op in calls]


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_ranks_exchange_the_sums_of_their_blocks(ranks: int) -> None:
    for model in proven(parse(POSITIONS), pinned(1, ranks)):
        assert exchanged(model)[:2] == [("i64", (1, 3, 5)), ("f32", (1, 3, 5))]


def test_a_scan_along_the_batch() -> None:
    models = proven(parse(BATCH), Plan(4))
    assert [exchanged(model) for model in models] == [[("f64", (1, 3))]] * 4


def test_scans_along_other_axes_exchange_nothing() -> None:
    models = proven(parse(ROWS), pinned(0, 2))
    assert [op.base for op in models[0].leaves() if op.base in ("cumsum", "add")] == ["cumsum"]


def test_blocks_of_columns_in_another_order_of_memory() -> None:
    text = ROWS.replace("f32[4, 8] in $x", "f32[4, 8; 1, 4] in $x")
    assert text != ROWS
    proven(parse(text), pinned(1, 2))


@pytest.mark.parametrize(("dim", "sent"), [(0, (1, 3)), (1, (1, 2))])
def test_scans_on_a_mesh(dim: int, sent: tuple[int, ...]) -> None:
    text = BATCH.replace("[B, 3]", "[B, 6]").replace("dim = 0", f"dim = {dim}")
    plan = Plan(8, pins={"%x": "split 1", "%sums": "split 1"}, mesh=Mesh(4, 2))
    models = proven(parse(text), plan)
    assert {shape for model in models for _, shape in exchanged(model)} == {sent}
