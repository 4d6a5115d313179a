"""Drawings of a few ops: what is laid out, and what is refused."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path

import pytest

import irgraph
from irgraph.exchange.drawing import dot_text, quote, select_ops
from tests.cli.conftest import Ran
from tests.exchange.test_explorer import DATA, DLRM

Run = Callable[..., Ran]


@pytest.fixture
def dot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a dot in the path that keeps what it is given."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "dot"
    program.write_text(f'#!/bin/sh\n/bin/cat > {tmp_path}/given\necho "<svg/>"\n')
    program.chmod(program.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setenv("PATH", str(folder))
    return tmp_path / "given"


def test_a_module_is_drawn(run: Run, dot: Path, tmp_path: Path) -> None:
    svg = tmp_path / "a.svg"
    ran = run("show", DLRM, "--svg", svg, "--module", "bot_mlp", "--phase", "forward")
    assert (ran.code, ran.err, svg.read_text()) == (0, "", "<svg/>\n")
    lines = dot.read_text().splitlines()
    ops = [line for line in lines if line.startswith("  op") and "label" in line]
    assert [line.split('"')[1].split("\\n")[0] for line in ops] == [
        "aten.linear",
        "aten.relu",
        "aten.linear",
        "aten.relu",
    ]
    arrows = {line.strip() for line in lines if "->" in line}
    assert {"op0 -> op1", "op1 -> op2", "op2 -> op3"} <= arrows
    assert '"%bot_mlp_0_weight" -> op0' in arrows
    assert any("from outside %to1" in line for line in lines)


def test_what_is_written_in_place_is_where_it_was_written() -> None:
    graph = irgraph.parse("""model "m" { format = 1 }

device @gpu0 "v100"
input %x : f32[8] in $x

aten.relu_(%x!)
%y = aten.neg(%x) : f32[8] in $y
""")
    text = dot_text(graph, graph.ops)
    assert '"%x" -> op0' in text
    assert "op0 -> op1" in text
    assert "writes %x" in text


@pytest.mark.parametrize("name", ['"', "\\", 'a" [shape = none]', "\\N", "&lt;b&gt;", "<b>x</b>"])
def test_names_are_texts(name: str) -> None:
    """Graphviz ends a text at a quote that no backslash precedes, and reads its own escapes."""
    text = quote(f"x {name} y")
    inner = text[1:-1].replace("\\\\", "").replace('\\"', "")
    assert (text[0], text[-1], '"' in inner, "\\" in inner) == ('"', '"', False, False)
    assert "&lt;" not in inner


def test_what_cannot_be_drawn_is_refused(run: Run, tmp_path: Path, dot: Path) -> None:
    svg = tmp_path / "a.svg"
    ran = run("show", DLRM, "--svg", svg, "--module", "bot")
    assert (ran.code, "its modules: bot_mlp, tables, top_mlp" in ran.err) == (2, True)
    ran = run("show", DATA / "resnet50.ir.gz", "--svg", svg)
    assert (ran.code, "893 ops are too many" in ran.err) == (2, True)
    ran = run("show", DLRM, "--module", "bot_mlp")
    assert (ran.code, "--svg" in ran.err) == (2, True)
    dot.with_name("bin").joinpath("dot").write_text("#!/bin/sh\necho broken >&2\nexit 3\n")
    ran = run("show", DLRM, "--svg", svg, "--module", "bot_mlp")
    assert (ran.code, "dot failed: broken" in ran.err) == (4, True)
    assert not svg.exists()


def test_without_graphviz_the_package_is_named(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    ran = run("show", DLRM, "--svg", tmp_path / "a.svg", "--module", "bot_mlp")
    assert (ran.code, "apt install graphviz" in ran.err) == (2, True)


def test_a_choice_is_of_outermost_ops() -> None:
    graph = irgraph.load(DLRM)
    found = select_ops(graph, "top_mlp", "forward")
    assert {op.phase for op in found} == {"forward"}
    assert all(op.module.partition(".")[0] == "top_mlp" for op in found)
    assert len(found) == sum(
        op.phase == "forward" and op.module.startswith("top_mlp") for op in graph.top_level()
    )
