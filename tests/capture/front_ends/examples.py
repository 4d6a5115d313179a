"""A small file of every kind that a front end lowers: one function for each file of front ends."""

from __future__ import annotations

from pathlib import Path

from tests.capture.chakra.converter import converted
from tests.capture.execution_trace.fuzz import rows
from tests.capture.execution_trace.traces import trace
from tests.capture.kineto.builder import write


def execution_trace(path: Path) -> Path:
    """Write an execution trace."""
    path.write_bytes(trace(*rows()))
    return path


def export(path: Path) -> Path:
    """Write a program of torch.export."""
    import torch

    made = torch.export.export(torch.nn.Linear(8, 4), (torch.randn(2, 8),))
    torch.export.save(made, path)
    return path


def kineto(path: Path) -> Path:
    """Write a Kineto trace."""
    return write(path.parent, name=path.name)


def onnx(path: Path) -> Path:
    """Write an ONNX model."""
    import onnx

    helper = onnx.helper
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", 1, ("batch", 8))],
        [helper.make_empty_tensor_value_info("y")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


def recording(path: Path) -> Path:
    """Make a folder of recordings."""
    path.mkdir()
    return path


def chakra(path: Path) -> Path:
    """Write a Chakra trace."""
    path.write_bytes(converted(trace(*rows(), version="1.1.0")))
    return path
