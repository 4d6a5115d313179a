"""Prices that ops keep are those of a graph whose ops keep none, to the last digit."""

from __future__ import annotations

import pickle
from importlib import resources

import pytest
from msgspec.structs import replace

import passes
from costmodels.backend import price
from costmodels.pricing import price_cache
from costmodels.pricing.price import Pricer
from irgraph.diagnostics import IrgraphError
from irgraph.ir.cost import Kernel, Priced, PriceOptions
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.ir.resize import with_dims
from irgraph.language import parse_pipeline, run
from irgraph.predict.prediction import predict
from irgraph.text import parse
from tests.passes.test_golden import CALLS, FOLDER
from tests.strategies import random_graph

DATA = resources.files("costmodels.evaluate") / "data"

WAYS = (
    PriceOptions(),
    PriceOptions(mode="paper", pinned=True),
    PriceOptions(indices=["zipf:1.05 bags normal:21,35"], measured=False),
)


def fresh(graph: Graph) -> Graph:
    """Return an equal graph of other ops, which keep nothing."""
    made: Graph = pickle.loads(pickle.dumps(graph))
    assert not any(price_cache.CACHE_KEY in op.__dict__ for op in made.walk())
    return made


def shown(priced: Priced) -> object:
    """Return all that pricing says, by the places of ops."""
    places = {op: at for at, op in enumerate(priced.graph.walk())}
    kernels = [(places[key], found) for key, found in priced.kernels.items()]
    reasons = {places[key]: reason for key, reason in priced.reasons.items()}
    return kernels, [places[op] for op in priced.unknown], reasons, priced.indices


def check(*graphs: Graph) -> None:
    """Price graphs that share ops, in turns and again; compare each with a fresh one."""
    ways = [("v100", options) for options in WAYS] + [("h100", WAYS[0])]
    turns = [(graph, *way) for way in ways for graph in graphs]
    expected = [shown(price(fresh(graph), *way)) for way in ways for graph in graphs]
    for _ in range(2):
        assert [shown(price(*turn)) for turn in turns] == expected


def shipped(name: str) -> Graph:
    return parse((DATA / name).read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", passes.names())
def test_what_a_pass_leaves_keeps_its_price(name: str) -> None:
    graph = parse((FOLDER / f"{name}.before.ir").read_text(encoding="utf-8"))
    made = run(parse_pipeline(CALLS.get(name, name)), graph).graph
    check(graph, made)
    assert predict(made, "v100").step_time == predict(fresh(made), "v100").step_time


@pytest.mark.slow
@pytest.mark.parametrize("model", ["dlrm_default.ir", "dlrm_mlperf.ir"])
def test_a_shipped_step_keeps_its_prices_under_all_passes(model: str) -> None:
    graph, legal = shipped(model), 0
    for name in passes.names():
        try:
            made = run(parse_pipeline(CALLS.get(name, name)), graph).graph
        except IrgraphError:
            continue
        legal += made is not graph
        check(graph, made, with_dims(made, {"B": 640}))
    assert legal >= 5


def test_random_steps_keep_their_prices() -> None:
    for seed in range(30):
        check(random_graph(seed))


TOLD_BY_OTHERS = """model "m" {{ format = 1  ranks = {ranks} }}

device @gpu0 "v100"
input %i : i64[1, {rows}] in $i
input %v : f32[{rows}, 32] in $v
input %x : f32[1024, 32] in $x
param %w : f32[100000, 32] in $w

%s = aten._sparse_coo_tensor_unsafe(%i, %v, size = [100000, 32]) : f32[100000, 32; 0, 0] in $s
aten.add_(%w!, %s, alpha = -0.1)
c10d.allreduce_([%x!])
%y = aten.relu(%x) : f32[1024, 32] in $y
"""


def test_what_others_tell_of_an_op_is_asked_anew() -> None:
    """The same ops in another graph: other values of a sparse tensor, other ranks."""
    few = parse(TOLD_BY_OTHERS.format(rows=9, ranks=2))
    many = parse(TOLD_BY_OTHERS.format(rows=900, ranks=8))
    mixed = replace(many, ops=(many.ops[0], *few.ops[1:]))
    check(few, mixed, many)
    for op in few.ops[1:3]:
        assert price(few, "v100", WAYS[0]).of(op) != price(mixed, "v100", WAYS[0]).of(op)


def test_unchanged_ops_are_not_priced_again(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = shipped("dlrm_default.ir")
    made = run(parse_pipeline("fuse-embedding"), graph).graph
    price(graph, "v100", WAYS[0])
    asked: list[Op] = []
    rule = Pricer._modelled

    def known(pricer: Pricer, op: Op) -> tuple[Kernel, ...] | None:
        asked.append(op)
        return rule(pricer, op)

    monkeypatch.setattr(Pricer, "_modelled", known)
    price(made, "v100", WAYS[0])
    old = set(graph.walk())
    assert asked
    assert not [op for op in asked if op in old]


def test_an_op_keeps_prices_for_few_machines() -> None:
    graph = random_graph(1)
    for clock in range(3 * price_cache.MAX_MACHINES):
        price(graph, "v100", PriceOptions(indices=[f"zipf:1.{clock}"]))
    held = [len(op.__dict__.get(price_cache.CACHE_KEY, ())) for op in graph.walk()]
    assert 0 < max(held) <= price_cache.MAX_MACHINES
    assert len(price_cache._MACHINES._properties_by_token) <= price_cache.MAX_MACHINES


ALIKE = """model "m" { format = 1 }

device @gpu0 "v100"
param %t : f32[1000000, 64] in $t
input %r : i64[256] in $r

%a = inductor.kernel(%t, %r) : f32[256, 64] in $a {
  %a = aten.embedding(%t, %r) : f32[256, 64] in $a
}
%b = inductor.kernel(%t, %r) : f32[256, 64] in $b {
  %s = aten.sum(%t, dim = [0]) : f32[64] in $s
  %b = aten.add(%s, %r) : f32[256, 64] in $b
}
"""


def test_calls_that_differ_inside_alone_have_prices_of_their_own() -> None:
    """Of one call only the rows that it looks up are read, of the other the table."""
    graph = parse(ALIKE)
    first, second = graph.ops
    for ops in (graph.ops, graph.ops[::-1], (second,), (first,)):
        priced = price(fresh(replace(graph, ops=ops)), "v100", WAYS[0])
        times = {op.outputs[0].name: priced.of(op)[0].time for op in priced.graph.ops}
        assert times.get("a", 0.0) < 10 < 100 < times.get("b", 1e9)
