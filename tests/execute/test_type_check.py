"""Results have the types that torch gives them; no captured step is accused."""

from __future__ import annotations

from pathlib import Path

import pytest

from irgraph.capture.lower import lower_file
from irgraph.execute.type_check import type_findings
from irgraph.ir.verify import unknown, verify
from tests.language.models import model

HEAD = "input %x : f32[B, 32] in $x\ninput %w : f32[32, 8] in $w\ninput %i : i64[7] in $i\n"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("%y = aten.relu(%x) : f32[B, 99] in $y", "makes [4, 32], not %y, [4, 99]"),
        (
            "%y = aten.add(%x, %w) : f32[B, 32] in $y",
            "its operands do not broadcast: [4, 32], [32, 8]",
        ),
        ("%y = aten.mm(%x, %w) : f32[B, 9] in $y", "makes [4, 8], not %y, [4, 9]"),
        ("%y = aten.mm(%w, %x) : f32[32, 32] in $y", "its factors do not fit: [32, 8] and [4, 32]"),
        ("aten.add_(%w!, %x)", "its operands do not broadcast: [32, 8], [4, 32]"),
        ("aten.add_(%i!, %x)", "its operands do not broadcast: [7], [4, 32]"),
    ],
)
def test_shapes_that_do_not_follow_are_found_without_torch(line: str, message: str) -> None:
    assert [finding.message for finding in verify(model(f"{HEAD}{line}\n"))] == [message]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("%y = aten.relu(%x) : f64[B, 32] in $y", "makes f32[4, 32], not %y, f64[4, 32]"),
        (
            "%y, %j = aten.topk(%x, k = 40) : f32[B, 40] in $y, i64[B, 40] in $j",
            "torch refuses it: k not in range for dimension",
        ),
        ("%y = aten.cat([%x, %x]) : f32[B, 64] in $y", "makes f32[8, 32], not %y, f32[4, 64]"),
    ],
)
def test_what_torch_does_not_make_is_found(line: str, message: str) -> None:
    pytest.importorskip("torch")
    from irgraph.execute import compare
    from irgraph.text import IrgraphError

    graph = model(f"{HEAD}{line}\n")
    assert [finding.message for finding in type_findings(graph)] == [message]
    with pytest.raises(IrgraphError) as caught:
        compare(graph, graph)
    assert message in str(caught.value)


def test_names_that_nothing_knows_are_told_once_with_what_was_meant() -> None:
    lines = "".join(f"%y{k} = aten.reluu(%x) : f32[B, 32] in $y{k}\n" for k in range(2))
    graph = model(f"{HEAD}{lines}%z = lib.thing(%x) : f32[B, 32] in $z\n")
    found = list(unknown(graph))
    assert [(f.op and f.op.name, f.hint) for f in found] == [
        ("aten.reluu", "did you mean aten.relu?"),
        ("lib.thing", ""),
    ]
    assert verify(graph) == []


def test_goldens_and_shipped_models_have_the_types_of_torch() -> None:
    pytest.importorskip("torch")
    from importlib import resources

    from irgraph.api import load

    shipped = Path(str(resources.files("costmodels.evaluate"))) / "data"
    golden = Path(__file__).parents[1] / "golden" / "passes"
    paths = [*golden.glob("*.ir"), *shipped.glob("*.ir")]
    assert len(paths) > 30
    wrong = {path.name: f.message for path in paths for f in type_findings(load(str(path)))}
    assert not wrong


@pytest.mark.data
@pytest.mark.slow
def test_no_recorded_step_is_accused(data_dir: Path) -> None:
    pytest.importorskip("torch")
    paths = sorted((data_dir / "traces").rglob("et*.json.gz"))
    assert len(paths) > 10
    wrong = {}
    for path in (path for path in paths if "rank" not in path.name or "rank0" in path.name):
        graph = lower_file(str(path)).graph
        messages = [finding.message for finding in type_findings(graph)]
        if messages:
            wrong[path.name] = messages
    assert not wrong
