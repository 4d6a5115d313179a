"""Measured times that a model carries; which factors a product in tf32 rounds."""

from __future__ import annotations

import pytest

from irgraph.ir.graph import Graph
from irgraph.ir.measured_times import has_measured_times, label_time, measured_card, op_time
from irgraph.ir.op import Op
from irgraph.ir.quantity import Quantity
from irgraph.ir.schema import schemas_of
from irgraph.ir.tf32 import PLAIN, TF32, factors

TIME = Quantity(5.0, "us")


def test_a_time_counts_where_it_was_measured() -> None:
    measured = Op("aten.mm", notes={"time": TIME, "by": "measured"})
    assert op_time(measured) == TIME
    for notes in ({"time": TIME}, {"time": TIME, "by": "heuristic"}, {"by": "measured"}, {}):
        assert op_time(Op("aten.mm", notes=notes)) is None
    graph = Graph("g", ops=(Op("autograd.X", body=(measured,)),))
    assert has_measured_times(graph) and not has_measured_times(Graph("g", ops=(Op("aten.mm"),)))
    assert measured_card(graph) == ""
    assert measured_card(Graph("g", settings={"measured_on": "Tesla V100"})) == "Tesla V100"


def test_labels_times_are_summed_without_those_of_operators() -> None:
    notes = {"time": TIME, "by": "measured"}
    label = Op("a label", notes=notes, body=(Op("aten.mm", notes=notes),))
    assert label.is_annotation
    assert label_time(Graph("g", ops=(label, Op("another", notes=notes)))) == 10.0
    assert label_time(Graph("g", ops=(Op("aten.mm", notes=notes),))) == 0.0


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("linear", ("input", "weight")),
        ("addmm", ("mat1", "mat2")),
        ("mm", ("self", "mat2")),
        ("bmm", ("self", "mat2")),
        ("baddbmm", ("batch1", "batch2")),
    ],
)
def test_the_factors_are_those_that_torch_multiplies(name: str, arguments: tuple[str, str]) -> None:
    form = TF32[f"aten.{name}"]
    assert PLAIN[form] == f"aten.{name}"
    named = [a.name for a in schemas_of(f"aten.{name}")[0].arguments]
    for op in (Op(form), Op(f"aten.{name}")):
        assert tuple(named[place] for place in factors(op)) == arguments
