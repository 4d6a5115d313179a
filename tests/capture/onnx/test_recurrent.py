"""Recurrent layers of ONNX beside those of torch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from irgraph.capture.onnx.bind import UnsupportedError
from irgraph.capture.onnx.lower import lower_onnx
from irgraph.capture.onnx.operators.recurrent import RECURRENT
from irgraph.execute import execute

ORDER = {"LSTM": (0, 3, 1, 2), "GRU": (1, 0, 2)}
"""Where each of ONNX's gates lies among torch's, by the operator's description."""


def weights(op: str, module: torch.nn.RNNBase) -> list[torch.Tensor]:
    """Return W, R and B of ONNX of a layer of torch."""
    kinds = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    ends = ["_l0", "_l0_reverse"][: 1 + module.bidirectional]
    found = []
    for kind in kinds:
        rows = []
        for end in ends:
            gates = getattr(module, kind + end).detach().chunk(len(ORDER[op]))
            rows.append(torch.cat([gates[i] for i in ORDER[op]]))
        found.append(torch.stack(rows))
    return [*found[:2], torch.cat(found[2:], 1)]


@pytest.mark.parametrize("two", [False, True])
@pytest.mark.parametrize("first", [False, True])
def test_gated_units_are_those_of_torch(two: bool, first: bool) -> None:
    module = torch.nn.GRU(3, 5, bidirectional=two, batch_first=first)
    x = torch.rand(2, 4, 3) if first else torch.rand(4, 2, 3)
    out, state = module(x)
    direction = "bidirectional" if two else "forward"
    made, last = RECURRENT["GRU"](
        x, *weights("GRU", module), direction=direction, layout=int(first), linear_before_reset=1
    )
    expected = out.unflatten(2, (1 + two, 5))
    expected = expected if first else expected.transpose(1, 2)
    torch.testing.assert_close(made, expected)
    torch.testing.assert_close(last.transpose(0, 1) if first else last, state)


def test_a_reset_before_the_product_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="linear_before_reset = 0"):
        RECURRENT["GRU"](torch.rand(4, 2, 3), *weights("GRU", torch.nn.GRU(3, 5)))


def test_a_sequence_is_taken_backwards() -> None:
    module = torch.nn.LSTM(3, 5)
    x = torch.rand(4, 2, 3)
    out, (_, cell) = module(x.flip(0))
    made, _, last = RECURRENT["LSTM"](x, *weights("LSTM", module), direction="reverse")
    torch.testing.assert_close(made[:, 0], out.flip(0))
    torch.testing.assert_close(last, cell)


def test_weights_without_values_need_not_be_put_in_order(tmp_path: Path) -> None:
    shapes = {"w": (1, 64, 8), "r": (1, 64, 16), "b": (1, 128)}
    given = [numpy_helper.from_array(np.zeros(s, np.float32), n) for n, s in shapes.items()]
    node = helper.make_node("LSTM", ["x", "w", "r", "b"], ["y", "", "c"], hidden_size=16)
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (3, 2, 8))],
        [helper.make_empty_tensor_value_info(name) for name in ("y", "c")],
        given,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    found = lower_onnx(path).graph
    names = [op.name for op in found.walk()]
    assert "aten.lstm" in names
    assert not [name for name in names if name.startswith("onnx.")]
    laid = [op for op in found.walk() if op.name == "aten.cat"]
    assert not any(t.name in ("w", "r", "b") for op in laid for t in op.inputs)
    assert found.returned is not None
    made = execute(found)[found.returned[0].name]
    assert made.shape == (3, 1, 2, 16)
