"""Variants of a measured program compute the same update."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from costmodels.measurements.programs import llama

SIZES = {"layers": 1, "width": 32, "heads": 4, "groups": 2, "hidden": 48, "length": 16, "words": 40}


def gradients(**options: Any) -> list[torch.Tensor]:
    """Return the gradients of a small Llama's first step."""
    torch.manual_seed(0)
    step = llama(2, "cpu", **SIZES, **options)
    step()
    return [weight.grad.float() for weight in step.model.parameters()]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "options",
    [{"spelt": False}, {"keep": False}, {"chunks": 4}, {"micro": 2}, {"update": "foreach"}],
    ids=str,
)
def test_a_variant_of_a_llama_has_the_same_gradients(options: dict[str, Any]) -> None:
    for first, second in zip(gradients(), gradients(**options), strict=True):
        assert float(first.abs().max()) > 0
        assert float((first - second).norm() / first.norm()) < 0.02
