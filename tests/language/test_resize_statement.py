"""``resize`` of one axis as a statement: what it reports, and the error that shows what pins it."""

from __future__ import annotations

import pytest

from irgraph.ir.graph import Graph
from irgraph.language import Outcome, load_script, run
from irgraph.text import IrgraphError
from tests.language.models import mlp, model, training
from tests.language.test_sweeps import find


def done(script: str, graph: Graph) -> Outcome:
    """Return what a script does to a graph."""
    return run(load_script(script, "s.irg"), graph, targets=find)


def refusal(script: str, graph: Graph) -> str:
    """Return the error of a change that is not legal."""
    with pytest.raises(IrgraphError) as caught:
        done(script, graph)
    assert caught.value.exit_code == 1
    return str(caught.value)


def shape(outcome: Outcome, name: str) -> tuple[int, ...]:
    """Return the shape of a tensor."""
    return tuple(map(int, outcome.graph.by_name[name].shape))


def test_an_axis_of_an_operand_is_resized() -> None:
    script = 'resize %w.shape[0] of aten.linear(%x, %w, ...) within "bot.0" = 24'
    outcome = done(script, mlp())
    assert str(outcome.report) == (
        "resize at s.irg:1:1: %w1.shape[0] is 24 (was 8), 7 tensors changed\n"
        "  legal: all ops agree on the sizes that follow"
    )
    assert (shape(outcome, "w1"), shape(outcome, "w2")) == ((24, 8), (8, 24))


def test_a_size_may_follow_from_what_the_pattern_binds() -> None:
    outcome = done("resize %w.shape[0] of aten.linear(%x, %w, ...) = %w.shape[0] * 3", mlp())
    assert shape(outcome, "w1") == (24, 8)


def test_many_axes_are_resized_by_their_sizes() -> None:
    script = "resize %w.shape[0] of many aten.embedding_bag(%w, ...) = 7"
    outcome = done(script, training(3))
    assert str(outcome.report.entries[0]).splitlines()[0] == (
        "resize at s.irg:1:1: %w0.shape[0] and 2 more is 7 (was 100), 9 tensors changed"
    )


def test_nothing_matched_is_a_warning() -> None:
    outcome = done("resize %w.shape[0] of aten.native_norm(%w) = 3", mlp())
    assert outcome.report.warnings[0].message == (
        "nothing matches aten.native_norm: the model has no aten.native_norm"
    )


CAT = """
input %x : f32[6, 8] in $x
input %y : f32[6, 3] in $y
%k = aten.cat([%x, %y], dim = 1) : f32[6, 11] in $k from "et#7"
%n = aten.neg(%k) : f32[6, 11] in $n
"""


def test_the_error_shows_the_op_that_pins_the_size() -> None:
    assert refusal("resize %k.shape[1] of aten.neg(%k) = 12", model(CAT)) == (
        "s.irg:1:1: error: %k.shape[1] is not resized to 12: aten.cat: ambiguous which of its"
        " parts (8, 3) grows with %k.shape[1] = 11: resize one of them\n"
        "   1 | resize %k.shape[1] of aten.neg(%k) = 12\n"
        "     | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n"
        "m.ir:6:1: note: this is aten.cat (%k)"
    )


def test_of_many_those_that_can_be_are_resized() -> None:
    outcome = done(
        "resize %k.shape[1] of many aten.*(%k) = 12",
        model(CAT + "%m = aten.neg(%y) : f32[6, 3] in $m\n"),
    )
    assert shape(outcome, "m") == (6, 12)
    assert [str(r).splitlines()[0] for r in outcome.report.refused] == [
        "s.irg:1:1: warning: %k.shape[1] is not resized to 12: aten.cat: ambiguous which of its"
        " parts (8, 3) grows with %k.shape[1] = 11: resize one of them"
    ]


def test_a_sweep_resizes_axes_from_the_same_graph() -> None:
    outcome = done(
        'sweep n in [16, 4], b in [4, 8] { target "slow" resize B = b'
        ' resize %w.shape[0] of aten.linear(_, %w, ...) within "bot.0" = n }'
        " report step.time best by step.time + n",
        mlp(),
    )
    assert shape(outcome, "w1") == (4, 8)
    assert outcome.graph.dims == {"B": 4}


@pytest.mark.parametrize("resize", ["resize B = 24", "resize %w.shape[0] of aten.t(%w) = 24"])
def test_what_was_found_before_is_still_found(resize: str) -> None:
    done(f"find a = aten.relu {resize} expect 1 a", mlp())


def test_of_many_only_the_match_that_is_no_tensor_stays() -> None:
    graph = model("""input %x : f32[4, 8] in $x
input %y : f32[8] in $y
%a = aten.mul(%x, 2.0) : f32[4, 8] in $a
%b = aten.mul(%x, %y) : f32[4, 8] in $b
""")
    outcome = run(load_script("resize %n.shape[0] of many aten.mul(_, %n) = 16"), graph)
    (entry,) = outcome.report.entries
    (refused,) = entry.refused
    assert "%n of aten.mul (%a) is not resized: it is 2.0, not a tensor" in refused.message
    assert [list(t.shape) for op in outcome.graph.ops for t in op.outputs] == [[4, 16]] * 2
