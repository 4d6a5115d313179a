"""``fuse-bias-gelu``: the GELU's kernel adds the bias of the layer before it."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import nn
from torch.nn import functional

from irgraph.api import rewrite
from irgraph.capture.live import capture
from irgraph.execute import compare
from irgraph.ir.graph import Graph
from irgraph.ops.verify import verify
from tests.execute.models import Step, sgd


class Addmm(nn.Module):
    """GPT-2's layer: a product in torch's own terms, between two views."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.rand(8, 6)), nn.Parameter(torch.rand(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [..., 6] for [..., 8]."""
        flat = torch.addmm(self.bias, x.view(-1, 8), self.weight)
        return flat.view(*x.shape[:-1], 6)


class Fused(nn.Linear):
    """A linear layer whose bias the GELU adds."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [..., 6] for [..., 8]."""
        product = functional.linear(x, self.weight)
        return torch.ops.irgraph.bias_gelu(product, self.bias, approximate="tanh")


def graph_of(*layers: nn.Module, batch: tuple[int, ...] = (4, 8)) -> Graph:
    model = nn.Sequential(*layers, nn.Flatten(), nn.LazyLinear(5))
    model(torch.rand(batch))
    data = (torch.rand(batch), torch.arange(batch[0]) % 5)
    return capture(Step(model.to("meta"), data, sgd), device="meta").graph


def kernels(graph: Graph) -> Counter[str]:
    return Counter(op.name for op in graph.leaves())


@pytest.mark.long
@pytest.mark.parametrize("kind", ["none", "tanh"])
@pytest.mark.parametrize("batch", [(4, 8), (4, 3, 8)])
@pytest.mark.parametrize("layer", [nn.Linear, Addmm])
def test_a_layer_s_bias_is_added_by_its_gelu_both_ways(
    layer: type[nn.Module], batch: tuple[int, ...], kind: str
) -> None:
    before = graph_of(layer(8, 6) if layer is nn.Linear else Addmm(), nn.GELU(kind), batch=batch)
    after = rewrite(before, "fuse-bias-gelu").graph
    assert verify(after) == []
    first, made = kernels(before), kernels(after)
    assert (made["irgraph.bias_gelu"], made["irgraph.bias_gelu_backward"]) == (1, 1)
    assert not {"aten.gelu", "aten.gelu_backward"} & made.keys()
    assert made["aten.sum"] == first["aten.sum"] - 1
    result = compare(before, after)
    assert result.same, str(result)


def test_it_is_the_program_with_the_op() -> None:
    before, meant = graph_of(nn.Linear(8, 6), nn.GELU("tanh")), graph_of(Fused(8, 6))
    after = rewrite(before, "fuse-bias-gelu").graph
    assert kernels(after) == kernels(meant)


class Watched(nn.Linear):
    """Hands on what the GELU reads, too."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [..., 6] for [..., 8]."""
        made = super().forward(x)
        return functional.gelu(made) + made


@pytest.mark.parametrize("layer", [Watched(8, 6), nn.Sequential(nn.Linear(8, 6, False), nn.GELU())])
def test_what_has_no_bias_of_its_own_or_is_read_by_others_is_left_alone(layer: nn.Module) -> None:
    graph = graph_of(layer)
    assert rewrite(graph, "fuse-bias-gelu").graph == graph
