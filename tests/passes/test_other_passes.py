"""The other shipped passes on small models."""

from __future__ import annotations

from irgraph.ir.graph import Graph
from irgraph.language import Outcome, parse_pipeline, run
from irgraph.ops.verify import verify
from tests.language.models import mlp, model


def applied(name: str, graph: Graph) -> Outcome:
    """Return the outcome of a pass, whose graph must be sound."""
    outcome = run(parse_pipeline(name), graph)
    assert verify(outcome.graph) == []
    return outcome


def ops(graph: Graph) -> list[str]:
    """Return the names of all ops."""
    return [op.name for op in graph.walk()]


def test_fuse_epilogue_sees_through_linear_and_writes_in_place() -> None:
    outcome = applied("fuse-epilogue", mlp())
    assert ops(outcome.graph) == [
        "aten.t",
        "irgraph.addmm_relu",
        "aten.t",
        "irgraph.addmm_relu",
        "aten.sum",
    ]
    assert outcome.report.replaced == 4


def test_fuse_epilogue_leaves_scaled_products_alone() -> None:
    graph = model(
        "input %x : f32[4, 4] in $x\n"
        "%h = aten.addmm(%x, %x, %x, beta = 0.5) : f32[4, 4] in $h\n"
        "%y = aten.relu(%h) : f32[4, 4] in $y\n"
    )
    outcome = applied("fuse-epilogue", graph)
    assert outcome.graph == graph
    assert outcome.report.warnings[0].notes[0].message == (
        "nearest miss: aten.addmm (%h): it also has beta = 0.5"
    )


DROPOUT = """
input %s : f32[B, 8] in $s
input %g : f32[B, 8] in $g
%x = aten.neg(%s) : f32[B, 8] in $x
"""


def test_drop_dropout_takes_the_mask_and_its_use_in_the_backward_pass() -> None:
    graph = model(
        DROPOUT + "%y = aten.dropout(%x, p = 0.1, train = true) : f32[B, 8] in $y {\n"
        "  %n = aten.empty_like(%x) : f32[B, 8] in $n\n"
        "  aten.bernoulli_(%n!, p = 0.9)\n"
        "  aten.div_(%n!, other = 0.9)\n"
        "  %y = aten.mul(%x, %n) : f32[B, 8] in $y\n}\n"
        "aten.relu_(%y!)\n"
        "autograd.MulBackward0(%g) on backward phase backward {\n"
        "  %d = aten.mul(%g, %n) : f32[B, 8] in $d\n}\n"
        "%e = aten.neg(%d) : f32[B, 8] in $e\n"
    )
    after = applied("drop-dropout", graph).graph
    assert ops(after) == ["aten.neg", "aten.relu_", "aten.neg"]
    assert after.ops[2].inputs[0].name == "g"


def test_drop_dropout_takes_the_kernel_with_a_mask() -> None:
    graph = model(
        DROPOUT + "%y = aten.dropout(%x, p = 0.1, train = true) : f32[B, 8] in $y {\n"
        "  %y, %k = aten.native_dropout(%x, p = 0.1, train = true)"
        " : f32[B, 8] in $y, bool[B, 8] in $k\n}\n"
        "%z = aten.neg(%y) : f32[B, 8] in $z\n"
        "autograd.NativeDropoutBackward0(%g) phase backward {\n"
        "  %d = aten.native_dropout_backward(%g, %k, scale = 1.1) : f32[B, 8] in $d\n}\n"
        "%e = aten.neg(%d) : f32[B, 8] in $e\n"
    )
    assert ops(applied("drop-dropout", graph).graph) == ["aten.neg"] * 3


def test_drop_dropout_works_without_a_backward_pass() -> None:
    graph = model(
        DROPOUT + "%y = aten.dropout(%x, p = 0.1, train = false) : f32[B, 8] in $y\n"
        "%z = aten.neg(%y) : f32[B, 8] in $z\n"
    )
    assert ops(applied("drop-dropout", graph).graph) == ["aten.neg"] * 2


def test_drop_dropout_leaves_a_product_with_a_mask_of_one_s_own() -> None:
    graph = model(
        DROPOUT + "%n = aten.empty_like(%x) : f32[B, 8] in $n\n"
        "aten.bernoulli_(%n!, p = 0.9)\n"
        "aten.div_(%n!, other = 0.9)\n"
        "%y = aten.mul(%x, %n) : f32[B, 8] in $y\n"
        "%d = aten.mul(%g, %n) : f32[B, 8] in $d phase backward\n"
    )
    assert applied("drop-dropout", graph).graph == graph


def test_clean_copies_ends_when_nothing_is_left_that_may_go() -> None:
    graph = model(
        "input %x : f32[B, 4] in $x\n"
        "%a = aten.clone(%x) : f32[B, 4] in $a\n"
        "%b = aten.contiguous(%a) : f32[B, 4] in $b\n"
        "%c = aten.to(%b, dtype = f16) : f16[B, 4] in $c\n"
        "%d = aten.to(%x, device = @cpu) : f32[B, 4] @cpu in $d\n"
        "%z = aten.neg(%c) : f16[B, 4] in $z\n"
    )
    assert ops(applied("clean-copies", graph).graph) == ["aten.to", "aten.to", "aten.neg"]


def test_clean_copies_keeps_what_guards_against_a_write() -> None:
    graph = model(
        "input %x : f32[4] in $x\n%y = aten.clone(%x) : f32[4] in $y\naten.neg_(%x!)\n"
        "%z = aten.neg(%y) : f32[4] in $z\n"
    )
    outcome = applied("clean-copies", graph)
    assert outcome.graph == graph
    assert [d.message for d in outcome.report.refused] == [
        "aten.clone (%y) is not removed: %x is written while %y is still in use"
    ]
