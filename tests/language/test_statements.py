"""Statements beside ``fuse``, and scripts as transactions."""

from __future__ import annotations

from pathlib import Path

import pytest

from irgraph.ir.graph import Graph
from irgraph.language import Outcome, load_script, parse_pipeline, run
from irgraph.ops.verify import verify
from irgraph.text import IrgraphError
from tests.language.models import MLP, mlp, model

COPIES = """
input %x : f32[B, 4] in $x
%a = aten.clone(%x) : f32[B, 4] in $a
%b = aten.clone(%a) : f32[B, 4] in $b
%c = aten.to(%b, dtype = f16) : f16[B, 4] in $c
%z = aten.neg(%c) : f16[B, 4] in $z
"""


def done(script: str, graph: Graph) -> Outcome:
    """Return the outcome of a script, whose graph must be sound."""
    outcome = run(load_script(script), graph)
    assert verify(outcome.graph) == []
    return outcome


def ops(graph: Graph) -> list[str]:
    """Return the names of all ops."""
    return [op.name for op in graph.walk()]


def failure(script: str, graph: Graph) -> IrgraphError:
    """Return the error of a script whose answer is no."""
    with pytest.raises(IrgraphError) as caught:
        run(load_script(script), graph)
    assert caught.value.exit_code == 1
    return caught.value


def test_remove_takes_out_all_matches_and_rewires_their_users() -> None:
    outcome = done("remove many %y = aten.clone(%x) using %x for %y", model(COPIES))
    assert ops(outcome.graph) == ["aten.to", "aten.neg"]
    assert outcome.graph.ops[0].inputs[0].name == "x"
    assert outcome.report.entries[0].replaced == 2


def test_remove_takes_the_subtree_and_empty_scopes_with_it() -> None:
    graph = model(
        "input %x : f32[4] in $x\n"
        '"a label"() {\n  aten.neg_(%x!)\n}\n%y = aten.neg(%x) : f32[4] in $y\n'
    )
    assert ops(done('remove many aten.neg_ assuming "nobody looks at it"', graph).graph) == [
        "aten.neg"
    ]


def test_one_of_several_removals_that_is_illegal_stays() -> None:
    outcome = done("remove many %y = aten.{clone,to}(%x, ...) using %x for %y", model(COPIES))
    assert ops(outcome.graph) == ["aten.to", "aten.neg"]
    assert [d.message for d in outcome.report.refused] == [
        "aten.to (%c) is not removed: %x cannot replace %c: its dtype is f32, not f16"
    ]


def test_a_single_removal_that_is_illegal_is_an_error() -> None:
    error = failure("remove %y = aten.to(%x, ...) using %x for %y", model(COPIES))
    assert str(error).splitlines()[0] == (
        "script:1:1: error: aten.to (%c) is not removed: %b cannot replace %c: its dtype is f32,"
        " not f16"
    )


def test_a_removal_shows_who_still_uses_what_it_takes_away() -> None:
    error = failure("remove aten.relu", mlp())
    assert (
        str(error).splitlines()[0]
        == "script:1:1: error: a result that this removes is still in use"
    )
    assert str(error).splitlines()[-2] == "m.ir:16:1: note: aten.addmm (%h2) uses %y1"


def test_a_removal_of_many_leaves_what_is_still_in_use() -> None:
    outcome = done("remove many aten.{relu,sum}", mlp())
    assert "aten.sum" not in ops(outcome.graph)
    assert [d.message for d in outcome.report.refused] == [
        "aten.relu (%y1) is not removed: its result %y1 is still in use"
    ]


def test_a_removal_can_assume_that_a_write_does_not_matter() -> None:
    graph = model(
        "input %x : f32[4] in $x\n%y = aten.clone(%x) : f32[4] in $y\naten.neg_(%x!)\n"
        "%z = aten.neg(%y) : f32[4] in $z\n"
    )
    script = "remove %y = aten.clone(%x) using %x for %y"
    assert "is written while %y is still in use" in str(failure(script, graph))
    outcome = done(f'{script} assuming "the sign does not matter"', graph)
    assert outcome.report.assumptions == ("aten.clone (%y): the sign does not matter",)


def test_a_removal_that_swaps_what_is_no_tensor_says_so() -> None:
    with pytest.raises(IrgraphError, match=r"%x is \[%a\], not a tensor"):
        run(
            load_script("remove %y = aten.cat(%x) using %x for %y"),
            model("input %a : f32[4] in $a\n%y = aten.cat([%a]) : f32[4] in $y\n"),
        )


def test_ops_that_were_found_can_be_used_later() -> None:
    script = 'find r = many aten.relu* where op.module ~ "*.1" expect 2 r expect no aten.bmm'
    assert [entry.matched for entry in done(script, mlp()).report.entries] == [2, 2, 0]


def test_ops_that_were_found_and_went_are_an_error() -> None:
    with pytest.raises(IrgraphError) as caught:
        run(load_script("find r = aten.sum\nremove aten.sum\nexpect 1 r"), mlp())
    assert str(caught.value).startswith(
        "script:3:10: error: 'r' names aten.sum (%s), which a statement removed"
    )


def test_an_expectation_that_fails_shows_what_was_found() -> None:
    error = failure("expect no aten.linear within forward", mlp())
    assert str(error).splitlines()[0] == "script:1:1: error: expected no aten.linear, found 2"
    assert [str(note.place) for note in error.diagnostics[0].notes] == ["m.ir:9:1", "m.ir:14:1"]


def test_an_expectation_that_finds_nothing_shows_the_nearest_miss() -> None:
    error = failure("expect 1 aten.relu(%x) where %x.rank == 3", mlp())
    assert str(error).splitlines()[-1] == (
        "m.ir:13:1: note: nearest miss: aten.relu (%y1): %x.rank == 3 is false: %x.rank is 2"
    )


def test_an_op_that_the_model_lacks_has_a_near_word() -> None:
    warning = done("remove many aten.relu6", mlp()).report.warnings[0]
    assert warning.message == (
        "nothing matches aten.relu6: the model has no aten.relu6; did you mean 'aten.relu'?"
    )


def test_a_module_that_the_model_lacks_has_a_near_word() -> None:
    warning = done('remove many module "bott"', mlp()).report.warnings[0]
    assert warning.message.endswith("the model has no such module; did you mean 'bot.1'?")


def test_lets_and_parameters_have_values_and_units() -> None:
    script = (
        'pass p(n: int, w: fraction = 50%, t: bytes = 1KiB) "P." {\n'
        "  let half = n * w\n  expect 1 aten.relu(%x) where %x.shape[0] == half and"
        " %x.nbytes * 8 == t\n}\napply p(n = 8)"
    )
    assert done(script, mlp()).report.entries[0].matched == 1


def test_a_pass_sees_its_own_names_only() -> None:
    script = 'pass p "P." { expect n aten.t }'
    with pytest.raises(IrgraphError, match="unexpected 'n'"):
        load_script(script)
    with pytest.raises(IrgraphError, match="n is not defined"):
        run(load_script('let n = 3\npass p "P." { let m = n }\napply p'), mlp())


def test_a_pass_alone_is_applied_with_its_parameters() -> None:
    script = load_script('pass p(n: int) "P." { resize B = n }')
    assert run(script, mlp(), {"n": 16}).graph.dims == {"B": 16}
    assert run(script.passes[0], mlp(), {"n": 32}).graph.dims == {"B": 32}


def test_resize_changes_every_size_that_depends() -> None:
    outcome = done("let twice = 2 resize B = twice * 16", mlp())
    assert outcome.graph.by_name["h2"].shape == (32, 8)
    assert str(outcome.report.entries[0]).splitlines()[0] == (
        "resize at script:1:15: B is 32 (was 4)"
    )


def test_repeat_stops_when_nothing_changes() -> None:
    script = "repeat at most 9 { remove %y = aten.clone(%x) using %x for %y }"
    outcome = done(script, model(COPIES))
    assert "aten.clone" not in ops(outcome.graph)
    assert [entry.replaced for entry in outcome.report.entries] == [1, 1]


def test_repeat_runs_at_most_so_often() -> None:
    script = "repeat at most 1 { remove %y = aten.clone(%x) using %x for %y }"
    assert ops(done(script, model(COPIES)).graph).count("aten.clone") == 1


def test_repeat_that_never_matches_says_so_once() -> None:
    outcome = done("repeat at most 5 { remove many aten.bmm }", mlp())
    assert len(outcome.report.warnings) == 1


def test_an_alternative_of_a_pass_that_is_not_needed_is_no_warning() -> None:
    script = (
        'pass p "P." { remove many aten.bmm remove many aten.sum }\n'
        'pass q "Q." { remove many aten.bmm }\n'
    )
    assert done(script + "apply p", mlp()).report.warnings == ()
    assert len(done(script + "apply q", mlp()).report.warnings) == 1
    assert "aten.bmm" not in str(done(script + "apply p", mlp()).report)


def test_a_pass_that_changes_nothing_says_why_in_a_line_each() -> None:
    script = 'pass q "Q." { remove many aten.bmm  remove many aten.sum(_, dim = [7]) }\napply q'
    assert str(done(script, mlp()).report).splitlines() == [
        "q: remove at script:1:15: nothing matches aten.bmm: the model has no aten.bmm",
        "q: remove at script:1:37: nothing matches aten.sum; nearest miss: aten.sum (%s): "
        "it has no argument 'dim' (m.ir:19:1)",
    ]


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("find a = aten.t", "the first of 2 matches, nothing changed"),
        ("remove aten.sum", "1 match, 1 op removed"),
        ("cast aten.addmm to bf16", "the first of 2 matches: 1 op in bf16"),
        ("insert %n = aten.neg(%x) after aten.addmm(_, %x, ...)", "the first of 2 matches, 1 op"),
        ("reorder aten.sum after aten.t", "0 of 1 op moved after the first of 2 matches"),
        ("find a = many aten.t", "2 matches, nothing changed"),
    ],
)
def test_that_a_statement_is_about_the_first_of_several_is_told(script: str, told: str) -> None:
    assert told in str(done(script, mlp()).report)


def test_a_script_that_fails_late_changes_nothing() -> None:
    graph = mlp()
    failure("remove many aten.sum expect 3 aten.relu", graph)
    assert graph == mlp()


def test_steps_of_a_pipeline_see_what_earlier_ones_made(tmp_path: Path) -> None:
    (tmp_path / "cut.irg").write_text('pass cut(name: string = "s") "Cut." { remove aten.sum }')
    (tmp_path / "none.irg").write_text('pass none "None." { expect no aten.sum }')
    outcome = run(parse_pipeline('cut(name = "t"), none'), mlp(), paths=[tmp_path])
    assert [entry.caller for entry in outcome.report.entries] == ["cut", "none"]


def test_a_model_that_uses_what_nothing_defines_is_told_so() -> None:
    graph = mlp()
    broken = Graph("b", graph.dims, tensors=graph.tensors[1:], ops=graph.ops)
    with pytest.raises(IrgraphError, match="the model uses tensors that nothing defines"):
        run(load_script("resize B = 8"), broken)


def test_a_result_that_breaks_a_rule_is_refused_with_the_rule() -> None:
    text = MLP.replace("%s = aten.sum(%h2) : f32[] in $s", "%s = irgraph.nope(%h2) : f32[] in $s")
    error = failure("resize B = 8", model(text))
    assert "the result breaks a rule of the IR: irgraph has no op of that name [schemas]" in str(
        error
    )


def test_a_report_reads_as_text() -> None:
    script = (
        "fuse many %y = aten.relu(aten.addmm(%c, %x, %w)) into %y = irgraph.addmm_relu(%c, %x, %w)"
    )
    assert str(done(script, mlp()).report) == (
        "fuse at script:1:1: 1 match, 2 ops became 1\n"
        "  legal: one group, no dependence path through the 1 op in between; placed after aten.t,"
        " which it needs"
    )
