"""What ``fuse`` makes, what it refuses and why."""

from __future__ import annotations

import pytest

from irgraph.ir.graph import Graph
from irgraph.language import Outcome, load_script, run
from irgraph.ops.verify import verify
from irgraph.text import IrgraphError, parse, print_graph, print_op
from tests.language.models import MLP, bag, mlp, model, table

EPILOGUE = "many %y = aten.relu(aten.addmm(%c, %x, %w)) into %y = irgraph.addmm_relu(%c, %x, %w)"
BATCH = (
    "fuse many %y, ... = aten.embedding_bag(%w, %i, %o, mode = %m, ...) "
    "group by %w.shape[1], %w.dtype, %m having count >= 2 "
    "into [*%y] = irgraph.batched_embedding([*%w], [*%i], [*%o], mode = %m)"
)


def fused(script: str, graph: Graph) -> Outcome:
    """Return the outcome of a script, whose graph must be sound."""
    outcome = run(load_script(script), graph)
    assert verify(outcome.graph) == []
    assert parse(print_graph(outcome.graph)) == outcome.graph
    return outcome


def ops(graph: Graph) -> list[str]:
    """Return the names of all ops."""
    return [op.name for op in graph.walk()]


def why(outcome: Outcome) -> list[str]:
    """Return the refusals."""
    return [diagnostic.message for diagnostic in outcome.report.refused]


def two(between: str = "", last: str = "%i1") -> Graph:
    """Return two lookups with something between."""
    return model(table(0) + table(1) + bag(0) + between + bag(1, indices=last))


def test_a_fused_op_keeps_names_types_and_says_what_it_replaced() -> None:
    outcome = fused(f"fuse {EPILOGUE}", mlp())
    (made,) = [op for op in outcome.graph.walk() if op.name == "irgraph.addmm_relu"]
    assert print_op(made) == (
        "%y1 = irgraph.addmm_relu(%c1, %x0, %t1) : f32[B, 8] in $y1"
        ' in module "bot" from "script: 1 x aten.addmm, 1 x aten.relu (et#3 et#4)"'
    )


def test_what_is_left_of_a_composite_moves_up_and_empty_scopes_go() -> None:
    assert ops(fused(f"fuse {EPILOGUE}", mlp()).graph)[:3] == [
        "aten.t",
        "irgraph.addmm_relu",
        "aten.linear",
    ]


def test_a_write_in_place_fuses_into_the_result() -> None:
    script = (
        "fuse many { %h = aten.addmm(%c, %x, %w)  aten.relu_(%h!) } "
        "into %h = irgraph.addmm_relu(%c, %x, %w)"
    )
    outcome = fused(script, mlp())
    assert ops(outcome.graph)[-3:] == ["aten.t", "irgraph.addmm_relu", "aten.sum"]
    assert outcome.report.entries[0].replaced == 2


def test_the_graph_that_was_given_stays_as_it_is() -> None:
    graph = mlp()
    fused(f"fuse {EPILOGUE}", graph)
    assert graph == mlp()


def test_siblings_become_one_op_in_launch_order() -> None:
    (made,) = fused(BATCH, two()).graph.ops
    assert print_op(made) == (
        "[%y0, %y1] = irgraph.batched_embedding([%w0, %w1], [%i0, %i1], [%o0, %o1])"
        " : [f32[B, 8] in $y0, f32[B, 8] in $y1]"
        ' in module "tables" from "script: 2 x aten.embedding_bag"'
    )


def test_attributes_that_are_defaults_are_left_out_and_others_kept() -> None:
    graph = model("".join(table(k) for k in range(2)) + bag(0, ", mode = 1") + bag(1, ", mode = 1"))
    (made,) = fused(BATCH, graph).graph.ops
    assert made.attributes == {"mode": 1}


def test_groups_form_by_their_keys() -> None:
    graph = model(
        "".join(table(k) for k in range(2))
        + "".join(table(k, width=16) for k in range(2, 5))
        + table(5, dtype="f16")
        + bag(0)
        + bag(2, width=16)
        + bag(1)
        + bag(3, width=16)
        + bag(4, width=16)
        + bag(5, dtype="f16")
    )
    outcome = fused(BATCH, graph)
    assert [len(op.outputs) for op in outcome.graph.ops] == [2, 3, 4]
    assert why(outcome) == [
        "aten.embedding_bag (%y5) is not fused: its group (%w.shape[1] = 8, %w.dtype = f16,"
        " %m = 0) is left out: count >= 2 is false: count is 1"
    ]


def test_the_new_op_stands_where_its_last_operand_is_defined() -> None:
    between = "%q = aten.neg(%y0) : f32[B, 8] in $q\n%j = aten.abs(%i1) : i64[20] in $j\n"
    outcome = fused(BATCH, two(between, "%j"))
    assert ops(outcome.graph) == ["aten.abs", "irgraph.batched_embedding", "aten.neg"]
    assert outcome.report.entries[0].legal == (
        "2 independent groups, no dependence path through the 2 ops in between; "
        "placed after aten.abs, which it needs; 1 consumer moves after it",
    )


def test_what_depends_on_a_moved_consumer_moves_with_it() -> None:
    between = (
        "%q = aten.neg(%y0) : f32[B, 8] in $q\n"
        "%r = aten.neg(%q) : f32[B, 8] in $r\n"
        "%j = aten.abs(%i1) : i64[20] in $j\n"
    )
    graph = fused(BATCH, two(between, "%j")).graph
    assert [op.outputs[0].name for op in graph.ops] == ["j", "y0", "q", "r"]


def test_consumers_in_a_scope_move_with_the_scope_and_without_members() -> None:
    between = (
        "autograd.X(%y0) {\n  %q = aten.neg(%y0) : f32[B, 8] in $q\n}\n"
        "%j = aten.abs(%i1) : i64[20] in $j\n"
    )
    graph = fused(BATCH, two(between, "%j")).graph
    assert ops(graph) == ["aten.abs", "irgraph.batched_embedding", "autograd.X", "aten.neg"]


def test_lookups_that_feed_one_another_are_fused_level_by_level() -> None:
    parts = [table(k) for k in range(4)]
    parts += [bag(0), "%j = aten.take(%y0, %i0) : i64[20] in $j\n", bag(1, indices="%j")]
    parts += [bag(2), bag(3, indices="%j")]
    outcome = fused(BATCH, model("".join(parts)))
    assert [[t.name for t in op.outputs] for op in outcome.graph.ops] == [
        ["y0", "y2"],
        ["j"],
        ["y1", "y3"],
    ]


def test_what_depends_on_the_group_and_is_too_few_says_why() -> None:
    between = "%j = aten.to(%y0, dtype = i64) : i64[20] in $j\n"
    outcome = run(load_script(BATCH), two(between, "%j"))
    first, second = why(outcome)
    assert first == (
        "aten.embedding_bag (%y0) is not fused: its group (%w.shape[1] = 8, %w.dtype = f32,"
        " %m = 0) is left out: count >= 2 is false: count is 1; the others depend on it or it on"
        " them"
    )
    notes = [note.message for note in outcome.report.refused[0].notes]
    assert notes == [
        "aten.to reads %y0 ($y0) of aten.embedding_bag: uses the name it defines",
        "aten.embedding_bag reads %j ($j) of aten.to: uses the name it defines",
    ]
    assert str(outcome.report.refused[0].notes[0].place) == "m.ir:10:1"
    assert second.startswith("aten.embedding_bag (%y1) is not fused")


def test_a_path_that_leaves_and_returns_is_shown() -> None:
    graph = model(
        "input %x : f32[4, 4] in $x\n"
        "%h = aten.addmm(%x, %x, %x) : f32[4, 4] in $h\n"
        "%q = aten.neg(%h) : f32[4, 4] in $q\n"
        "%y = aten.add(%h, %q) : f32[4, 4] in $y\n"
    )
    script = (
        "fuse { %h = aten.addmm(%c, %a, _)  %y = aten.add(%h, %q) } "
        "into %y = aten.addmm(%c, %a, %q)"
    )
    with pytest.raises(IrgraphError) as caught:
        run(load_script(script), graph)
    assert caught.value.exit_code == 1
    assert str(caught.value).splitlines()[0] == (
        "script:1:1: error: aten.addmm (%h) is not fused: a dependence path leaves aten.addmm and"
        " returns to the fused ops"
    )
    assert str(caught.value).splitlines()[-2:] == [
        "m.ir:5:1: note: aten.neg reads %h ($h) of aten.addmm: uses the name it defines",
        "m.ir:6:1: note: aten.add reads %q ($q) of aten.neg: uses the name it defines",
    ]


OPAQUE = "custom.opaque(%x0)\n"


def test_an_opaque_op_between_stops_a_fusion() -> None:
    outcome = run(load_script(BATCH), two('"an opaque.call"(%o0)\n'))
    assert outcome.graph.ops[1].name == "an opaque.call"
    assert "the others depend on it" in why(outcome)[0]


def opaque() -> Graph:
    """Return a product and its activation with an opaque op between."""
    text = MLP.replace("%y1 = aten.relu", OPAQUE + "%y1 = aten.relu")
    return model(text)


def test_an_assumption_passes_one_op_and_is_told() -> None:
    script = f'fuse {EPILOGUE} assuming "custom.opaque writes nothing"'
    with pytest.raises(IrgraphError, match=r"m\.ir:13:1: note: custom\.opaque comes after"):
        run(load_script(f"fuse {EPILOGUE.removeprefix('many ')}"), opaque())
    outcome = fused(script, opaque())
    assert outcome.report.assumptions == ("custom.opaque (%x0): custom.opaque writes nothing",)
    (made,) = [op for op in outcome.graph.walk() if op.name == "irgraph.addmm_relu"]
    assert made.notes == {"assuming": "custom.opaque writes nothing"}
    assert str(outcome.report).endswith("the result rests on 1 assumption")


def test_an_assumption_that_is_not_needed_is_not_told() -> None:
    assert fused(f'fuse {EPILOGUE} assuming "all is well"', mlp()).report.assumptions == ()


def test_one_assumption_does_not_pass_two_ops() -> None:
    text = MLP.replace("%y1 = aten.relu", OPAQUE + OPAQUE + "%y1 = aten.relu")
    outcome = run(load_script(f'fuse {EPILOGUE} assuming "they write nothing"'), model(text))
    assert outcome.report.made == 0
    assert len(why(outcome)) == 1


def test_a_result_that_others_need_is_not_dropped() -> None:
    graph = model(MLP + "%z = aten.neg(%h1) : f32[B, 8] in $z\n")
    outcome = fused(f"fuse {EPILOGUE}", graph)
    assert outcome.graph == graph
    assert why(outcome) == [
        "aten.relu (%y1) is not fused: its result %h1, which the new op does not make,"
        " is still in use"
    ]
    assert outcome.report.refused[0].notes[0].message == "aten.neg uses %h1"


def test_without_many_a_result_that_others_need_is_an_error() -> None:
    graph = model(MLP + "%z = aten.neg(%h1) : f32[B, 8] in $z\n")
    with pytest.raises(IrgraphError, match="a result that this removes is still in use") as caught:
        run(load_script(f"fuse {EPILOGUE.removeprefix('many ')}"), graph)
    assert caught.value.exit_code == 1


def test_a_use_may_dangle_until_the_script_ends() -> None:
    graph = model(MLP + "%z = aten.neg(%h1) : f32[B, 8] in $z\n")
    outcome = fused(f"fuse {EPILOGUE} remove %z = aten.neg(_)", graph)
    assert outcome.report.made == 1
    assert "aten.neg" not in ops(outcome.graph)


def test_an_argument_behind_the_dots_is_not_dropped() -> None:
    graph = model("".join(table(k) for k in range(3)) + bag(0) + bag(1) + bag(2, ", sparse = true"))
    outcome = fused(BATCH, graph)
    assert len(outcome.graph.ops[0].outputs) == 2
    assert why(outcome) == [
        "aten.embedding_bag (%y2) is not fused: sparse = true would be dropped: it is not the"
        " default"
    ]


def test_dots_in_the_template_carry_what_they_stand_for() -> None:
    graph = model(
        "input %x : f32[4, 4] in $x\n"
        "%h = aten.addmm(%x, %x, %x, beta = 0.5) : f32[4, 4] in $h\n"
        "%y = aten.relu(%h) : f32[4, 4] in $y\n"
    )
    script = (
        "fuse { %h = aten.addmm(%c, %a, %b, ...)  %y = aten.relu(%h) } "
        "into %y = irgraph.addmm_relu(%c, %a, %b, ...)"
    )
    assert fused(script, graph).graph.ops[0].attributes == {"beta": 0.5}


def test_matches_that_differ_where_one_value_is_needed_are_refused() -> None:
    graph = model("".join(table(k) for k in range(2)) + bag(0) + bag(1, ", mode = 1"))
    script = BATCH.replace(", %m having", " having")
    assert why(run(load_script(script), graph)) == [
        "aten.embedding_bag (%y0) and 1 more are not fused: the matches differ in %m (0 and 1):"
        " group by it"
    ]


def test_a_group_key_without_a_value_leaves_the_match_out() -> None:
    script = BATCH.replace("%w.shape[1],", "%w.shape[2],")
    assert why(run(load_script(script), two())) == [
        f"aten.embedding_bag (%y{k}) is not fused: 2 is out of range: %w.shape has 2 items"
        for k in range(2)
    ]


def test_what_the_members_write_the_new_op_must_write() -> None:
    graph = model(
        "input %x : f32[4, 4] in $x\nstate %s : f32[4, 4] in $s\n"
        "aten.add_(%s!, %x)\n%y = aten.relu(%s) : f32[4, 4] in $y\n"
    )
    script = "fuse many { aten.add_(%s!, %x)  %y = aten.relu(%s) } into %y = aten.add(%s, %x)"
    assert why(run(load_script(script), graph)) == [
        "aten.add_ (%s) is not fused: the new op would not write %s, as aten.add_ does"
    ]


def test_what_the_members_read_the_new_op_must_take() -> None:
    graph = model(
        "input %x : f32[4, 4] in $x\ninput %z : f32[4, 4] in $z\n"
        "%y = aten.linear(%x, %x) : f32[4, 4] in $y {\n"
        "  %y = aten.mm(%x, %z) : f32[4, 4] in $y\n}\n"
    )
    script = "fuse many %y = aten.linear(%x, %w) into %y = aten.mm(%x, %w)"
    assert why(run(load_script(script), graph)) == [
        "aten.linear (%y) is not fused: the new op would not take %z, which aten.linear reads"
    ]


def test_a_result_must_come_from_what_is_fused() -> None:
    script = "fuse many %y = aten.relu(%h) into %h = aten.relu(%y)"
    assert "%h1 is not a result of the matched ops" in why(run(load_script(script), mlp()))[0]


def test_what_needs_and_what_is_needed_in_one_scope_cannot_be_parted() -> None:
    between = (
        "autograd.X(%y0) {\n  %q = aten.neg(%y0) : f32[B, 8] in $q\n"
        "  %j = aten.abs(%i1) : i64[20] in $j\n}\n"
    )
    outcome = run(load_script(BATCH), two(between, "%j"))
    assert why(outcome) == [
        "aten.embedding_bag (%y0) and 1 more are not fused: the ops that the new op needs"
        " cannot be separated from those that need it"
    ]
    assert [note.message for note in outcome.report.refused[0].notes] == [
        "aten.neg reads %y0 ($y0) of aten.embedding_bag: uses the name it defines",
        "aten.embedding_bag reads %j ($j) of aten.abs: uses the name it defines",
    ]


def test_what_is_made_can_be_named_and_counted() -> None:
    script = f"{BATCH} as lookup\nexpect 1 lookup\nexpect 1 irgraph.batched_embedding"
    assert fused(script, two()).report.made == 1


def test_nothing_matched_warns_with_the_nearest_miss() -> None:
    outcome = fused("fuse many %y = aten.relu(aten.mm(%a, %b)) into %y = aten.mm(%a, %b)", mlp())
    (warning,) = outcome.report.warnings
    assert warning.message == "nothing matches aten.relu"
    assert [note.message for note in warning.notes] == [
        "nearest miss: aten.relu (%y1): %h1 is not made by aten.mm"
    ]
    assert str(warning.notes[0].place) == "m.ir:13:1"


def test_a_fused_op_whose_operands_do_not_fit_is_refused() -> None:
    graph = model(
        "input %x : f32[4] in $x\n"
        "input %z : f32[2] in $z\n"
        "%a = aten.neg(%x) : f32[4] in $a\n"
        "%b = aten.neg(%z) : f32[2] in $b\n"
    )
    script = "fuse { aten.neg(%x)  %b = aten.neg(%y) } into %b = aten.add(%x, %y)"
    with pytest.raises(IrgraphError, match=r"not fused: aten\.add would be wrong: its operands"):
        run(load_script(script), graph)
