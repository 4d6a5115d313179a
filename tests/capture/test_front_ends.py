"""Files are lowered by what they hold, whatever they are called."""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path

import pytest

import irgraph
from irgraph.capture.front_ends import kind_of
from irgraph.text import IrgraphError
from tests.capture.fuzz import rows
from tests.capture.traces import trace


def onnx_model(path: Path) -> Path:
    onnx = pytest.importorskip("onnx")
    helper = onnx.helper
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", 1, ("batch", 8))],
        [helper.make_empty_tensor_value_info("y")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


def program(path: Path) -> Path:
    torch = pytest.importorskip("torch")
    made = torch.export.export(torch.nn.Linear(8, 4), (torch.randn(2, 8),))
    torch.export.save(made, path)
    return path


def test_an_onnx_model_needs_no_suffix(tmp_path: Path) -> None:
    path = onnx_model(tmp_path / "model.bin")
    graph = irgraph.lower(path, dims={"batch": 4}, name="m").graph
    assert (graph.name, [op.name for op in graph.ops]) == ("m", ["aten.relu"])


def test_a_program_needs_no_suffix(tmp_path: Path) -> None:
    saved = program(tmp_path / "net.pt2")
    path = tmp_path / "net"
    shutil.copy(saved, path)
    assert [op.name for op in irgraph.lower(path).graph.ops] == ["aten.linear"]


@pytest.mark.parametrize("packed", [False, True])
def test_a_trace_needs_no_suffix(packed: bool, tmp_path: Path) -> None:
    data = trace(*rows(), version="1.1.1")
    path = tmp_path / "trace.onnx"
    path.write_bytes(gzip.compress(data) if packed else data)
    assert irgraph.lower(path).graph.ops


def test_what_is_not_there_or_empty_is_read_by_its_suffix(tmp_path: Path) -> None:
    (tmp_path / "empty.onnx").write_bytes(b"")
    assert kind_of(tmp_path / "empty.onnx") == "onnx"
    assert kind_of(tmp_path / "missing.pt2") == "export"
    assert kind_of("-") == "trace"


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("m.onnx", {"step": 1}, "an ONNX model takes no step: it is one forward pass"),
        ("m.onnx", {"kineto": "k.json"}, "an ONNX model takes no kineto"),
        ("m.pt2", {"step": 1}, "an exported program takes no step"),
        ("m.json", {"dims": {"B": 3}}, "an execution trace takes no dim: its sizes are those that"),
    ],
)
def test_options_that_do_not_suit_a_file_are_refused(
    name: str, options: dict[str, object], message: str, tmp_path: Path
) -> None:
    with pytest.raises(IrgraphError) as caught:
        irgraph.lower(tmp_path / name, **options)  # type: ignore[arg-type]
    assert message in str(caught.value)
    assert caught.value.exit_code == 2
