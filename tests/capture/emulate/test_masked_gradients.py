"""Gradients that ``output_mask`` excludes are no results, on the meta device as on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch

from irgraph.capture.emulate.fallbacks import run
from irgraph.capture.emulate.known_values import KnownValues

aten = torch.ops.aten
Arguments = tuple[Any, ...]


def batch_norm() -> tuple[Any, Arguments]:
    x, weight = torch.randn(4, 3), torch.ones(3)
    mean, var = torch.zeros(3), torch.ones(3)
    arguments = (torch.randn(4, 3), x, weight, mean, var, mean.clone(), var.clone(), True, 1e-5)
    return aten.native_batch_norm_backward.default, arguments


def layer_norm() -> tuple[Any, Arguments]:
    x, weight = torch.randn(4, 3), torch.ones(3)
    arguments = (torch.randn(4, 3), x, [3], torch.zeros(4, 1), torch.ones(4, 1), weight, weight)
    return aten.native_layer_norm_backward.default, arguments


def group_norm() -> tuple[Any, Arguments]:
    x, weight = torch.randn(4, 6, 2), torch.ones(6)
    statistics = torch.zeros(4, 2), torch.ones(4, 2)
    arguments = (torch.randn(4, 6, 2), x, *statistics, weight, 4, 6, 2, 2)
    return aten.native_group_norm_backward.default, arguments


def to_meta(value: Any) -> Any:
    return value.to("meta") if isinstance(value, torch.Tensor) else value


@pytest.mark.parametrize("call", [batch_norm, layer_norm, group_norm])
def test_masked_gradients_are_absent(call: Callable[[], tuple[Any, Arguments]]) -> None:
    operator, arguments = call()
    on_meta = tuple(map(to_meta, arguments))
    for mask in product([True, False], repeat=3):
        expected = operator(*arguments, list(mask))
        results = run(operator, (*on_meta, list(mask)), {}, [], KnownValues())
        assert [t is None for t in results] == [t is None for t in expected], mask
