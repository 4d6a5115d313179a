"""``reorder`` and ``parallelize`` as statements."""

from __future__ import annotations

import pytest

from irgraph.ir.graph import Graph
from irgraph.language import Outcome, load_script, run
from irgraph.ops.verify import verify
from irgraph.text import IrgraphError
from tests.language.models import mlp, model

COPY = """
input %s : f32[B, 8] @cpu in $s
param %w : f32[8, 8] in $w
%a = aten.relu(%w) : f32[8, 8] in $a in module "bot.0"
%b = aten.neg(%a) : f32[8, 8] in $b in module "bot.1"
%x = aten.to(%s, device = @gpu0) : f32[B, 8] in $x
%y = aten.mm(%x, %b) : f32[B, 8] in $y
"""


def done(script: str, graph: Graph) -> Outcome:
    outcome = run(load_script(script), graph)
    assert verify(outcome.graph) == []
    return outcome


def order(outcome: Outcome) -> list[str]:
    names = [f"{op.name}{'@' if op.stream else ''}{op.stream}" for op in outcome.graph.ops]
    return [name.removeprefix("aten.") for name in names]


def test_a_copy_starts_early_on_a_stream_of_its_own() -> None:
    outcome = done("reorder many aten.to earliest on stream copy", model(COPY))
    assert order(outcome) == ["to@copy", "sync.record@copy", "relu", "neg", "sync.wait", "mm"]
    assert str(outcome.report).startswith(
        "reorder at script:1:1: 1 op moved; it runs on stream copy now, with 1 event\n"
    )


def test_a_module_moves_as_a_whole() -> None:
    outcome = done('reorder module "bot" after aten.to', model(COPY))
    assert order(outcome) == ["to", "relu", "neg", "mm"]


def test_first_and_last_pick_the_anchor() -> None:
    assert order(done("reorder aten.to before first aten.*", model(COPY)))[0] == "to"
    with pytest.raises(IrgraphError, match="this move would cross a dependence"):
        done("reorder aten.to after last aten.*", model(COPY))


def test_a_move_that_is_refused_shows_the_chain_with_its_places() -> None:
    with pytest.raises(IrgraphError) as caught:
        run(load_script("reorder aten.mm before aten.relu"), model(COPY))
    assert caught.value.exit_code == 1
    assert str(caught.value).splitlines()[3:] == [
        "m.ir:7:1: note: aten.neg reads %a ($a) of aten.relu: read after write",
        "m.ir:9:1: note: aten.mm reads %b ($b) of aten.neg: read after write",
    ]


def test_an_anchor_that_is_not_there_warns() -> None:
    outcome = done("reorder aten.to before aten.bmm", model(COPY))
    assert outcome.graph == model(COPY)
    assert "nothing matches aten.bmm" in outcome.report.warnings[0].message


def test_an_assumption_is_reported() -> None:
    graph = model(COPY.replace("%b =", "my.log(%w)\n%b ="))
    outcome = done('reorder aten.to before aten.relu assuming "it only prints"', graph)
    assert outcome.report.assumptions == ("my.log (%w): it only prints",)


def test_branches_run_on_streams() -> None:
    outcome = done('parallelize module "bot", many aten.to over 2 streams', model(COPY))
    assert order(outcome) == ["relu", "neg", "to@branch1", "sync.record@branch1", "sync.wait", "mm"]
    assert outcome.report.entries[0].done == "2 groups over 2 streams with 1 event"


def test_matches_of_one_selection_are_groups_of_their_own() -> None:
    graph = model(
        "input %x : f32[4] in $x\n"
        + "".join(f"%y{k} = aten.neg(%x) : f32[4] in $y{k}\n" for k in range(4))
    )
    outcome = done("parallelize many aten.neg over 3 streams", graph)
    assert [op.stream for op in outcome.graph.ops] == ["", "branch1", "branch2", ""]


def test_branches_that_depend_on_each_other_are_refused() -> None:
    with pytest.raises(IrgraphError, match="groups 1 and 2 depend on each other") as caught:
        run(load_script("parallelize aten.relu, aten.mm over 2 streams"), model(COPY))
    assert len(caught.value.diagnostics[0].notes) == 2


def test_one_group_alone_is_said() -> None:
    warnings = done("parallelize aten.t, aten.bmm over 2 streams", mlp()).report.warnings
    assert [w.message for w in warnings][1] == "parallelize needs two or more groups"


WRITTEN = """input %x : f32[4] in $x
input %z : f32[4] in $z
%a = aten.neg(%x) : f32[4] in $a
%b = aten.neg(%a) : f32[4] in $b
%c = aten.neg(%z) : f32[4] in $c
%d = aten.neg(%b) : f32[4] in $d
"""


def refused(outcome: Outcome) -> list[str]:
    return [found.message for entry in outcome.report.entries for found in entry.refused]


def test_of_many_moves_only_what_crosses_a_dependence_stays() -> None:
    graph = model(WRITTEN + "%r = aten.relu(%d) : f32[4] in $r\n")
    outcome = done("reorder many aten.neg before last aten.neg", graph)
    assert "the anchor is one of the ops that move" in refused(outcome)[0]
    outcome = done(
        "reorder many aten.{neg,relu}(%v) where %v.shape == [4] before aten.abs",
        model(
            WRITTEN.replace(
                "%c =", "%p = aten.abs(%b) : f32[4] in $p\n%q = aten.neg(%p) : f32[4] in $q\n%c ="
            )
        ),
    )
    assert [op.outputs[0].name for op in outcome.graph.ops] == list("abcdpq")
    assert [m.partition(":")[0] for m in refused(outcome)] == ["aten.neg (%q) is not moved"]


def test_many_groups_leave_out_what_depends_on_another() -> None:
    outcome = done("parallelize many aten.neg over 2 streams", model(WRITTEN))
    streams = {op.outputs[0].name: op.stream for op in outcome.graph.ops if op.name == "aten.neg"}
    assert streams == {"a": "", "b": "", "c": "branch1", "d": ""}
    assert [m.partition(":")[0] for m in refused(outcome)] == [
        "aten.neg (%b) does not run in parallel",
        "aten.neg (%d) does not run in parallel",
    ]


def test_where_all_but_one_group_depend_nothing_runs_in_parallel() -> None:
    graph = model(WRITTEN)
    outcome = done("parallelize many aten.neg(%v) where %v.shape == [4] over 2 streams", graph)
    assert outcome.report.entries[0].refused
    chain = model(WRITTEN.replace("aten.neg(%z)", "aten.neg(%b)"))
    outcome = done("parallelize many aten.neg over 2 streams", chain)
    assert outcome.graph == chain
    assert len(refused(outcome)) == 3


def test_of_several_selections_what_depends_on_another_stays() -> None:
    graph = model(
        "input %x : f32[4] in $x\n%a = aten.neg(%x) : f32[4] in $a\n"
        "%b = aten.abs(%x) : f32[4] in $b\n%c = aten.relu(%a) : f32[4] in $c\n"
    )
    outcome = done("parallelize aten.neg, aten.relu, aten.abs over 2 streams", graph)
    (entry,) = outcome.report.entries
    assert [refused.message for refused in entry.refused] == [
        "aten.relu (%c) does not run in parallel: groups 1 and 2 depend on each other"
    ]
    assert [op.stream for op in outcome.graph.leaves() if op.base in ("neg", "relu")] == ["", ""]
    assert next(op for op in outcome.graph.leaves() if op.base == "abs").stream


def test_a_group_that_shares_an_op_with_another_stays() -> None:
    graph = model("input %x : f32[4] in $x\n%a = aten.neg(%x) : f32[4] in $a\n")
    with pytest.raises(IrgraphError, match="groups 1 and 2 have an op in common"):
        run(load_script("parallelize aten.neg, aten.neg over 2 streams"), graph)
