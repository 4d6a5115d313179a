"""Files are lowered by what they hold, whatever they are called."""

from __future__ import annotations

import gzip
import io
import json
import os
import pkgutil
import shutil
import sys
import zipfile
from importlib import import_module
from pathlib import Path
from threading import Thread

import pytest

import irgraph
from irgraph.capture import front_ends as shipped
from irgraph.capture.common.source import Source
from irgraph.capture.lower import front_ends
from irgraph.cli.main import main
from irgraph.text import IrgraphError
from tests.capture.execution_trace.fuzz import rows
from tests.capture.execution_trace.traces import trace
from tests.capture.front_ends import examples
from tests.capture.kineto.builder import write
from tests.installed import install, site

__all__ = ["site"]


def test_an_onnx_model_needs_no_suffix(tmp_path: Path) -> None:
    path = examples.onnx(tmp_path / "model.bin")
    graph = irgraph.lower(path, dims={"batch": 4}, name="m").graph
    assert (graph.name, [op.name for op in graph.ops]) == ("m", ["aten.relu"])


def test_a_program_needs_no_suffix(tmp_path: Path) -> None:
    saved = examples.export(tmp_path / "net.pt2")
    path = tmp_path / "net"
    shutil.copy(saved, path)
    assert [op.name for op in irgraph.lower(path).graph.ops] == ["aten.linear"]


@pytest.mark.parametrize("packed", [False, True])
def test_a_trace_needs_no_suffix(packed: bool, tmp_path: Path) -> None:
    data = trace(*rows(), version="1.1.1")
    path = tmp_path / "trace.onnx"
    path.write_bytes(gzip.compress(data) if packed else data)
    assert irgraph.lower(path).graph.ops


def test_a_kineto_trace_needs_no_suffix_and_no_object_around_its_events(tmp_path: Path) -> None:
    packed = write(tmp_path)
    events = json.loads(packed.read_bytes())["traceEvents"]
    bare, archive = tmp_path / "bare.onnx", tmp_path / "trace.pt2"
    bare.write_text(json.dumps(events))
    with zipfile.ZipFile(archive, "w") as file:
        file.write(packed, "trace.json")
    expected = irgraph.lower(packed, name="m").graph
    for path in (bare, archive):
        found = irgraph.lower(path, name="m").graph
        assert [op.operands for op in found.ops] == [op.operands for op in expected.ops]
        assert found.tensors == expected.tensors


def test_a_pipe_is_recognised_and_read(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    data = gzip.compress(trace(*rows()))
    writer = Thread(target=pipe.write_bytes, args=(data,))
    writer.start()
    ops = irgraph.lower(pipe).graph.ops
    writer.join()
    assert ops


def test_standard_input_may_hold_any_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = examples.onnx(tmp_path / "model").read_bytes()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    graph = irgraph.lower("-", dims={"batch": 4}, name="m").graph
    assert [op.name for op in graph.ops] == ["aten.relu"]


def refused(path: Path, **options: object) -> IrgraphError:
    with pytest.raises(IrgraphError) as caught:
        irgraph.lower(path, **options)  # type: ignore[arg-type]
    return caught.value


def test_options_that_do_not_suit_a_file_are_refused(tmp_path: Path) -> None:
    model, export = examples.onnx(tmp_path / "m"), examples.export(tmp_path / "p.pt2")
    recorded = tmp_path / "t"
    recorded.write_bytes(trace(*rows()))
    for path, options, message in (
        (
            model,
            {"step": 1},
            "an ONNX model takes no step: it is a forward pass",
        ),
        (model, {"kineto": "k.json"}, "an ONNX model takes no kineto"),
        (export, {"step": 1}, "an exported program takes no step"),
        (recorded, {"dims": {"B": 3}}, "an execution trace takes no dim: its sizes are those that"),
        (write(tmp_path), {"kineto": "k"}, "a Kineto trace takes no kineto: its sizes and times"),
    ):
        error = refused(path, **options)
        assert message in str(error)
        assert error.exit_code == 2


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "the file is empty"),
        (b"  \n", "the file is empty"),
        (b'model "m"', "this is a model already"),
        (b"Batch,time\n1,2\n", "no front end recognises this file"),
        (b"<html>", "no front end recognises this file"),
        (b'{"answer": 42}', "no front end recognises this file"),
        (b"\xff" * 100_000, "no front end recognises this file"),
    ],
)
def test_a_file_that_none_recognises_is_refused_with_the_formats_known(
    data: bytes, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(data)
    error = refused(path)
    assert (message in str(error), error.exit_code) == (True, 4)
    if "no front end" in message:
        for front_end in front_ends():
            assert front_end.name in str(error)


NAMES = sorted(module.name for module in pkgutil.iter_modules(shipped.__path__))


@pytest.mark.parametrize("name", NAMES)
def test_a_kind_of_file_is_recognised_by_its_own_front_end_alone(name: str, tmp_path: Path) -> None:
    example = getattr(examples, name, None)
    assert example, f"tests/capture/front_ends/examples.py has no {name}(path)"
    own = import_module(f"{shipped.__name__}.{name}").FRONT_END
    with Source(example(tmp_path / "file")) as source:
        assert [front_end for front_end in front_ends() if front_end.recognises(source)] == [own]


@pytest.mark.parametrize("name", NAMES)
def test_every_kind_of_file_is_documented(name: str) -> None:
    own = import_module(f"{shipped.__name__}.{name}").FRONT_END
    pages = [page.read_text(encoding="utf-8") for page in (PAGE, PAGE.with_name("traces.md"))]
    article, _, kind = own.name.partition(" ")
    assert article in ("a", "an"), f"the name of {name}.py's front end needs an article"
    assert any(kind in page for page in pages), f"no page tells of {own.name}: docs/front-ends.md"


def test_a_program_that_is_cut_short_is_still_recognised(tmp_path: Path) -> None:
    path = tmp_path / "p"
    path.write_bytes(examples.export(tmp_path / "p.pt2").read_bytes()[:1000])
    assert "not a program of torch.export" in str(refused(path))


PAGE = Path(__file__).parents[3] / "docs" / "front-ends.md"


@pytest.fixture
def toy(site: Path) -> Path:
    """Install a package with the front end that the page shows; return a file for it."""
    example = PAGE.read_text().partition("```python\n")[2].partition("```")[0]
    points = {"irgraph.front_ends": {"toys": "toys"}}
    install(site, "toys", points, {"toys/__init__.py": "", "toys/toy.py": example})
    path = site / "step.toy"
    path.write_text("toy 64 32 16\ntoy 2 3 4\n")
    return path


def test_a_format_is_one_file_of_an_installed_package(
    toy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    captured = irgraph.lower(toy, name="m", step=1)
    assert captured.graph.ops[0].results[0].shape == (2, 4)
    assert "a toy trace takes no dim: its sizes are written in it" in str(
        refused(toy, dims={"B": 1})
    )
    assert main(["lower", str(toy)]) == 0
    assert "%c = aten.mm(%a, %b) : f32[64, 16]" in capsys.readouterr().out
    toy.write_text("nothing")
    assert "a toy trace" in str(refused(toy))


@pytest.mark.parametrize(
    ("text", "reason"),
    [("", r"toys\.other .* defines no FRONT_END"), ("1 / 0", "ZeroDivisionError")],
)
def test_a_package_whose_front_end_is_wrong_is_named(toy: Path, text: str, reason: str) -> None:
    (toy.parent / "toys" / "other.py").write_text(text)
    with pytest.raises(IrgraphError, match=rf"plug-in 'toys' of toys 1\.0: .*{reason}"):
        irgraph.lower(toy)
