"""``replace`` and ``insert``."""

from __future__ import annotations

import pytest

from irgraph.ir.graph import Graph
from irgraph.language import Outcome, load_script, run
from irgraph.ops.verify import verify
from irgraph.text import IrgraphError, print_op
from tests.language.models import mlp, model

CHAIN = """
input %x : f32[B, 8] in $x
%a = aten.neg(%x) : f32[B, 8] in $a in module "m"
%b = aten.abs(%a) : f32[B, 8] in $b
%v = aten.view(%b, size = [-1]) : f32[8*B] in $b
aten.relu_(%b!)
%z = aten.sum(%b) : f32[] in $z
"""


def done(script: str, graph: Graph) -> Outcome:
    outcome = run(load_script(script), graph)
    assert verify(outcome.graph) == []
    return outcome


def lines(script: str, text: str = CHAIN) -> list[str]:
    return [print_op(op).split(" from ")[0] for op in done(script, model(text)).graph.ops]


def refused(script: str, text: str = CHAIN) -> str:
    with pytest.raises(IrgraphError) as caught:
        run(load_script(script), model(text))
    assert caught.value.exit_code == 1
    diagnostic = caught.value.diagnostics[0]
    return "; ".join([diagnostic.message, *(note.message for note in diagnostic.notes)])


def test_one_op_becomes_several_with_a_new_tensor_between() -> None:
    after = lines("replace %a = aten.neg(%x) with { %m = aten.abs(%x)  %a = aten.neg(%m) }")
    assert after[:2] == [
        '%m = aten.abs(%x) : f32[B, 8] in $m in module "m"',
        '%a = aten.neg(%m) : f32[B, 8] in $a in module "m"',
    ]


def test_several_ops_become_one() -> None:
    after = lines("replace { %a = aten.neg(%x)  %b = aten.abs(%a) } with %b = aten.abs(%x)")
    assert after[0] == "%b = aten.abs(%x) : f32[B, 8] in $b"


def test_new_tensors_of_many_matches_have_names_of_their_own() -> None:
    outcome = done(
        "replace many %t = aten.t(%w) with { %n = aten.neg(%w) %q = aten.neg(%n) %t = aten.t(%w) }",
        mlp(),
    )
    names = outcome.graph.by_name
    assert {"n", "q", "n_1", "q_1"} <= set(names)
    assert names["n_1"].buffer == "n_1"


def test_what_was_made_can_be_found_by_its_name() -> None:
    script = "replace many %y = aten.relu(%x) with %y = aten.abs(%x) as made expect 1 made"
    assert done(script, mlp()).report.entries[0].replaced == 1


def test_users_of_what_is_not_made_again_are_shown() -> None:
    script = "replace aten.neg(%x) with %c = aten.abs(%x)"
    assert refused(script) == "a result that this removes is still in use; aten.abs (%b) uses %a"


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("replace %z = aten.sum(%b) with %z = aten.neg(%b)", "%z would have shape [4, 8], not []"),
        (
            "replace %v = aten.view(%b, ...) with %v = aten.mul(%b, %b)",
            "%v would have shape [4, 8], not [32]",
        ),
        (
            "replace %v = aten.view(%b, ...) with { %c = aten.clone(%b) %v = aten.flatten(%c) }",
            "%v would share the bytes of an operand of aten.flatten",
        ),
        (
            "replace aten.relu_(%b!) with %c = aten.relu(%b)",
            "the new op would not write %b, as aten.relu_ does",
        ),
    ],
)
def test_a_replacement_that_would_change_the_step_is_refused(script: str, message: str) -> None:
    assert message in refused(script)


def test_a_replacement_across_a_write_is_refused_with_the_path() -> None:
    text = (
        "input %x : f32[4] in $x\n%a = aten.neg(%x) : f32[4] in $a\naten.relu_(%a!)\n"
        "%b = aten.abs(%a) : f32[4] in $b\n"
    )
    script = "replace { aten.neg(%x)  %b = aten.abs(_) } with %b = aten.abs(%x)"
    assert "a dependence path leaves aten.neg and returns" in refused(script, text)


def test_calls_that_occur_twice_keep_their_order_as_well() -> None:
    text = (
        "input %x : f32[4] in $x\n%a = aten.neg(%x) : f32[4] in $a\naten.relu_(%a!)\n"
        "aten.mul_(%a!, other = -2.0)\naten.relu_(%a!)\n%b = aten.abs(%a) : f32[4] in $b\n"
    )
    pattern = "aten.relu_(%y!)  aten.mul_(%y!, other = %c)  aten.relu_(%y!)"
    lines(f"replace {{ {pattern} }} with {{ {pattern} }}", text)
    later = "aten.relu_(%y!)  aten.relu_(%y!)  aten.mul_(%y!, other = %c)"
    told = refused(f"replace {{ {pattern} }} with {{ {later} }}", text)
    assert "aten.mul_ would come after aten.relu_" in told


def test_what_comes_later_uses_what_was_inserted() -> None:
    after = lines("insert %n = aten.exp(%a) after %a = aten.neg(_) using %n for %a")
    assert after[1:3] == [
        '%n = aten.exp(%a) : f32[B, 8] in $n in module "m"',
        "%b = aten.abs(%n) : f32[B, 8] in $b",
    ]


def test_views_and_writes_that_come_later_are_of_what_was_inserted() -> None:
    after = lines("insert %n = aten.exp(%b) after %b = aten.abs(_) using %n for %b")
    assert after[3:] == [
        "%v = aten.view(%n, size = [-1]) : f32[8*B] in $n",
        "aten.relu_(%n!)",
        "%z = aten.sum(%n) : f32[] in $z",
    ]


def test_first_and_last_pick_one_place() -> None:
    first = done("insert %n = aten.neg(%w) before first aten.t(%w)", mlp()).graph
    last = done("insert %n = aten.neg(%w) after last aten.t(%w)", mlp()).graph
    assert first.ops[0].name == "aten.neg"
    assert last.ops[3].name == "aten.neg"


def test_nothing_comes_inside_a_composite_call() -> None:
    graph = done("insert %n = aten.neg(%t) after many %t = aten.t(_)", mlp()).graph
    assert [op.name for op in graph.ops][:2] == ["aten.linear", "aten.neg"]


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (
            "insert %n = aten.neg(%a) before %a = aten.neg(_)",
            "%a is not defined yet at that point; aten.neg defines it",
        ),
        (
            "insert %n = aten.sum(%a) after %a = aten.neg(_) using %n for %a",
            "%n cannot replace %a: its shape is [], not [B, 8]",
        ),
    ],
)
def test_an_insertion_that_is_not_legal_says_why(script: str, message: str) -> None:
    assert message in refused(script)


def test_a_write_to_a_result_that_does_not_exist_is_refused() -> None:
    """The gradient of the input is not computed here: ``%y`` is no tensor."""
    text = """
input %g : f32[5, 6] in $g
input %x : f32[5, 6] in $x
input %m : f32[6] in $m
_, %w, %b = aten.native_batch_norm_backward(%g, %x, %m, running_mean = none, \
running_var = none, save_mean = %m, save_invstd = %m, train = true, eps = 1e-05, \
output_mask = [false, true, true]) : none, f32[6] in $w, f32[6] in $b
"""
    script = "insert aten.neg_(%y!) before %y, ... = aten.native_batch_norm_backward(...)"
    assert "torch refuses it" in refused(script, text)


def test_an_older_view_that_stays_in_use_is_refused() -> None:
    text = CHAIN + "%q = aten.neg(%v) : f32[8*B] in $q\n"
    script = "insert %n = aten.exp(%b) after aten.view(%b, ...) using %n for %b"
    assert "%v shares bytes with %b and is still used; aten.neg uses %v" in refused(script, text)


def test_what_outlives_the_step_is_still_written() -> None:
    text = "param %w : f32[4] in $w\n%a = aten.neg(%w) : f32[4] in $a\naten.relu_(%w!)\n"
    script = "insert %n = aten.exp(%w) before aten.neg(%w) using %n for %w"
    assert "%w outlives the step, and %n would be written instead" in refused(script, text)


def test_an_insertion_where_nothing_matches_warns() -> None:
    outcome = done("insert aten.neg_(%x!) after many aten.bmm(%x, _)", mlp())
    assert "nothing matches aten.bmm" in outcome.report.warnings[0].message
