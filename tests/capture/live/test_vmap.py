"""Steps that call vmap are refused; what make_fx writes out of them is captured whole."""

from __future__ import annotations

import copy

import pytest
import torch

from irgraph.capture.live import capture
from irgraph.diagnostics import IrgraphError
from irgraph.execute import execute

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


def test_gradients_by_function_are_calls_on_the_parameters_themselves() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))
    real = copy.deepcopy(model)
    model, x = model.to("meta"), torch.rand(4, 8)

    def step(net: torch.nn.Module, rows: torch.Tensor) -> torch.Tensor:
        def loss(params: dict[str, torch.Tensor], data: torch.Tensor) -> torch.Tensor:
            return torch.func.functional_call(net, params, data).square().mean()

        grads, value = torch.func.grad_and_value(loss)(dict(net.named_parameters()), rows)
        with torch.no_grad():
            for name, p in net.named_parameters():
                p.sub_(grads[name], alpha=0.1)
        return value

    graph = capture(lambda: step(model, x.to("meta")), model=model).graph
    assert sorted(d.label for d in graph.tensors if d.label) == sorted(
        dict(real.named_parameters())
    )
    given = {
        d.tensor.name: dict(real.named_parameters())[d.label].detach().clone()
        for d in graph.tensors
        if d.label
    }
    given |= {d.tensor.name: x for d in graph.tensors if not d.label}
    left = execute(graph, given)
    value = step(real, x)
    assert left[graph.returned[0].name].allclose(value)  # type: ignore[index]
    for declared in graph.tensors:
        if declared.label:
            wanted = real.get_parameter(declared.label).detach()
            assert left[declared.tensor.name].allclose(wanted, atol=1e-6)


FORWARDS = {
    "jvp": lambda x: torch.func.jvp(torch.exp, (x,), (torch.ones_like(x),)),
    "dual numbers": lambda x: torch.autograd.forward_ad.dual_level().__enter__(),
}


@pytest.mark.parametrize("call", FORWARDS)
def test_forward_mode_is_refused_by_name(call: str) -> None:
    x = torch.empty(4, 8, device="meta")
    with pytest.raises(IrgraphError, match="in forward mode are not captured"):
        capture(lambda: FORWARDS[call](x.relu()))


def test_operators_of_compilers_are_refused_with_what_to_do() -> None:
    x = torch.empty(4, 8, device="meta")
    with pytest.raises(IrgraphError) as raised:
        capture(lambda: torch.cond(x.sum() > 0, torch.exp, torch.relu, (x,)))
    assert "Python's if and for" in str(raised.value.diagnostics[0].hint)
