"""Shorter words, ``many`` within a series, modules by parameter, and what is told of ops."""

from __future__ import annotations

import pytest

from irgraph.ir.graph import Graph
from irgraph.language import load_script, run
from irgraph.text import IrgraphError
from tests.language.models import bag, mlp, model, table

COUNTS = """
state %s1 : f32[] @cpu in $s1
state %s2 : f32[] @cpu in $s2
input %x : f32[4] in $x
aten._foreach_add_([%s1!, %s2!], scalar = 1)
aten.item(%s1)
aten.item(%x)
aten.item(%s2)
%a = aten.neg(%x) : f32[4] in $a
aten.item(%s1)
"""


def ops(script: str, graph: Graph) -> list[str]:
    """Return the names of all ops after a script."""
    return [op.name for op in run(load_script(script), graph).graph.walk()]


def test_many_in_a_series_takes_all_that_stand_between_for_a_name_s_elements() -> None:
    script = (
        "remove { aten._foreach_add_(%s!, _)  many aten.item(%s)  %a = aten.neg(_) }"
        ' assuming "the counts are read elsewhere"'
    )
    assert ops(script, model(COUNTS)) == ["aten.item", "aten.item"]


def test_many_in_a_series_needs_one_at_least() -> None:
    script = "expect no { aten._foreach_add_(%s!, _)  many aten.sqrt(%s)  %a = aten.neg(_) }"
    assert ops(script, model(COUNTS)) == [op.name for op in model(COUNTS).ops]
    with pytest.raises(IrgraphError, match=r"there is no aten.sqrt\(%s\) in between"):
        ops(script.replace("expect no", "expect 1"), model(COUNTS))


def test_a_column_by_itself_is_a_list() -> None:
    script = (
        "fuse many %y, ... = aten.embedding_bag(%w, %i, %o)"
        " into *%y = irgraph.batched_embedding(*%w, *%i, *%o)"
    )
    graph = model(table(0) + table(1) + bag(0) + bag(1))
    assert ops(script, graph) == ["irgraph.batched_embedding"]


def test_copies_are_called_by_their_direction() -> None:
    graph = model(
        "input %h : f32[4] @cpu in $h\n"
        "%x = aten.to(%h, device = @gpu0) : f32[4] in $x {\n"
        "  %x = aten._to_copy(%h, device = @gpu0) : f32[4] in $x\n}\n"
        "%y = aten.to(%x, dtype = f16) : f16[4] in $y\n"
        "%z = aten._to_copy(%y, device = @cpu) : f16[4] @cpu in $z\n"
    )
    ops("expect 1 memcpy.h2d(%s, ...)  expect 1 memcpy.d2h  expect 2 memcpy.*", graph)


def test_a_layer_norm_without_a_shape_is_over_the_last_axis() -> None:
    script = "insert %n = aten.layer_norm(%y) after %y = aten.relu(_)"
    after = run(load_script(script), mlp()).graph
    (norm,) = [op for op in after.walk() if op.name == "aten.layer_norm"]
    assert norm.attributes == {"normalized_shape": (8,)}


def test_a_reduction_over_all_processes_is_the_call_that_launches_it() -> None:
    after = run(load_script("insert nccl.all_reduce(%y!) after %y = aten.relu(_)"), mlp()).graph
    (op,) = [op for op in after.walk() if op.name == "c10d.allreduce_"]
    assert op.written == {"y1"}
    assert op.attributes["reduce_op"] == "sum"


def test_a_module_is_its_forward_pass_unless_another_is_named() -> None:
    graph = model(
        'input %x : f32[4] in $x\n%a = aten.neg(%x) : f32[4] in $a in module "bot"\n'
        '%b = aten.neg(%a) : f32[4] in $b in module "bot" phase backward\n'
    )
    ops('expect 1 module "bot"  expect 1 module "bot" within backward', graph)


def test_a_module_may_be_a_parameter() -> None:
    script = 'pass p(at: string = "bot") "P." { expect 2 module at }'
    ops(f"{script} apply p", mlp())
    with pytest.raises(IrgraphError, match="expected 2 module at, found 0"):
        ops(f'{script} apply p(at = "side")', mlp())


def test_zero_has_no_unit() -> None:
    ops("expect no aten.relu where op.bytes == 0", mlp())


def test_what_undoes_itself_goes_although_its_first_half_is_used() -> None:
    graph = model(
        "input %x : f32[4, 5] in $x\n%t = aten.t(%x) : f32[5, 4; 1, 5] in $x\n"
        "%u = aten.t(%t) : f32[4, 5] in $x\n%a = aten.neg(%u) : f32[4, 5] in $a\n"
        "%b = aten.neg(%t) : f32[5, 4; 1, 5] in $b\n"
    )
    script = "remove { %t = aten.t(%x)  %y = aten.t(%t) } using %x for %y"
    assert ops(script, graph) == ["aten.t", "aten.neg", "aten.neg"]


DEAD = """
input %x : f32[4] in $x
param %w : f32[4] in $w
aten.to(%x, dtype = f32)
%e = aten.empty(size = [4]) : f32[4] in $e
%v = aten.view(%x, size = [2, 2]) : f32[2, 2] in $x
%r = aten.rand(size = [4]) : f32[4] in $r
%a = aten.neg(%x) : f32[4] in $a
aten.relu_(%a!)
%c = aten.to(%x, device = @cpu) : f32[4] @cpu in $c
aten.item(%x)
aten.add_(%w!, %x)
autograd.AccumulateGrad(%x) phase backward {
  %g = aten.neg(%x) : f32[4] in $g
}
"""


def test_idle_ops_returned_what_they_were_given_or_made_unused_memory() -> None:
    ops("expect 2 aten.* where op.idle", model(DEAD))


def test_unread_results_are_those_that_only_the_caller_could_miss() -> None:
    found = run(load_script("remove many aten.* where op.unread"), model(DEAD)).graph
    assert [op.name for op in found.leaves()] == [
        "aten.to",
        "aten.rand",
        "aten.to",
        "aten.item",
        "aten.add_",
        "aten.neg",
    ]


CHAIN = """
input %x : f32[4] in $x
%a = aten.neg(%x) : f32[4] in $a
aten.relu_(%a!)
%b = aten.linear(%a, %a) : f32[4] in $b {
  %t = aten.t(%a) : f32[4] in $a
  %b = aten.mv(%t, %a) : f32[4] in $b
}
autograd.NegBackward0(%b) phase backward {
  %c = aten.neg(%b) : f32[4] in $c
}
aten.relu_(%b!)
%d = aten.exp(%b) : f32[4] in $d
"""


LINEAR = ["aten.neg", "aten.relu_", "aten.linear", "aten.t", "aten.mv", "aten.relu_"]


@pytest.mark.parametrize(
    ("last", "left"),
    [
        ("", []),
        ("aten.item(%d)\n", [*LINEAR, "aten.exp", "aten.item"]),
        ("%e = mine.unknown(%x) : f32[4] in $e\n", [*LINEAR, "mine.unknown"]),
    ],
)
def test_what_only_removed_ops_read_goes_with_them(last: str, left: list[str]) -> None:
    script = "remove many aten.* where op.unread"
    assert ops(script, model(CHAIN + last)) == left


def test_a_loop_that_ends_before_its_work_does_says_so() -> None:
    made = (f"%y{k} = aten.neg(%x) : f32[4] in $y{k}\n" for k in range(3))
    text = "input %x : f32[4] in $x\n" + "".join(made)
    one = "remove %y = aten.neg(%x)"
    for most, warned in ((2, True), (4, False)):
        report = run(load_script(f"repeat at most {most} {{ {one} }}"), model(text)).report
        told = [w.message for entry in report.entries for w in entry.warnings]
        assert any("still changed something" in message for message in told) == warned
