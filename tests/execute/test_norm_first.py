"""Steps whose first layer is a norm: its backward returns no gradient of the input."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from irgraph.execute import compare
from tests.verbs.test_both_passes import graph_of, step_of

NORMS = {
    "batch": lambda: nn.BatchNorm1d(8),
    "batch without weights": lambda: nn.BatchNorm1d(8, affine=False),
    "group": lambda: nn.GroupNorm(2, 8),
    "layer": lambda: nn.LayerNorm(8),
}


@pytest.mark.parametrize("name", NORMS)
def test_a_norm_that_comes_first_is_compared(name: str) -> None:
    graph = graph_of(step_of(torch.relu, model=nn.Sequential(NORMS[name](), nn.Linear(8, 3))))
    result = compare(graph, graph, draws=2)
    assert (result.same, result.exact) == (True, True)
