"""Rarer steps of a program under other sizes."""

from __future__ import annotations

from msgspec.structs import replace

from irgraph.ir.graph import Graph
from irgraph.ir.rarer_steps import INCLUDED, OMITTED, SHARE
from irgraph.ir.resize import with_dims
from irgraph.ir.step_notes import step_notes, with_step_notes
from irgraph.text import parse

STEP = """model "step" {{ format = 2  dims = {{B = 4}} }}

device @gpu0 "v100"
input %x : f32[{size}, 8] in $x

%y = aten.relu(%x) : f32[{size}, 8] in $y
return %y
"""


def program(rarer_size: str) -> Graph:
    """Return a step with a note on its rarer step, whose input has this number of rows."""
    rarer = parse(STEP.format(size=rarer_size))
    if rarer_size == "16":
        rarer = replace(rarer, dims={})
    rarer = replace(rarer, settings={**rarer.settings, SHARE: "1/5"})
    graph = with_step_notes(parse(STEP.format(size="B")), [f"1 in 5 steps also runs x: {INCLUDED}"])
    return replace(graph, rarer=(rarer,))


def test_rarer_steps_have_the_size_of_the_usual_step() -> None:
    resized = with_dims(program("B"), {"B": 32})
    (rarer,) = resized.rarer
    assert rarer.tensors[0].tensor.shape == (32, 8)
    assert step_notes(resized)[0].endswith(INCLUDED)


def test_a_rarer_step_that_lacks_the_dimension_is_dropped_with_a_note() -> None:
    resized = with_dims(program("16"), {"B": 32})
    assert resized.rarer == ()
    assert step_notes(resized)[0].endswith(OMITTED)
    assert len(with_dims(program("16"), {}).rarer) == 1
