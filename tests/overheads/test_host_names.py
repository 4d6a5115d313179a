"""Unknown names of host tables, and the warnings of differences about hosts."""

from __future__ import annotations

import pytest

import irgraph
from irgraph.diagnostics import IrgraphError
from irgraph.overheads import load_host
from irgraph.text import parse

STEP = """model "step" { format = 1  dims = {B = 64} }

device @gpu0 "v100"
input %x : f32[B, 64] in $x

%z = aten.relu(%x) : f32[B, 64] in $z
"""


@pytest.mark.parametrize(("name", "suggested"), [("h100", "h100-torch-2.11"), ("v10", "v100")])
def test_an_unknown_host_suggests_its_own_machine(name: str, suggested: str) -> None:
    with pytest.raises(IrgraphError) as error:
        load_host(name)
    assert f"did you mean {suggested!r}?" in str(error.value)


@pytest.mark.parametrize("name", ["h200", "b200", "t4", "l40s"])
def test_a_card_without_a_table_suggests_no_other_card(name: str) -> None:
    with pytest.raises(IrgraphError) as error:
        load_host(name)
    assert "did you mean" not in str(error.value)


def test_a_difference_has_the_warnings_of_both_predictions() -> None:
    graph = parse(STEP)
    difference = irgraph.diff(graph, graph, device="h100", host="v100")
    assert any("measured with a volta GPU" in text for text in difference.warnings)
    assert difference.warnings == difference.before.warnings
    assert difference.summary()["warnings"] == list(difference.warnings)
