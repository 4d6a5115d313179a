"""``quantize`` of what ranks exchange: half the bytes, the same step, and what is refused."""

from __future__ import annotations

import pytest

from irgraph.diagnostics import IrgraphError
from irgraph.execute import compare_ranks
from irgraph.ir.graph import Graph
from irgraph.language import load_script, run
from irgraph.ops.verify import verify
from irgraph.plans.plan import COLUMN, ROW, TABLE, Plan, TableSharding
from irgraph.precision.data import random_batch
from irgraph.precision.measure import PrecisionBench
from irgraph.predict.options import PredictOptions
from irgraph.predict.prediction import predict
from irgraph.text import parse, print_graph
from irgraph.verbs.quantize import check_quantize
from irgraph.verbs.refusal import RefusedError
from irgraph.verbs.sharding.shard import shard

TEXT = """model "m" { format = 2  dims = {B = 32} }

device @gpu0 "a100-sxm4-40gb"
input %x : f32[B, 16] in $x
input %i : i64[3*B] in $i
input %o : i64[B] in $o
param %t "users" : f32[50, 16] in $t
param %u "items" : f32[40, 16] in $u
param %v "top" : f32[8, 16] in $v

%s, %s1, %s2, %s3 = aten.embedding_bag(%t, %i, %o, mode = 0) : f32[B, 16] in $s, i64[3*B] in $s1, i64[B] in $s2, i64[0] in $s3
%r, %r1, %r2, %r3 = aten.embedding_bag(%u, %i, %o, mode = 0) : f32[B, 16] in $r, i64[3*B] in $r1, i64[B] in $r2, i64[0] in $r3
%h = aten.add(%s, %x) : f32[B, 16] in $h
%g = aten.add(%h, %r) : f32[B, 16] in $g
%y = aten.linear(%g, %v) : f32[B, 8] in $y
return %y
"""  # noqa: E501
FLOATS = "_c10d_functional.{all_to_all_single,reduce_scatter_tensor}(%x, ...) where %x.dtype == f32"


def ranks(first: TableSharding, second: TableSharding) -> list[Graph]:
    """Return the models of two ranks."""
    plan = Plan(2, {"users": first, "items": second})
    return [shard(parse(TEXT), plan, rank).graph for rank in range(2)]


def links(graph: Graph) -> float:
    """Return the bytes of floating types that a rank sends, its ids left out."""
    kernels = predict(graph, device="a100-sxm4-40gb").kernels()
    return sum(k.link_bytes for k in kernels if k.family == "collective")


@pytest.mark.parametrize("to", ["bf16", "f16"])
@pytest.mark.parametrize(
    "plans",
    [
        (TableSharding(TABLE, (0,)), TableSharding(TABLE, (1,))),
        (TableSharding(ROW), TableSharding(COLUMN, (0, 1))),
    ],
)
def test_ranks_send_half_of_their_bags_and_do_the_same(
    plans: tuple[TableSharding, TableSharding], to: str
) -> None:
    models = ranks(*plans)
    script = load_script(f'quantize many {FLOATS} to "{to}"')
    short = [run(script, model).graph for model in models]
    for before, after in zip(models, short, strict=True):
        assert not verify(after) and parse(print_graph(after)) == after
        sent = [op.inputs[0] for op in before.leaves() if op.base == "all_to_all_single"]
        ids = sum(t.nbytes for t in sent if t.dtype == "i64") / 2
        assert links(after) - ids == pytest.approx((links(before) - ids) / 2)
        waits = [op.inputs[0].dtype for op in after.leaves() if op.base == "wait_tensor"]
        assert to in waits and "f32" not in waits
    found = compare_ranks(parse(TEXT), short, draws=1)
    assert found.same and any(f"{to} computed as f64" in note for note in found.notes)
    with pytest.raises(IrgraphError, match=f"roundings to {to} scatter over ranks"):
        compare_ranks(parse(TEXT), short, draws=1, widen=False)


@pytest.mark.parametrize(
    ("old", "new", "to", "why"),
    [
        ("", "", "i8", "ranks exchange f16 or bf16, not i8"),
        ("f32[B, 16] in $all_to_all", "f16[B, 16] in $all_to_all", "bf16", "in f32"),
    ],
)
def test_other_exchanges_are_refused(old: str, new: str, to: str, why: str) -> None:
    model, _ = ranks(TableSharding(TABLE, (0,)), TableSharding(TABLE, (1,)))
    ops = [op for op in model.leaves() if op.base == "all_to_all_single"]
    chosen = ops[-1] if not old else ops[0]
    with pytest.raises(RefusedError, match=why):
        check_quantize(model, chosen, to)


def test_an_exchange_that_nobody_waits_for_is_refused() -> None:
    model, _ = ranks(TableSharding(TABLE, (0,)), TableSharding(TABLE, (1,)))
    lines = print_graph(model).splitlines()
    waits = [n for n, line in enumerate(lines) if "wait_tensor" in line]
    del lines[waits[-1]]
    bare = parse("\n".join(lines) + "\n")
    last = [op for op in bare.leaves() if op.base == "all_to_all_single"][-1]
    with pytest.raises(RefusedError, match="is not waited for on its own stream"):
        check_quantize(bare, last, "bf16")


def test_a_rank_alone_is_not_searched() -> None:
    model, _ = ranks(TableSharding(TABLE, (0,)), TableSharding(TABLE, (1,)))
    with pytest.raises(IrgraphError, match="exchanges with other ranks, which do not run"):
        PrecisionBench(model, [], random_batch(model), PredictOptions(device="a100-sxm4-40gb"))
