"""Calls that only return their operand are replaced with the ops that made it."""

from __future__ import annotations

import pytest

from irgraph.diagnostics import IrgraphError
from irgraph.execute import compare
from irgraph.ir.graph import Graph
from irgraph.language import load_script, run
from irgraph.text import parse, print_graph

MODEL = """model "gate" {{ format = 2 }}

device @gpu0 "v100"
input %x : f32[4, 8] in $x

%s = aten.sigmoid(%x) : f32[4, 8] in $s
{reader}
%y = aten.mul(%x, %s) : f32[4, 8] in $y
return %y
"""

CAST = "aten.to(%s, dtype = f32)"
TYPE_AS = "aten.type_as(%s, %x) {\n  aten.to(%s, dtype = f32)\n}"
SCRIPTS = [
    "replace { %s = aten.sigmoid(%x)  %y = aten.mul(%x, %s) } with %y = aten.silu(%x)",
    "fuse { %s = aten.sigmoid(%x)  %y = aten.mul(%x, %s) } into %y = aten.silu(%x)",
]


def graph_with(reader: str) -> Graph:
    """Return a step with a call on an inner result."""
    return parse(MODEL.format(reader=reader))


@pytest.mark.parametrize("reader", [CAST, TYPE_AS])
@pytest.mark.parametrize("script", SCRIPTS)
def test_a_cast_to_the_same_type_goes_with_its_operand(script: str, reader: str) -> None:
    before = graph_with(reader)
    after = run(load_script(script), before).graph
    assert [op.name for op in after.ops] == ["aten.silu"]
    assert compare(before, after).same


def test_a_call_on_a_result_that_remains_is_left() -> None:
    script = "replace %s = aten.sigmoid(%x) with %s = aten.sigmoid(%x)"
    assert CAST in print_graph(run(load_script(script), graph_with(CAST)).graph)


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_call_with_a_result_still_needs_its_operand(script: str) -> None:
    before = graph_with("%z = aten.neg(%s) : f32[4, 8] in $z")
    with pytest.raises(IrgraphError, match="still in use"):
        run(load_script(script), before)


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_message_to_another_rank_still_needs_its_operand(script: str) -> None:
    before = graph_with("c10d.send([%s], 1, 0)")
    with pytest.raises(IrgraphError, match="still in use"):
        run(load_script(script), before)
