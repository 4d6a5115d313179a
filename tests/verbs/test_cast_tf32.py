"""``cast`` to tf32: products become ops of their own, no tensor changes, and sizes follow."""

from __future__ import annotations

import pytest

from irgraph.ir.graph import Graph
from irgraph.ir.quantity import Quantity
from irgraph.language import load_script, run
from irgraph.ops.verify import verify
from irgraph.text import parse, print_graph
from irgraph.verbs import RefusedError, cast, check_cast
from tests.language.models import mlp, model

PRODUCTS = """
input %x : f32[B, 8] in $x
input %p : f32[B, 8, 6] in $p
input %q : f32[B, 6, 8] in $q
param %w : f32[8, 8] in $w
param %c : f32[8] in $c
%a = aten.linear(%x, %w, %c) : f32[B, 8] in $a
%d = aten.addmm(%a, %x, %w, alpha = 2) : f32[B, 8] in $d
%m = aten.mm(%d, %w) : f32[B, 8] in $m
%b = aten.bmm(%p, %q) : f32[B, 8, 8] in $b
%z = aten.baddbmm(%b, %p, %q, beta = 0.5) : f32[B, 8, 8] in $z
%s = aten.sum(%m) : f32[] in $s
"""
CAST = "cast many aten.{linear,addmm,mm,bmm,baddbmm} to tf32"


def changed(script: str, graph: Graph) -> Graph:
    after = run(load_script(script), graph).graph
    assert verify(after) == []
    return after


def test_all_products_change_their_names_alone() -> None:
    before = model(PRODUCTS)
    after = changed(CAST, before)
    assert [op.name for op in after.ops] == [
        "irgraph.linear_tf32",
        "irgraph.addmm_tf32",
        "irgraph.mm_tf32",
        "irgraph.bmm_tf32",
        "irgraph.baddbmm_tf32",
        "aten.sum",
    ]
    assert after.by_name == before.by_name
    assert [op.attributes for op in after.ops] == [op.attributes for op in before.ops]


def test_what_is_cast_prints_and_parses_to_the_same() -> None:
    after = changed(CAST, model(PRODUCTS))
    assert parse(print_graph(after)) == after != model(PRODUCTS)


def test_a_product_is_cast_with_those_that_it_calls_and_that_call_it() -> None:
    graph = mlp()
    inner = next(op for op in graph.walk() if op.name == "aten.addmm")
    (made,) = cast(graph, [inner, graph.ops[0]], "tf32").ops
    assert [op.name for op in made.walk()] == [
        "irgraph.linear_tf32",
        "aten.t",
        "irgraph.addmm_tf32",
    ]


@pytest.mark.parametrize("graph", [model(PRODUCTS), mlp()], ids=["products", "mlp"])
def test_a_cast_back_to_f32_gives_what_was_there(graph: Graph) -> None:
    back = "cast many irgraph.{linear,addmm,mm,bmm,baddbmm}_tf32 to f32"
    assert changed(f"{CAST} {back}", graph) == graph


def test_casts_of_others_to_f32_go_on_beside_it() -> None:
    text = "input %x : f16[8, 8] in $x\ninput %w : f32[8, 8] in $w\n"
    ops = "%n = aten.neg(%x) : f16[8, 8] in $n\n%y = irgraph.mm_tf32(%w, %w) : f32[8, 8] in $y\n"
    graph = model(text + ops)
    found = cast(graph, graph.ops, "f32")
    names = [op.name for op in found.graph.ops]
    assert names == ["aten._to_copy", "aten.neg", "aten._to_copy", "aten.mm"]
    assert sorted(op.name for op in found.ops) == ["aten.mm", "aten.neg"]


RESIZED = [
    ("mlp", "B = 16"),
    ("mlp", '%w.shape[0] of NAME(_, %w, ...) where op.module == "bot.0" = 12'),
    ("products", "%w.shape[1] of NAME(_, %w, _) = 12"),
]


@pytest.mark.parametrize(("name", "resize"), RESIZED)
def test_sizes_change_alike_before_and_after_it(name: str, resize: str) -> None:
    graph = {"products": model(PRODUCTS), "mlp": mlp()}[name]
    before, behind = (
        f"resize {resize.replace('NAME', linear)}"
        for linear in ("aten.linear", "irgraph.linear_tf32")
    )
    first, last = changed(f"{CAST} {behind}", graph), changed(f"{before} {CAST}", graph)
    assert first == last
    assert first != changed(CAST, graph)


def test_what_was_measured_of_f32_is_forgotten() -> None:
    text = PRODUCTS.replace("in $m\n", "in $m [time = 41.2us, by = measured]\n")
    graph = model(text)
    assert isinstance(graph.ops[2].notes["time"], Quantity)
    assert changed(CAST, graph).ops[2].notes == {}


def test_a_scope_with_a_product_in_tf32_takes_no_other_type() -> None:
    text = (
        "input %x : f32[8, 8] in $x\n%y = aten.matmul(%x, %x) : f32[8, 8] in $y {\n"
        "  %n = aten.neg(%x) : f32[8, 8] in $n\n"
        "  %y = irgraph.mm_tf32(%n, %x) : f32[8, 8] in $y\n}\n"
    )
    graph = model(text)
    with pytest.raises(RefusedError, match="cast it to f32 first"):
        check_cast(graph, graph.ops[0].body[0], "bf16")
    check_cast(graph, graph.ops[0], "f32")
