"""Comparisons that must not be stricter, or weaker, than what graphs compute."""

from __future__ import annotations

import pytest

from irgraph.diagnostics import IrgraphError
from irgraph.execute import compare
from irgraph.execute.callables import UNCHANGING
from irgraph.execute.ranks.collectives import computations
from irgraph.ir.graph import Graph
from irgraph.language import load_script, run
from irgraph.ops.book import book, collective_of
from irgraph.ops.operator import CollectiveKind
from irgraph.text import parse

HEAD = """model "m" { format = 2 }

input %a : f32[64] in $a
input %b : f32[64] in $b
input %c : f32[64] in $c

"""


def step(text: str) -> Graph:
    return parse(HEAD + text)


LEFT = step("""
%s = aten.add(%a, %b) : f32[64] in $s
%t = aten.add(%s, %c) : f32[64] in $t
return %t
""")


def test_a_statement_that_regroups_a_sum_is_legal() -> None:
    script = """replace { %s = aten.add(%a, %b)  %t = aten.add(%s, %c) } with {
      %u = aten.add(%b, %c)  %t = aten.add(%a, %u) }"""
    assert "results change" not in str(run(load_script(script), LEFT).report)


def test_a_result_that_is_infinite_elsewhere_is_a_difference() -> None:
    before = step("%m = aten.amin(%a) : f32[] in $m\n%t = aten.mul(%m, 2) : f32[] in $t\nreturn %t")
    script = """replace { %m = aten.amin(%a)  %t = aten.mul(%m, 2) } with {
      %m = aten.amin(%a)  %n = aten.mul(%m, 3)  %t = aten.sub(%n, %m) }"""
    assert run(load_script(script), before).graph.ops[-1].name == "aten.sub"


def test_collectives_that_change_nothing_alone_are_computed_on_ranks() -> None:
    for name in book():
        if name.startswith("c10d.") and collective_of(name) in UNCHANGING:
            assert collective_of(name) is CollectiveKind.BARRIER or name in computations()


def test_a_reduction_to_one_rank_is_not_ignored() -> None:
    reduced = step("c10d.reduce_([%a!], 0, 0)\n%t = aten.sin(%a) : f32[64] in $t\nreturn %t")
    with pytest.raises(IrgraphError, match="not executable"):
        compare(reduced, step("%t = aten.sin(%a) : f32[64] in $t\nreturn %t"))
