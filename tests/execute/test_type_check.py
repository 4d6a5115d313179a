"""Results have the types that torch gives them; no captured step is accused."""

from __future__ import annotations

from pathlib import Path

import pytest

from irgraph.capture.lower import lower_file
from irgraph.execute.type_check import type_findings
from irgraph.ops.rules.calls import unknown
from irgraph.ops.verify import verify
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
        (
            "%y = aten.mm(%w, %x) : f32[32, 32] in $y",
            "its operands do not fit: [32, 8] and [4, 32]",
        ),
        ("aten.add_(%w!, %x)", "its operands do not broadcast: [32, 8], [4, 32]"),
        ("aten.add_(%i!, %x)", "its operands do not broadcast: [7], [4, 32]"),
        ("aten.copy_(%w!, %x)", "its operands do not broadcast: [32, 8], [4, 32]"),
        (
            "aten.index_put_(%x!, [%i], %w)",
            "its operands do not broadcast: [4, 32], [7], [32, 8]",
        ),
        (
            "aten.index_put_(%x!, [none, %i], %w)",
            "its operands do not broadcast: [4, 32], [7], [32, 8]",
        ),
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
        (
            "[%y, %z] = aten.unsafe_split(%x, 12, 1) : [f32[B, 12] in $y, f32[B, 12] in $z]",
            "makes a list of 3 tensors, not of 2",
        ),
        ("%y = aten.t(%w) : f32[8, 32; 32, 1] in $w", "makes strides (1, 8), not %y, (32, 1)"),
        ("%y = aten.t(%w) : f32[8, 32; 1, 8] in $y", "makes a view in $w, not %y in $y"),
        (
            "%y = aten.select(%w, 0, 3) : f32[8] in $w",
            "makes a view of $w at byte 96, not at 0, as %y has it",
        ),
        (
            "%y = aten.as_strided(%w, [32, 8], [64, 1]) : f32[32, 8; 64, 1] in $w",
            "makes %y, bytes 0 to 7968 of $w, which has bytes 0 to 1024",
        ),
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


def test_index_put_takes_values_that_broadcast() -> None:
    text = HEAD + "input %v : f32[7, 32] in $v\ninput %s : f32[1] in $s\n"
    text += "aten.index_put_(%x!, [%i], %v)\naten.index_put_(%x!, [%i], %s)\n"
    graph = model(text)
    assert verify(graph) == []
    pytest.importorskip("torch")
    assert list(type_findings(graph)) == []


def test_a_view_of_a_view_may_leave_its_operand_but_not_the_buffer() -> None:
    pytest.importorskip("torch")
    lines = "%v = aten.select(%w, 0, 3) : f32[8] in $w+96\n"
    lines += "%y = aten.as_strided(%v, [32, 8], [8, 1], 0) : f32[32, 8] in $w\n"
    assert list(type_findings(model(HEAD + lines))) == []
