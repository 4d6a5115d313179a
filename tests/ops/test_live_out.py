"""What leaves a step: gradients that nodes keep, values that the host reads, results."""

from __future__ import annotations

import pytest

from irgraph.ops.live_out import live_out
from tests.language.models import model

HEAD = """input %x : f32[4] in $x
param %w : f32[4] in $w
state %old : f32[4] in $old
%d = aten.mul(%x, %w) : f32[4] in $d
%u = aten.neg(%d) : f32[4] in $u
"""
OWN = {"x": "input", "w": "param", "old": "state"}


@pytest.mark.parametrize(
    ("inside", "kept"),
    [
        ("%k = aten.detach(%d) : f32[4] in $d", {"k": "gradient"}),
        ("aten.add_(%u!, %d)", {"u": "gradient"}),
        # added to a gradient from before the step: nothing of its own
        ("aten.add_(%old!, %d)", {}),
        ("sync.stream()", {"d": "gradient"}),
        (
            "%k = aten.detach(%d) : f32[4] in $d\n  %e = sync.record() : u8[] @cpu in $e",
            {"k": "gradient"},
        ),
    ],
)
def test_a_node_keeps_what_it_makes_or_writes_or_takes(inside: str, kept: dict[str, str]) -> None:
    node = f"autograd.AccumulateGrad(%d) {{\n  {inside}\n}}\n"
    graph = model(HEAD + node + "%end = aten.add(%u, %d) : f32[4] in $end\nreturn\n")
    assert live_out(graph) == OWN | kept


def test_the_last_of_several_results_is_the_gradient() -> None:
    inside = "  %a = aten.clone(%d) : f32[4] in $a\n  %b = aten.neg(%a) : f32[4] in $b\n"
    graph = model(HEAD + f"autograd.AccumulateGrad(%d) {{\n{inside}}}\nreturn\n")
    assert live_out(graph) == OWN | {"b": "gradient"}


def test_values_that_the_host_reads_leave_and_memory_without_values_does_not() -> None:
    ops = """aten.item(%u)
%h = aten.to(%d) : f32[4] @cpu in $h
%e = aten.empty_like(%d) : f32[4] in $e
%r = aten.neg(%d) : f32[4] in $r
"""
    unknown = {"u": "host", "h": "host", "r": "output"}
    assert live_out(model(HEAD + ops)) == OWN | unknown
    told = live_out(model(HEAD + ops + "return %r\n"))
    assert told == OWN | {"r": "returned", "u": "host", "h": "host"}


def test_what_is_written_last_may_be_a_result_and_what_is_touched_later_not() -> None:
    ops = "aten.add_(%u!, %d)\n"
    assert live_out(model(HEAD + ops))["u"] == "output"
    assert "u" not in live_out(model(HEAD + ops + "%z = aten.neg(%u) : f32[4] in $z\n"))


def test_what_a_lookup_keeps_for_its_own_gradient_is_no_result() -> None:
    graph = model(
        "param %t : f32[9, 4] in $t\ninput %i : i64[8] in $i\ninput %o : i64[2] in $o\n"
        "%y, %p, %q, %m = aten._embedding_bag(%t, %i, %o) : "
        "f32[2, 4] in $y, i64[8] in $p, i64[2] in $q, i64[2] in $m\n"
    )
    assert [name for name, kind in live_out(graph).items() if kind == "output"] == ["y"]
