"""Statements about selected ops match these ops, and no others."""

from __future__ import annotations

import pytest

import irgraph
from irgraph.studio.patterns import FORMS, statement


def places(graph: irgraph.Graph, name: str) -> list[int]:
    return [at for at, op in enumerate(graph.walk()) if op.name == name]


def matched(graph: irgraph.Graph, text: str) -> int:
    (applied,) = irgraph.run_script(graph, text).applied
    return sum(entry.matched for entry in applied.report.entries)


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("name", ["aten.relu", "aten.addmm", "aten.add_", "aten.select"])
def test_a_pattern_is_of_the_selected_ops_alone(dlrm: irgraph.Graph, name: str, count: int) -> None:
    chosen = places(dlrm, name)[-count:]
    assert matched(dlrm, statement(dlrm, "find", chosen)) == count


def test_all_ops_of_a_name_need_no_condition(dlrm: irgraph.Graph) -> None:
    text = statement(dlrm, "cast", places(dlrm, "aten.addmm"))
    assert text == "cast many aten.addmm to bf16"


def test_ops_of_several_names_are_several_statements(dlrm: irgraph.Graph) -> None:
    chosen = [*places(dlrm, "aten.relu")[:1], *places(dlrm, "aten.addmm")[:1]]
    text = statement(dlrm, "find", chosen)
    assert text.splitlines() == [
        'find chosen1 = aten.addmm where op.result == "linear1"',
        'find chosen2 = aten.relu where op.result == "relu1"',
    ]


@pytest.mark.parametrize("verb", FORMS)
def test_every_form_is_a_statement(dlrm: irgraph.Graph, verb: str) -> None:
    for name in ("aten.relu", "Optimizer.step#SGD.step"):
        irgraph.load_script(statement(dlrm, verb, places(dlrm, name)[:1]))


WRITTEN = """model "twice" { format = 1 }

device @gpu0 "v100"
input %x : f32[8] in $x

aten.relu_(%x!)
aten.relu_(%x!)
"say \\"hi\\" \\\\ <b>"() {
  aten.neg_(%x!)
}
"""


def test_ops_that_cannot_be_told_apart_are_refused() -> None:
    graph = irgraph.parse(WRITTEN)
    with pytest.raises(irgraph.IrgraphError, match=r"aten.relu_: 1 more make or write"):
        statement(graph, "find", [0])
    assert matched(graph, statement(graph, "find", [0, 1])) == 2
    assert matched(graph, statement(graph, "find", [2])) == 1


@pytest.mark.parametrize("chosen", [[], [-1], [10**9]])
def test_ops_that_are_not_there(dlrm: irgraph.Graph, chosen: list[int]) -> None:
    with pytest.raises(irgraph.IrgraphError, match="select ops"):
        statement(dlrm, "find", chosen)
    with pytest.raises(irgraph.IrgraphError, match="select ops"):
        statement(dlrm, "drop", [0])
