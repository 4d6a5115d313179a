"""Composites that CUDA runs as one kernel are captured undivided."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from irgraph.capture.common.result import Capture
from irgraph.capture.emulate.composites import CUDA_KERNELS, undivided_composites
from irgraph.capture.live import capture
from irgraph.execute import compare, execute
from irgraph.ops.verify import verify


def captured(module: nn.Module, x: torch.Tensor) -> Capture:
    result = capture(module, (x,), loss=lambda outputs: outputs.float().square().sum())
    assert verify(result.graph) == []
    assert compare(result.graph, result.graph).same
    return result


def test_the_table_has_all_composites_with_a_kernel_for_cuda() -> None:
    """Torch's generator ships the list of native functions with their kernels by backend."""
    yaml = pytest.importorskip("yaml")
    package = importlib.util.find_spec("torchgen")
    assert package is not None and package.origin is not None
    file = Path(package.origin).parent / "packaged/ATen/native/native_functions.yaml"
    names = set()
    for function in yaml.safe_load(file.read_text()):
        keys = ",".join(function.get("dispatch", {})).replace(" ", "").split(",")
        if "CUDA" in keys and "CompositeImplicitAutograd" in keys:
            names.add(function["func"].partition("(")[0].partition(".")[0])
    assert names == {name for name in CUDA_KERNELS if hasattr(torch.ops.aten, name)}


@pytest.mark.skipif(not hasattr(torch.ops.aten, "_fused_rms_norm"), reason="new in torch 2.8")
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("shape", [(16,), (4, 16)])
def test_rms_norm_is_one_kernel_forward_and_backward(affine: bool, shape: tuple[int, ...]) -> None:
    layers = nn.Sequential(nn.Linear(16, 16), nn.RMSNorm(shape, elementwise_affine=affine))
    graph = captured(layers, torch.rand(8, 4, 16)).graph
    bases = [leaf.base for leaf in graph.leaves()]
    assert bases.count("_fused_rms_norm") == bases.count("_fused_rms_norm_backward") == 1
    assert not {"rsqrt", "mean"} & set(bases)
    (norm,) = (leaf for leaf in graph.leaves() if leaf.base == "_fused_rms_norm")
    assert [tensor.dtype for tensor in norm.outputs] == ["f32", "f32"]
    assert graph.dims == {"B": 8}


def test_types_that_differ_are_taken_apart_as_torch_does() -> None:
    norm = nn.RMSNorm(16)
    graph = captured(norm, torch.rand(8, 16, dtype=torch.bfloat16)).graph
    assert not [leaf for leaf in graph.leaves() if leaf.base == "_fused_rms_norm"]


def test_the_backward_of_mish_is_one_kernel() -> None:
    graph = captured(nn.Sequential(nn.Linear(16, 16), nn.Mish()), torch.rand(8, 16)).graph
    assert [leaf.base for leaf in graph.leaves()].count("mish_backward") == 1
    assert "sigmoid" not in {leaf.base for leaf in graph.leaves()}


def test_inference_does_not_take_them_apart() -> None:
    layer, x = nn.RMSNorm(16).to("meta"), torch.rand(8, 16)

    def step() -> torch.Tensor:
        with torch.inference_mode():
            output: torch.Tensor = layer(x.to("meta"))
        return output

    bases = {leaf.base for leaf in capture(step).graph.leaves()}
    assert bases == {"_to_copy", "_fused_rms_norm"}


@pytest.mark.parametrize("shape", [(16,), (4, 16)])
def test_executed_gradients_are_those_of_torch(shape: tuple[int, ...]) -> None:
    x = torch.rand(8, 4, 16, dtype=torch.float64)
    layer = nn.RMSNorm(shape).double()
    nn.init.uniform_(layer.weight)

    class Squares(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = layer
            self.shift = nn.Parameter(torch.zeros_like(x[0]))

        def forward(self, given: torch.Tensor) -> torch.Tensor:
            return self.norm(given + self.shift)

    module = Squares()
    graph = capture(
        module, (x,), loss=lambda y: y.square().sin().sum(), optimizer=lambda p: torch.optim.SGD(p)
    ).graph
    values = {d.tensor.name: x for d in graph.tensors if d.role == "input"}
    named = {**dict(module.named_parameters())}
    values |= {d.tensor.name: named[d.label].detach().clone() for d in graph.tensors if d.label}
    after = execute(graph, values)
    module(x).square().sin().sum().backward()
    torch.optim.SGD(module.parameters()).step()
    for declared in graph.tensors:
        if declared.label:
            assert torch.allclose(after[declared.tensor.name], named[declared.label])


def test_torch_is_as_before_afterwards() -> None:
    x = torch.rand(4, 4, device="meta")
    with undivided_composites():
        pass
    assert F.rms_norm(x, (4,)).shape == (4, 4)
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    assert not any(has_kernel(f"aten::{name}", "Meta") for name in CUDA_KERNELS)
