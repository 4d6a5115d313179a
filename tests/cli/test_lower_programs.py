"""lower with ONNX models and exported programs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.cli.conftest import Ran

Run = Callable[..., Ran]


def test_lower_reads_onnx_by_its_suffix(run: Run, tmp_path: Path) -> None:
    import onnx

    helper = onnx.helper
    graph = helper.make_graph(
        [helper.make_node("GlobalLpPool", ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", 1, ("batch", 8, 4))],
        [helper.make_empty_tensor_value_info("y")],
    )
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    ran = run("lower", path, "--dim", "batch=32")
    assert ran.code == 0
    assert "= onnx.GlobalLpPool([%x]" in ran.out
    assert ": [f32[batch, 8, 1]" in ran.out
    assert "nothing in torch stands for GlobalLpPool (y)" in ran.err
    assert "--dim batch=SIZE" in run("lower", path).err
    assert run("lower", path, "--dim", "batch=some").code == 2
    assert "--dim: give NAME=SIZE" in run("lower", path, "--dim", "batch").err


def test_lower_reads_exported_programs_by_their_suffix(run: Run, tmp_path: Path) -> None:
    import torch

    path = tmp_path / "net.pt2"
    program = torch.export.export(torch.nn.Linear(8, 4), (torch.randn(2, 8),))
    torch.export.save(program, path)
    ran = run("lower", path, "--name", "layer")
    assert ran.code == 0
    assert ran.out.startswith('model "layer"')
    assert "aten.linear(" in ran.out
