"""``fuse-qkv``: three linear layers of one input become one product."""

from __future__ import annotations

from collections import Counter
from functools import cache

import torch
from torch import nn
from torch.nn import functional

from irgraph.api import rewrite
from irgraph.capture.live import capture
from irgraph.execute import compare
from irgraph.ir.graph import Graph
from irgraph.language import load_script, run
from irgraph.ops.verify import verify
from tests.execute.models import Step, sgd


class Attention(nn.Module):
    """Attention behind a norm, with layers apart or as one product."""

    def __init__(self, joined: bool, shared: bool = False) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.query, self.key, self.value, self.out = (nn.Linear(8, 8) for _ in range(4))
        self.joined, self.shared = joined, shared

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [B, T, 8] for the same."""
        batch, length, width = x.shape
        normed = self.norm(x)
        layers = (self.query, self.key, self.value)
        if self.joined:
            weight = torch.cat([layer.weight for layer in layers])
            bias = torch.cat([layer.bias for layer in layers])
            parts = functional.linear(normed, weight, bias).split([8, 8, 8], dim=-1)
        else:
            parts = tuple(layer(normed) for layer in layers)
        split = (part.view(batch, length, 2, 4).transpose(1, 2) for part in parts)
        mixed = functional.scaled_dot_product_attention(*split)
        made = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return made + normed if self.shared else made


@cache
def graph_of(joined: bool, shared: bool = False) -> Graph:
    model = nn.Sequential(Attention(joined, shared), nn.Flatten(), nn.Linear(24, 5)).to("meta")
    data = (torch.rand(4, 3, 8), torch.arange(4) % 5)
    return capture(Step(model, data, sgd), device="meta").graph


def test_it_is_the_program_with_one_product() -> None:
    before, meant = graph_of(False), graph_of(True)
    after = rewrite(before, "fuse-qkv").graph
    assert verify(after) == []
    kernels = (Counter(op.name for op in g.leaves()) for g in (before, after, meant))
    first, made, wanted = (count["aten.addmm"] + count["aten.mm"] for count in kernels)
    assert made == wanted == first - 6
    assert compare(before, after).same
    updated = [one for one in compare(after, meant).compared if one.kind in ("param", "returned")]
    assert len(updated) == 13
    assert all(one.same for one in updated)  # gradients have other names in the other program


def test_an_input_whose_gradient_has_other_parts_is_left_alone() -> None:
    graph = graph_of(False, shared=True)
    assert rewrite(graph, "fuse-qkv").graph == graph


def test_layers_without_biases_are_no_match_of_those_with_biases() -> None:
    model = nn.ModuleList(nn.Linear(8, 8, bias=False) for _ in range(3)).to("meta")

    def infer() -> torch.Tensor:
        x = torch.zeros(4, 8, device="meta")
        return torch.stack([layer(x) for layer in model])

    graph = capture(infer, device="meta").graph
    report = str(run(load_script("apply fuse-qkv"), graph).report)
    assert "3 ops became 6" in report
    assert "not replaced" not in report
