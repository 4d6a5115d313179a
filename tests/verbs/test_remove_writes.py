"""Removal of what writes in place."""

from __future__ import annotations

import pytest

from irgraph.diagnostics import IrgraphError
from irgraph.language import load_script, run
from irgraph.text import parse

MODEL = """model "m" { format = 1 }

device @gpu0 "v100"
input %x : f32[4] in $b1
param %w : f32[4] in $b2

aten.add_(%w!, %x)
%y = aten.relu(%x) : f32[4] in $b3
aten.neg_(%y!)
%z = aten.relu(%y) : f32[4] in $b4
aten.neg_(%z!)
"""


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("aten.add_(%w!, _)", "%w outlives the step and would miss this write"),
        ("aten.relu(%x)", "is still in use"),
        ("many { %z = aten.relu(%y)  aten.neg_(%z!) }", ""),
    ],
)
def test_lost_writes_are_refused(pattern: str, message: str) -> None:
    script = load_script(f"remove {pattern}")
    graph = parse(MODEL)
    if not message:
        assert len(run(script, graph).graph.ops) == 3
        return
    with pytest.raises(IrgraphError) as caught:
        run(script, graph)
    assert message in str(caught.value)
    assert caught.value.exit_code == 1


def test_a_write_that_is_still_read_is_refused() -> None:
    outcome = run(load_script("remove many aten.neg_(%v!)"), parse(MODEL))
    assert [op.name for op in outcome.graph.ops].count("aten.neg_") == 1
    assert "what is written to %y is still read" in str(outcome.report)


def test_a_lost_write_can_be_assumed_away() -> None:
    script = load_script('remove aten.add_(%w!, _) assuming "evaluation only"')
    outcome = run(script, parse(MODEL))
    assert outcome.report.assumptions == ("aten.add_ (%w): evaluation only",)
    assert all(op.name != "aten.add_" for op in outcome.graph.ops)
