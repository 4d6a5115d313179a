"""Tensors that wrap others, attention that no meta device has, shares of the batch."""

from __future__ import annotations

from pathlib import Path

import pytest

from irgraph.capture.common.result import Capture
from irgraph.capture.live import capture_file
from irgraph.execute import compare
from irgraph.ops.verify import verify
from irgraph.text import IrgraphError, parse, print_graph

HEAD = """
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention.flex_attention import flex_attention

def train(batch, device):
    model = nn.Linear(8, 8).to(device)
    rows, offsets = torch.rand(4 * batch, 8), torch.arange(batch + 1) * 4

    def jagged():
        return torch.nested.nested_tensor_from_jagged(
            rows.to(device), offsets.to(device), min_seqlen=4, max_seqlen=4)

    def step():
"""


def taken(folder: Path, text: str) -> Capture:
    body = "\n".join(f"        {line}" for line in text.strip().splitlines())
    (folder / "mine.py").write_text(f"{HEAD}{body}\n    return step\n")
    captured = capture_file(f"{folder}/mine.py:train", batch=16)
    assert verify(captured.graph) == []
    assert parse(print_graph(captured.graph)) == captured.graph
    return captured


def test_jagged_tensors_are_calls_on_their_values(tmp_path: Path) -> None:
    graph = taken(
        tmp_path,
        """
hidden = F.rms_norm(model(jagged()), (8,)).relu()
hidden.to_padded_tensor(0.0).sum().backward()
""",
    ).graph
    assert graph.dims == {"B": 16}
    assert all(
        tensor.shape or op.base in ("sum", "ones_like")
        for op in graph.leaves()
        for tensor in op.outputs
    )
    (padded,) = (op for op in graph.leaves() if op.base == "_jagged_to_padded_dense_forward")
    assert [str(size) for size in padded.outputs[0].shape] == ["B", "4", "8"]
    assert {op.base for op in graph.leaves()} >= {"addmm", "rsqrt", "relu", "threshold_backward"}
    assert {d.role for d in graph.tensors} == {"input", "param", "state"}


def test_what_jagged_tensors_give_is_executed(tmp_path: Path) -> None:
    graph = taken(tmp_path, "return model(jagged()).relu().values()").graph
    assert compare(graph, graph).same


def test_a_step_may_return_and_hold_jagged_tensors(tmp_path: Path) -> None:
    graph = taken(tmp_path, "step.held = jagged()\nreturn model(jagged())").graph
    (made,) = (op.outputs[0] for op in graph.leaves() if op.base == "addmm")
    assert made.buffer in {tensor.buffer for tensor in graph.returned or ()}


@pytest.mark.parametrize(
    ("call", "hint"),
    [
        ("q = jagged().unsqueeze(1)\nF.scaled_dot_product_attention(q, q, q)", "pad them"),
        (
            "q = rows.to(device).view(-1, 1, 4, 8)\n"
            "flex_attention(q, q, q, lambda s, b, h, i, j: s.cumsum(-1))",
            "with a mask",
        ),
    ],
)
def test_attention_without_a_form_on_meta_is_refused(tmp_path: Path, call: str, hint: str) -> None:
    with pytest.raises(IrgraphError, match=hint):
        taken(tmp_path, call)


def test_halves_of_a_batch_are_told(tmp_path: Path) -> None:
    captured = taken(tmp_path, "a, b = rows[:len(offsets) - 1].to(device).chunk(2)\nreturn a + b")
    assert captured.graph.dims == {"B": 16}
    assert any("8 is B/2, no whole multiple" in note for note in captured.notes)
