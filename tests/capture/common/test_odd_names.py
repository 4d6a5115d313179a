"""Names of a program that model.ir has no plain spelling for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from irgraph.capture.common.assemble import Assembler
from irgraph.capture.common.calls import CapturedCall
from irgraph.capture.common.damage import restore_bytes
from irgraph.capture.common.identity import Handle
from irgraph.ir.graph import Device, Graph
from irgraph.text import parse, print_graph

PATHS = (
    "a b", 'ü"\\', "\\ü", "x\ny", "😀", "é\x85", "\u2028z", "1", "\\u00fc", "a\tb",
    "𝔸1", "\\uffffffc3",
)  # fmt: skip


def words() -> st.SearchStrategy[str]:
    return st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)


@given(words(), words())
def test_names_of_any_characters_can_be_read_back(label: str, module: str) -> None:
    x = Handle("f32", (4,), None, 1, 0, "gpu0", hint=("param", label))
    y = Handle("f32", (4,), None, 2, 0, "gpu0")
    made = Assembler([CapturedCall("aten.neg", [x], [y], module=module)])
    devices = (Device("gpu0", "v100"),)
    graph = Graph("m", devices=devices, tensors=made.tensors, ops=made.ops)
    assert parse(print_graph(graph)) == graph


def test_modules_of_any_name_are_captured_under_it() -> None:
    import torch

    from irgraph.capture.live import capture

    model: Any = torch.nn.ModuleDict({path: torch.nn.Linear(2, 2, device="meta") for path in PATHS})

    def step() -> None:
        y = torch.ones(2, device="meta")
        for layer in model.values():
            y = layer(y)
        y.sum().backward()

    graph = capture(step, model=model).graph
    assert {op.module for op in graph.walk()} == {"", *PATHS}
    assert parse(print_graph(graph)) == graph


@pytest.mark.parametrize("name", ["weight ü", "7.bias", "ﬁ", "层"])
def test_names_of_onnx_are_plain(name: str, tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    from irgraph.capture.onnx import lower_onnx

    value = onnx.helper.make_tensor_value_info
    node = onnx.helper.make_node("Relu", [name], ["y"])
    graph = onnx.helper.make_graph([node], "g", [value(name, 1, (2,))], [value("y", 1, (2,))])
    onnx.save(onnx.helper.make_model(graph), tmp_path / "m.onnx")
    made = lower_onnx(tmp_path / "m.onnx").graph.tensors[0].tensor.name
    assert made.isascii()
    assert made.isidentifier()


def test_characters_that_only_look_mangled_stay() -> None:
    assert restore_bytes(rb"\uffffffc3\uffffffbc \\uffffffc3") == rb"%s \\uffffffc3" % "ü".encode()
