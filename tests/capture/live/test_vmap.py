"""Steps that call vmap are refused; what make_fx writes out of them is captured whole."""

from __future__ import annotations

import pytest
import torch

from irgraph.capture.live import capture
from irgraph.diagnostics import IrgraphError

CALLS = {
    "vmap": lambda x: torch.vmap(lambda row: row.relu().sum())(x),
    "jacobian": lambda x: torch.func.jacrev(lambda row: row * row)(x[0]),
    "older vmap": lambda x: torch.autograd.functional.jacobian(torch.exp, x[0], vectorize=True),
}


@pytest.mark.parametrize("call", CALLS)
def test_vmap_is_refused_by_name(call: str) -> None:
    x = torch.empty(4, 8, device="meta")
    with pytest.raises(IrgraphError, match="vmap is not captured") as raised:
        capture(lambda: CALLS[call](x))
    assert "make_fx" in str(raised.value.diagnostics[0].hint)
    # the refusal ends with the capture
    assert torch.vmap(torch.sum)(torch.ones(2, 3)).tolist() == [3.0, 3.0]


def test_what_make_fx_writes_out_is_captured() -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    x = torch.empty(4, 8, device="meta")
    written = make_fx(CALLS["vmap"])(x)
    graph = capture(lambda: written(x)).graph
    assert [(op.name, op.outputs[0].shape) for op in graph.ops] == [
        ("aten.relu", (4, 8)),
        ("aten.sum", (4,)),
    ]


def test_gradients_by_function_need_no_vmap() -> None:
    x = torch.empty(4, 8, device="meta")
    graph = capture(lambda: torch.func.grad(lambda x: x.sum())(x)).graph
    assert "aten.sum" in {op.name for op in graph.walk()}
