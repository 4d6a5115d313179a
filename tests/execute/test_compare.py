"""Rewrites proven by execution: the library's passes are right, wrong rewrites are caught."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
import torch
from msgspec.structs import replace

from examples import dlrm, mlp
from irgraph.api import rewrite
from irgraph.capture.live import capture
from irgraph.execute import Comparison, compare
from irgraph.ir.edit import Edit
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.ir.resize import with_dims
from irgraph.text import IrgraphError
from tests.execute.models import Step, conv_step, sgd, transformer_step
from tests.language.models import model, training

TOLERANCE = 1e-4
"""Share of a change by which results in f32 may differ."""


@cache
def dlrm_graph(name: str, device: str = "meta", sparse: bool = False) -> Graph:
    """Return a captured small step of the example."""
    step = getattr(dlrm, name)(4, device, sparse=sparse, max_rows=40, lookups=3)
    return capture(step, device=device).graph


@cache
def mlp_graph(device: str = "meta") -> Graph:
    """Return a captured step of the small example."""
    return capture(mlp.train(4, device, width=16), device=device).graph


@cache
def conv_graph() -> Graph:
    """Return a captured step of a small convolutional network."""
    return capture(conv_step(2, "meta"), device="meta").graph


def changed(graph: Graph, name: str, change: Callable[[Op], Op | None]) -> Graph:
    """Return a graph with the first op of a name replaced, or taken out."""
    old = next(op for op in graph.walk() if op.name == name)
    edit = Edit(graph)
    new = change(old)
    if new is not None:
        edit.insert(new, after=old)
    edit.remove(old)
    return edit.commit()


def names(result: Comparison) -> list[str]:
    """Return the tensors that differ."""
    return sorted(one.name for one in result.different)


@pytest.mark.parametrize(
    ("name", "device", "sparse"),
    [
        ("default", "meta", False),
        ("default", "cpu", True),
        ("default", "meta", True),
        ("mlperf", "cpu", False),
        ("mlperf", "meta", True),
        ("ddp", "meta", False),
    ],
)
def test_fused_lookups_and_epilogues_leave_the_same(name: str, device: str, sparse: bool) -> None:
    before = dlrm_graph(name, device, sparse)
    after = rewrite(before, "fuse-embedding, fuse-epilogue").graph
    fused = {op.name for op in after.walk()}
    assert {"irgraph.batched_embedding", "irgraph.batched_embedding_sgd"} <= fused
    result = compare(before, after)
    assert result.same, str(result)
    assert not result.exact
    assert {kind for kind, _ in result.only_before} >= {"gradient"}
    assert result.only_after == []
    assert sum(one.kind == "param" for one in result.compared) == sum(
        d.role == "param" for d in before.tensors
    )


def test_a_backward_pass_alone_is_fused_to_the_same() -> None:
    before = training(3)
    kept = [op for op in before.ops if not op.is_annotation]
    before = replace(before, ops=tuple(kept))
    after = rewrite(before, "fuse-embedding").graph
    assert "irgraph.batched_embedding_backward" in {op.name for op in after.walk()}
    assert compare(before, after).same


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_fused_epilogues_of_an_mlp_leave_the_same(device: str) -> None:
    before = mlp_graph(device)
    after = rewrite(before, "fuse-epilogue").graph
    fused = [op.name for op in after.walk() if op.name.startswith("irgraph.")]
    assert fused == ["irgraph.addmm_relu"] * 2 + ["irgraph.mm_relu_backward"] * 2
    result = compare(before, after)
    assert result.same, str(result)
    assert [kind for kind, _ in result.only_before] == []


def test_an_epilogue_in_place_leaves_the_same() -> None:
    layers = torch.nn.Sequential(
        torch.nn.Linear(6, 7), torch.nn.ReLU(inplace=True), torch.nn.Linear(7, 5)
    )
    step = Step(layers, (torch.rand(4, 6), torch.arange(4)), sgd)
    before = capture(step, device="cpu").graph
    after = rewrite(before, "fuse-epilogue").graph
    assert {"irgraph.addmm_relu", "irgraph.mm_relu_backward"} <= {op.name for op in after.walk()}
    assert compare(before, after).same


def test_a_wrong_mask_of_a_fused_backward_epilogue_is_caught() -> None:
    before = mlp_graph("cpu")
    after = rewrite(before, "fuse-epilogue").graph
    other = before.by_name["relu1"]
    wrong = changed(
        after,
        "irgraph.mm_relu_backward",
        lambda op: replace(op, operands=(*op.operands[:2], other)),
    )
    assert not compare(before, wrong).same


def test_copies_that_change_nothing_leave_exactly_the_same() -> None:
    before = model(
        "param %w : f32[3, 4] in $w\n%c = aten.clone(%w) : f32[3, 4] in $c\n"
        "%y = aten.neg(%c) : f32[3, 4] in $y\n"
    )
    after = rewrite(before, "clean-copies").graph
    result = compare(before, after)
    assert [op.name for op in after.ops] == ["aten.neg"]
    assert (result.same, result.exact) == (True, True)


def dropout(keep: float) -> Graph:
    """Return a captured block whose dropout layers keep this share of values."""
    graph = capture(transformer_step(2, "cpu", dropout=0.25), device="cpu").graph

    def set_share(op: Op) -> Op:
        body = tuple(map(set_share, op.body))
        given = {"aten.bernoulli_": "p", "aten.div_": "other"}.get(op.name)
        known = dict(op.attributes)
        if given and known.get(given) == 0.75:
            known[given] = keep
        return replace(op, attributes=known, body=body)

    return replace(graph, ops=tuple(map(set_share, graph.ops)))


def test_dropout_that_drops_nothing_may_go() -> None:
    before = dropout(1.0)
    after = rewrite(before, "drop-dropout").graph
    assert "aten.bernoulli_" not in {op.name for op in after.walk()}
    result = compare(before, after)
    assert (result.same, result.exact) == (True, True), str(result)


def test_dropout_that_drops_something_is_another_step() -> None:
    before = dropout(0.75)
    assert compare(before, before).same
    assert not compare(before, rewrite(before, "drop-dropout").graph).same


@pytest.mark.parametrize("make", [conv_step, transformer_step])
def test_a_graph_is_the_same_as_itself(make: Callable[..., Step]) -> None:
    graph = capture(make(2, "meta"), device="meta").graph
    result = compare(graph, graph, seed=3)
    assert (result.same, result.exact) == (True, True)
    kinds = {one.kind for one in result.compared} - {"host"}
    assert kinds == {"param", "state", "gradient", "returned"}
    assert any(one.changed for one in result.compared if one.kind == "param")


def fused() -> Graph:
    """Return the fused small step."""
    return rewrite(dlrm_graph("default"), "fuse-embedding").graph


def test_a_wrong_rate_is_caught() -> None:
    wrong = changed(
        fused(),
        "irgraph.batched_embedding_sgd",
        lambda op: replace(op, attributes={**op.attributes, "alpha": -0.101}),
    )
    result = compare(dlrm_graph("default"), wrong)
    assert names(result) == [f"tables_{k}_weight" for k in range(8)]
    assert all(0.005 < one.relative < 0.02 for one in result.different)


def test_two_tables_mixed_up_are_caught() -> None:
    def swap(op: Op) -> Op:
        first, second, *rest = op.operands[1]  # type: ignore[misc,union-attr]
        mixed = (op.operands[0], (second, first, *rest), *op.operands[2:])
        return replace(op, operands=mixed)

    wrong = changed(fused(), "irgraph.batched_embedding_sgd", swap)
    assert names(compare(dlrm_graph("default"), wrong)) == ["tables_6_weight", "tables_7_weight"]


def test_operands_that_are_swapped_are_caught() -> None:
    before = model(
        "input %x : f32[9] in $x\ninput %y : f32[9] in $y\n%z = aten.sub(%x, %y) : f32[9] in $z\n"
    )
    wrong = changed(before, "aten.sub", lambda op: replace(op, operands=op.operands[::-1]))
    result = compare(before, wrong)
    assert (names(result), result.exact) == (["z"], True)


def test_an_update_that_is_left_out_is_caught() -> None:
    graph = mlp_graph("cpu")
    assert names(compare(graph, changed(graph, "aten.addcdiv_", lambda op: None))) == ["t_0_weight"]


def test_a_move_across_a_dependence_is_caught() -> None:
    graph = dlrm_graph("default")
    zeroed = next(op for op in graph.walk() if op.name == "aten.zero_")
    edit = Edit(graph)
    edit.remove(zeroed)
    edit.insert(replace(zeroed, phase="forward"))
    result = compare(graph, edit.commit())
    assert names(result) == ["bot_mlp_0_weight", zeroed.inputs[0].name]
    assert result.exact


def test_a_loss_that_is_no_longer_returned_is_caught() -> None:
    graph = dlrm_graph("default")
    last = [op for op in graph.walk() if op.outputs and op.outputs[0].device == "cpu"][-1]
    edit = Edit(graph)
    edit.remove(next(op for op in graph.ops if any(inner is last for inner in op.walk())))
    result = compare(graph, edit.commit())
    assert result.lost == [last.outputs[0].name]
    assert (
        f"  returned %{result.lost[0]}: no longer made, but the step returns it" in result.lines()
    )


def test_what_only_one_graph_makes_is_reported() -> None:
    head = "input %x : f32[9] in $x\n%c = aten.exp(%x) : f32[9] in $c\n"
    before = model(head + "%y = aten.neg(%x) : f32[9] in $y\n")
    after = model(head + "%z = aten.neg(%x) : f32[9] in $z\n")
    result = compare(before, after)
    assert result.same
    assert (result.only_before, result.only_after) == ([("output", "y")], [("output", "z")])
    assert result.lines()[1:3] == ["only before: 1 output: %y", "only after: 1 output: %z"]


def test_graphs_without_a_common_result_are_not_called_the_same() -> None:
    one = model("input %x : f32[9] in $x\n%y = aten.neg(%x) : f32[9] in $y\n")
    two = model("input %x : f32[9] in $x\n%z = aten.neg(%x) : f32[9] in $z\n")
    result = compare(one, two)
    assert not result.same
    assert result.lines()[0] == "nothing to compare: no tensor leaves the step in both"


def test_nan_where_there_were_numbers_is_caught() -> None:
    before = model("input %x : f32[9] in $x\n%y = aten.abs(%x) : f32[9] in $y\n")
    after = model(
        "input %x : f32[9] in $x\n%n = aten.neg(%x) : f32[9] in $n\n"
        "%y = aten.log(%n) : f32[9] in $y\n"
    )
    assert [one.problem for one in compare(before, after).different] == [
        "it holds nan or infinity, and not at the same places"
    ]


def test_coarser_types_allow_more() -> None:
    head = "input %x : f32[40, 30] in $x\nparam %w : f32[30, 30] in $w\n"
    before = model(head + "%y = aten.mm(%x, %w) : f32[40, 30] in $y\n")
    after = model(
        head + "%a = aten._to_copy(%x, dtype = bf16) : bf16[40, 30] in $a\n"
        "%b = aten._to_copy(%w, dtype = bf16) : bf16[30, 30] in $b\n"
        "%c = aten.mm(%a, %b) : bf16[40, 30] in $c\n"
        "%y = aten._to_copy(%c, dtype = f32) : f32[40, 30] in $y\n"
    )
    result = compare(before, after, widen=False)
    assert result.same
    assert result.precision == ("bf16", 1e-4)
    assert result.compared[0].absolute > 1e-4


def test_casts_of_products_change_nothing_but_the_type() -> None:
    for graph in (dlrm_graph("default"), dlrm_graph("ddp", "meta", True), conv_graph()):
        after = rewrite(graph, "cast-gemms").graph
        result = compare(graph, after)
        assert result.same, str(result)
        assert result.precision[0] == "f64"
        assert "bf16 computed as f64: what casts lose is not judged" in result.notes


def test_casts_of_products_stay_within_their_type() -> None:
    graph = mlp_graph("cpu")
    result = compare(graph, rewrite(graph, "cast-gemms").graph, widen=False)
    assert result.same, str(result)
    assert result.precision == ("bf16", 1e-4)


@pytest.mark.parametrize("narrow", ["bf16", "f16", "tf32"])
@pytest.mark.parametrize("seed", [0, 1])
def test_what_casts_may_lose_follows_from_their_roundings(narrow: str, seed: int) -> None:
    graph = conv_graph()
    after = rewrite(graph, f"cast-gemms(narrow = {narrow})").graph
    result = compare(graph, after, widen=False, seed=seed)
    assert result.same, str(result)
    used = [one.absolute / one.allowed for one in result.compared if one.allowed]
    assert 0.02 < max(used) < 0.5


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: dlrm_graph("default"), id="dlrm", marks=pytest.mark.slow),
        pytest.param(mlp_graph, id="mlp"),
    ],
)
def test_products_in_tf32_round_what_exact_ones_do_not(make: Callable[[], Graph]) -> None:
    graph = make()
    after = rewrite(graph, "cast-gemms(narrow = tf32)").graph
    wide, rounded = compare(graph, after), compare(graph, after, widen=False)
    assert (wide.same, wide.exact) == (True, True)
    assert "tf32 computed as f64: what casts lose is not judged" in wide.notes
    assert rounded.same and rounded.precision == ("tf32", 1e-4)
    assert max(one.relative for one in rounded.compared) > 2 * TOLERANCE


def test_a_wrong_product_is_caught_in_tf32() -> None:
    graph = mlp_graph("cpu")
    wrong = changed(
        rewrite(graph, "cast-gemms(narrow = tf32)").graph,
        "aten.addcdiv_",
        lambda op: replace(op, attributes={"value": 1.05 * op.attributes["value"]}),  # type: ignore[operator]
    )
    assert not compare(graph, wrong, widen=False).same


def test_a_wrong_product_is_caught_in_short_types() -> None:
    graph = mlp_graph("cpu")
    wrong = changed(
        rewrite(graph, "cast-gemms").graph,
        "aten.threshold_backward",
        lambda op: replace(op, attributes={"threshold": 0.3}),
    )
    assert not compare(graph, wrong, widen=False).same


def test_a_wrong_rate_is_caught_beside_casts() -> None:
    graph = mlp_graph("cpu")
    cast = rewrite(graph, "cast-gemms").graph
    wrong = changed(
        cast,
        "aten.addcdiv_",
        lambda op: replace(op, attributes={"value": 1.01 * op.attributes["value"]}),  # type: ignore[operator]
    )
    assert names(compare(graph, wrong)) == ["t_0_weight"]


def test_reductions_that_both_have_must_come_in_time() -> None:
    text = "state %g : f32[9] in $g\nparam %w : f32[9] in $w\n"
    reduced, added = "c10d.allreduce_([%g!])\n", "aten.add_(%w!, %g, alpha = -0.1)\n"
    right, early = model(text + reduced + added), model(text + added + reduced)
    assert names(compare(right, early)) == ["w"]
    average = reduced.replace(")", ', reduce_op = "avg")')
    assert compare(model(text + added), model(text + average + added)).same
    assert names(compare(model(text + added), right)) == ["g", "w"]


def test_what_hardly_changes_is_said_to_say_little() -> None:
    text = "param %w : f32[9] in $w\ninput %g : f32[9] in $g\naten.add_(%w!, %g, alpha = 1e-16)\n"
    result = compare(
        model(text), model(text.replace("1e-16", "2e-16") + "%n = aten.neg(%w) : f32[9] in $n\n")
    )
    assert "changed too little by these values to reveal a mistake: %w" in result.lines()


def test_long_tables_are_cut_in_both() -> None:
    before = with_dims(training(2), {"B": 4})
    rows = 3_000_000

    def long(graph: Graph) -> Graph:
        from irgraph.text import parse, print_graph

        text = print_graph(graph).replace("f32[100, 8]", f"f32[{rows}, 8]")
        return parse(text.replace("num_weights = 100", f"num_weights = {rows}"), "m.ir")

    one, two = long(before), long(rewrite(before, "fuse-embedding").graph)
    result = compare(one, two, limit=1 << 20)
    assert result.same
    assert result.compared[0].type == "f32[1000, 8]"
    assert "tables of 3,000,000 rows cut to 1,000" in result.notes


def test_sizes_become_small_in_both() -> None:
    text = "input %x : f32[B] in $x\n%y = aten.neg(%x) : f32[B] in $y\n"
    one, two = (with_dims(model(text), {"B": size}) for size in (2048, 4096))
    assert compare(one, two).compared[0].type == "f32[8]"
    assert compare(one, two, dims={"B": 16}).compared[0].type == "f32[16]"


def test_an_unknown_dimension_is_told() -> None:
    graph = model("input %x : f32[B] in $x\n")
    with pytest.raises(IrgraphError, match="no model has a dimension 'C'"):
        compare(graph, graph, dims={"C": 1})


def test_graphs_that_start_from_other_sizes_are_refused() -> None:
    one, two = (model(f"input %x : f32[{size}] in $x\n") for size in (9, 10))
    with pytest.raises(IrgraphError) as caught:
        compare(one, two)
    assert str(caught.value).splitlines() == [
        "m.ir: error: %x is f32[9] in one model and f32[10] in the other",
        "m.ir: note: the other model",
        "hint: graphs are compared at the same sizes: set them with --dim",
    ]


READ = """input %x : f32[4] in $x
%l = aten.sum(%x) : f32[] in $l
%c = aten.clone(%l) : f32[] in $c
"""


@pytest.mark.parametrize(
    "reads",
    [
        "aten.item(%c)\naten.item(%l)\n",
        "aten.item(%l)\naten.item(%c)\n",
        "aten.item(%c)\naten.mul_(%l!, 2.0)\naten.item(%l)\n",
    ],
)
def test_the_host_may_read_what_a_copy_was_of(reads: str) -> None:
    before = model(READ + reads)
    after = rewrite(before, "clean-copies").graph
    assert "aten.clone" not in {op.name for op in after.walk()}
    result = compare(before, after)
    assert (result.same, result.exact) == (True, True), str(result)


def test_the_host_reading_something_else_or_less_is_caught() -> None:
    reads = "%d = aten.neg(%l) : f32[] in $d\naten.item(%c)\naten.item(%l)\n"
    before = model(READ + reads)
    assert not compare(before, model(READ + reads.replace("item(%c)", "item(%d)"))).same
    assert not compare(before, model(READ + reads.replace("aten.item(%c)\n", ""))).same
