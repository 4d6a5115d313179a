"""Programs of torch.export as graphs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from irgraph.capture.export import lower_export
from irgraph.diagnostics import IrgraphError
from irgraph.ir.resize import with_dims
from irgraph.ops.verify import verify
from irgraph.predict.prediction import predict


class Net(torch.nn.Module):  # type: ignore[misc,name-defined,unused-ignore]
    """Two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(16, 32)
        self.last = torch.nn.Linear(32, 4)

    def forward(self, x: Any) -> Any:
        return self.last(torch.relu(self.first(x)))


@pytest.fixture(scope="module")
def program() -> Any:
    batch = torch.export.Dim("batch", min=2, max=4096)
    return torch.export.export(Net().eval(), (torch.randn(8, 16),), dynamic_shapes=({0: batch},))


def test_a_program_s_forward_pass_is_its_ops(program: Any) -> None:
    graph = lower_export(program).graph
    assert verify(graph) == []
    assert [op.name for op in graph.ops] == ["aten.linear", "aten.relu", "aten.linear"]
    assert {d.label for d in graph.tensors if d.label} == {
        "first.weight",
        "first.bias",
        "last.weight",
        "last.bias",
    }
    assert not predict(graph).priced.unknown


def test_a_file_is_lowered_at_another_size(program: Any, tmp_path: Path) -> None:
    path = tmp_path / "net.pt2"
    torch.export.save(program, path)
    dim = lower_export(path).notes[-1].partition(" ")[0]
    captured = lower_export(path, dims={dim: 64})
    assert captured.graph.name == "net"
    assert captured.graph.ops[-1].outputs[0].shape == (64, 4)
    assert f"{dim} is 64" in captured.notes
    assert captured.graph.dims == {dim: 64}
    assert with_dims(captured.graph, {dim: 8}).ops[-1].outputs[0].shape == (8, 4)


def test_an_unknown_dimension_is_refused(program: Any) -> None:
    with pytest.raises(IrgraphError, match="the program has no dimension 'depth'"):
        lower_export(program, dims={"depth": 3})


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "net.pt2"
    with pytest.raises(IrgraphError, match="No such file"):
        lower_export(path)
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(IrgraphError, match=r"not a program of torch\.export"):
        lower_export(path)


def test_what_torch_logs_of_a_damaged_file_reaches_nobody(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "cut.pt2"
    path.write_bytes(b"PK\x03\x04" + bytes(200))
    with pytest.raises(IrgraphError, match="it is truncated or not a program"):
        lower_export(path)
    assert caplog.records == []
    assert capfd.readouterr().err == ""


class Paired(torch.nn.Module):  # type: ignore[misc]
    """Takes twice as many of one input as of the other."""

    def forward(self, x: Any, y: Any) -> Any:
        return torch.cat([x, y]), x @ y.T


@pytest.mark.parametrize("loaded", [False, True])
def test_sizes_that_follow_from_others_follow(loaded: bool, tmp_path: Path) -> None:
    batch = torch.export.Dim("batch", min=2, max=4096)
    example = torch.randn(8, 4), torch.randn(16, 4)
    shapes = {"x": {0: batch}, "y": {0: 2 * batch}}
    program = torch.export.export(Paired(), example, dynamic_shapes=shapes)
    if loaded:
        torch.export.save(program, tmp_path / "p.pt2")
        program = torch.export.load(tmp_path / "p.pt2")
    (name,) = lower_export(program).graph.dims
    assert loaded or name == "batch"  # a file does not keep the name
    graph = lower_export(program, dims={name: 32}).graph
    assert graph.dims == {name: 32}
    assert [tuple(t.shape) for t in graph.returned or ()] == [(96, 4), (32, 64)]
    assert str(graph.returned[1].shape[1]) == f"2*{name}"
