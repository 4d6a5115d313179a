"""``cast``: casts at the border, those that meet cancel, writes make them void."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from irgraph.execute import compare, execute
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor
from irgraph.ops.verify import verify
from irgraph.text import print_op
from irgraph.verbs import Casting, RefusedError, cast, check_cast
from irgraph.verbs.cast import cast_operand, check_operand
from tests.language.models import mlp, model
from tests.verbs.test_fuse_verb import graph_of

TWO = """
input %x : f32[B, 8] in $x
param %w : f32[8, 8] in $w
%a = aten.mm(%x, %w) : f32[B, 8] in $a
%b = aten.mm(%a, %w) : f32[B, 8] in $b
%s = aten.sum(%b) : f32[] in $s
"""


def done(text: str, *names: str, to: str = "bf16") -> Casting:
    graph = model(text)
    ops = [op for op in graph.walk() if op.name in {f"aten.{name}" for name in names}]
    for op in ops:
        check_cast(graph, op, to)
    found = cast(graph, ops, to)
    assert verify(found.graph) == []
    return found


def lines(found: Casting) -> list[str]:
    return [print_op(op) for op in found.graph.ops]


def test_operands_are_cast_once_and_results_back() -> None:
    found = done(TWO, "mm")
    assert lines(found) == [
        "%x_bf16 = aten._to_copy(%x, dtype = bf16) : bf16[B, 8] in $x_bf16",
        "%w_bf16 = aten._to_copy(%w, dtype = bf16) : bf16[8, 8] in $w_bf16",
        "%a_bf16 = aten.mm(%x_bf16, %w_bf16) : bf16[B, 8] in $a_bf16",
        "%b_bf16 = aten.mm(%a_bf16, %w_bf16) : bf16[B, 8] in $b_bf16",
        "%b = aten._to_copy(%b_bf16, dtype = f32) : f32[B, 8] in $b",
        "%s = aten.sum(%b) : f32[] in $s",
    ]
    assert (len(found.ops), found.casts, found.unneeded_casts) == (2, 3, 3)


def test_a_result_that_others_use_is_cast_back() -> None:
    found = done(TWO + "%q = aten.neg(%a) : f32[B, 8] in $q\n", "mm")
    assert "%a = aten._to_copy(%a_bf16, dtype = f32) : f32[B, 8] in $a" in lines(found)


def test_a_result_that_nobody_uses_leaves_the_step_in_its_type() -> None:
    found = done(TWO.replace("%s = aten.sum(%b) : f32[] in $s\n", ""), "mm")
    assert lines(found)[-1] == "%b = aten._to_copy(%b_bf16, dtype = f32) : f32[B, 8] in $b"


@pytest.mark.parametrize("write", ["aten.relu_(%w!)", "my.opaque()"])
def test_what_was_written_is_cast_anew(write: str) -> None:
    found = done(TWO.replace("%b =", f"{write}\n%b ="), "mm")
    casts = [line for line in lines(found) if "_to_copy(%w," in line]
    assert len(casts) == 2


def test_a_result_that_is_written_in_place_is_taken_from_there() -> None:
    found = done(TWO.replace("%b =", "aten.relu_(%a!)\n%b ="), "mm")
    assert "%a_bf16_1 = aten._to_copy(%a, dtype = bf16) : bf16[B, 8] in $a_bf16_1" in lines(found)


def test_casts_that_stand_there_meet_new_ones() -> None:
    wide = (
        "input %n : bf16[B, 8] in $n\nparam %w : f32[8, 8] in $w\n"
        "%x = aten._to_copy(%n, dtype = f32) : f32[B, 8] in $x\n"
        "%v = aten._to_copy(%w, dtype = bf16) : bf16[8, 8] in $v\n"
        "%a = aten.mm(%x, %w) : f32[B, 8] in $a\n%s = aten.sum(%a) : f32[] in $s\n"
    )
    found = done(wide, "mm")
    assert lines(found) == [
        "%v = aten._to_copy(%w, dtype = bf16) : bf16[8, 8] in $v",
        "%a_bf16 = aten.mm(%n, %v) : bf16[B, 8] in $a_bf16",
        "%a = aten._to_copy(%a_bf16, dtype = f32) : f32[B, 8] in $a",
        "%s = aten.sum(%a) : f32[] in $s",
    ]
    assert (found.casts, found.unneeded_casts) == (1, 3)
    written = done(wide.replace("%a =", "aten.relu_(%n!)\n%a ="), "mm")
    assert "%x_bf16 = aten._to_copy(%x, dtype = bf16) : bf16[B, 8] in $x_bf16" in lines(written)
    narrower = done(wide.replace("bf16", "f64"), "mm")
    assert "%x_bf16 = aten._to_copy(%x, dtype = bf16) : bf16[B, 8] in $x_bf16" in lines(narrower)


def test_a_second_cast_takes_what_the_first_one_made() -> None:
    graph = model(TWO)
    first, second = (op for op in graph.walk() if op.name == "aten.mm")
    once = cast(graph, [first], "bf16").graph
    (left,) = (op for op in once.walk() if op.name == "aten.mm" and op.outputs[0].name == "b")
    twice = cast(once, [left], "bf16")
    both = cast(graph, [first, second], "bf16")
    assert [print_op(op) for op in twice.graph.ops] == lines(both)


def test_a_composite_call_is_cast_with_what_it_called() -> None:
    graph = mlp()
    addmm = next(op for op in graph.walk() if op.name == "aten.addmm")
    found = cast(graph, [addmm], "f16")
    assert verify(found.graph) == []
    (linear,) = found.ops
    assert [op.outputs[0].dtype for op in linear.walk()] == ["f16"] * 3
    view = linear.body[0].outputs[0]
    assert view.buffer == linear.body[0].inputs[0].buffer == "w1_f16"


def test_a_view_that_others_use_is_taken_again() -> None:
    text = (
        "input %x : f32[8, 8] in $x\nparam %w : f32[8, 8] in $w\n"
        "%y = aten.linear(%x, %w) : f32[8, 8] in $y {\n"
        "  %t = aten.t(%w) : f32[8, 8; 1, 8] in $w\n  %y = aten.mm(%x, %t) : f32[8, 8] in $y\n}\n"
        "%z = aten.mm(%y, %t) : f32[8, 8] in $z\n"
    )
    found = done(text, "linear")
    assert "%t = aten.t(%w) : f32[8, 8; 1, 8] in $w" in lines(found)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "aten.relu_(%x!)\n",
            "it writes %x in place, which fixes its type",
        ),
        (
            "%y = aten.argmax(%x) : i64[] in $y\n",
            "it has no floating-point result",
        ),
        (
            "%y = my.op(%x) : f32[4] in $y\n",
            "its result types in bf16 are unknown: my.op has no schema",
        ),
        (
            "%y = aten.to(%x, dtype = f64) : f64[4] in $y\n",
            "aten.to does not compute in bf16; it takes f64",
        ),
    ],
)
def test_ops_that_cannot_be_cast_say_why(text: str, message: str) -> None:
    graph = model("input %x : f32[4] in $x\n" + text)
    with pytest.raises(RefusedError) as caught:
        check_cast(graph, graph.ops[0], "bf16")
    assert caught.value.reason.startswith(message)


def test_a_view_with_gaps_is_copied_in_its_order_of_axes() -> None:
    found = done(
        """
        input %x : f32[5, 6] in $x
        %t = aten.transpose(%x, dim0 = 0, dim1 = 1) : f32[6, 5; 1, 6] in $x
        %s = aten.slice(%t, dim = 0, start = 0, end = 2) : f32[2, 5; 1, 6] in $x
        %a = aten.relu(%s) : f32[2, 5; 1, 2] in $a
        """,
        "relu",
        to="f16",
    )
    assert lines(found)[2:4] == [
        "%s_f16 = aten._to_copy(%s, dtype = f16) : f16[2, 5; 1, 2] in $x_f16",
        "%a_f16 = aten.relu(%s_f16) : f16[2, 5; 1, 2] in $a_f16",
    ]


def test_tensors_with_gaps_are_not_dense() -> None:
    assert Tensor("x", "f32", (2, 3), "x", (1, 2)).dense
    assert not Tensor("x", "f32", (2, 3), "x", (4, 1)).dense


VIEWED = """
input %x : f32[8, 8] in $x
param %w : f32[8, 8] in $w
%t = aten.t(%w) : f32[8, 8; 1, 8] in $w
{between}%y = aten.mm(%x, %t) : f32[8, 8] in $y
"""


def test_a_view_follows_the_op_that_reads_it() -> None:
    found = done(VIEWED.format(between=""), "t", "mm")
    assert lines(found) == [
        "%w_bf16 = aten._to_copy(%w, dtype = bf16) : bf16[8, 8] in $w_bf16",
        "%t_bf16 = aten.t(%w_bf16) : bf16[8, 8; 1, 8] in $w_bf16",
        "%x_bf16 = aten._to_copy(%x, dtype = bf16) : bf16[8, 8] in $x_bf16",
        "%y_bf16 = aten.mm(%x_bf16, %t_bf16) : bf16[8, 8] in $y_bf16",
        "%y = aten._to_copy(%y_bf16, dtype = f32) : f32[8, 8] in $y",
    ]
    assert (len(found.ops), found.casts, found.unread) == (2, 3, ())


@pytest.mark.parametrize("names", [("t",), ("t", "mm")])
def test_a_view_of_what_is_written_before_it_is_read_stays(names: tuple[str, ...]) -> None:
    found = done(VIEWED.format(between="aten.mul_(%w!, other = 0.5)\n"), *names)
    assert [op.name for op in found.unread] == ["aten.t"]
    assert lines(found)[0] == "%t = aten.t(%w) : f32[8, 8; 1, 8] in $w"
    assert not any("%t_bf16 = aten.t" in line for line in lines(found))


def castable(graph: Graph, op: Op) -> bool:
    try:
        check_cast(graph, op, "f16")
    except RefusedError:
        return False
    return True


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**9))
def test_random_models_stay_sound_and_in_order(seed: int) -> None:
    graph = graph_of(seed | 1)
    ops = [op for op in graph.leaves() if op.name == "aten.neg" and castable(graph, op)]
    found = cast(graph, ops, "f16")
    assert verify(found.graph) == []
    kept = [op.name for op in found.graph.leaves() if op.name != "aten._to_copy"]
    assert kept == [op.name for op in graph.leaves() if op.name != "aten._to_copy"]


MIXED = """
input %x : f32[B, 8] in $x
param %w : f32[8] in $w
%a = aten.mul(%x, %w) : f32[B, 8] in $a
%b = aten.add(%a, %w) : f32[B, 8] in $b
"""


def mixed(text: str, name: str = "w", to: str = "bf16") -> Casting:
    graph = model(text)
    chosen = [(op, t) for op in graph.walk() for t in op.inputs if t.name == name]
    for pair in chosen:
        check_operand(graph, *pair, to)
    found = cast_operand(graph, chosen, to)
    assert verify(found.graph) == []
    return found


def test_one_operand_is_cast_once_and_results_keep_their_types() -> None:
    found = mixed(MIXED)
    assert lines(found) == [
        "%w_bf16 = aten._to_copy(%w, dtype = bf16) : bf16[8] in $w_bf16",
        "%a = aten.mul(%x, %w_bf16) : f32[B, 8] in $a",
        "%b = aten.add(%a, %w_bf16) : f32[B, 8] in $b",
    ]
    assert (found.casts, found.unneeded_casts) == (1, 1)


def test_one_operand_rounds_as_torch_does_and_the_others_do_not() -> None:
    torch.manual_seed(0)
    x, w = torch.randn(64, 8), torch.randn(8)
    found = execute(mixed(MIXED).graph, {"x": x, "w": w}, dims={"B": 64})["b"]
    assert torch.equal(found, x * w.bfloat16() + w.bfloat16())
    assert compare(model(MIXED), mixed(MIXED).graph).same


def test_an_operand_that_is_written_is_cast_again() -> None:
    written = MIXED.replace("%b =", "aten.relu_(%w!)\n%b =")
    graph = model(written)
    chosen = [(op, graph.by_name["w"]) for op in graph.ops if op.name != "aten.relu_"]
    found = cast_operand(graph, chosen, "bf16")
    assert found.casts == 2
    assert compare(graph, found.graph).same


@pytest.mark.parametrize(
    ("text", "name", "to", "why"),
    [
        (TWO, "w", "bf16", "element-wise"),
        (MIXED, "w", "tf32", "between f64"),
        (MIXED, "w", "f64", "results would be f64"),
        (MIXED + "aten.mul_(%a!, %w)\n", "w", "bf16", "element-wise"),
    ],
)
def test_operands_that_cannot_differ_are_refused(text: str, name: str, to: str, why: str) -> None:
    with pytest.raises(RefusedError, match=why):
        mixed(text, name, to)
