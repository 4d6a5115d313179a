"""Variants of a measured program compute the same update."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from costmodels.measurements.programs import llama

SIZES = {"layers": 1, "width": 32, "heads": 4, "groups": 2, "hidden": 48, "length": 16, "words": 40}


def updated_weights(**options: Any) -> list[torch.Tensor]:
    """Return the weights of a small Llama after two steps."""
    torch.manual_seed(0)
    step = llama(2, "cpu", **SIZES, **options)
    step()
    step()
    return [weight.detach().float() for weight in step.model.parameters()]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "options",
    [{"spelt": False}, {"keep": False}, {"chunks": 4}, {"micro": 2}, {"update": "foreach"}],
    ids=str,
)
def test_a_variant_of_a_llama_updates_equally(options: dict[str, Any]) -> None:
    pairs = zip(updated_weights(), updated_weights(**options), strict=True)
    assert all(torch.allclose(first, second, atol=5e-4, rtol=1e-2) for first, second in pairs)
