"""Sides of the branches of ops that values reach."""

from __future__ import annotations

from typing import Any

import pytest
from torch import tensor

from irgraph.execute.branches import regions_of

TIES = tensor([[1.0, 1.0, 0.0], [2.0, 3.0, 4.0]])
SIGNS = tensor([-7.0, 7.0])
ONES = tensor([[1.0]])

REACHED: dict[str, tuple[str, dict[str, Any], set[str]]] = {
    "topk": ("topk", {"self": TIES, "k": 1}, {"ties"}),
    "topk of columns": ("topk", {"self": TIES, "k": 1, "dim": 0}, set()),
    "argsort": ("argsort", {"self": TIES}, {"ties"}),
    "sort of columns": ("sort", {"self": TIES, "dim": 0}, set()),
    "kthvalue": ("kthvalue", {"self": TIES, "k": 2}, {"ties"}),
    "median": ("median", {"self": TIES}, {"ties"}),
    "cummax": ("cummax", {"self": TIES, "dim": 1}, {"ties"}),
    "prelu": ("prelu", {"self": SIGNS, "weight": 0.5}, {"below 0", "above 0"}),
    "a rounded quotient": (
        "div", {"self": SIGNS, "other": 2, "rounding_mode": "floor"},
        {"below 0 with a remainder", "above 0 with a remainder"},
    ),
    "an exact quotient": ("floor_divide", {"self": SIGNS, "other": 7}, set()),
    "a quotient by zero": ("remainder", {"self": tensor([3]), "other": tensor([0])}, set()),
    "a quotient": ("div", {"self": SIGNS, "other": 2}, set()),
    "a product of a ReLU": (
        "addmm_relu", {"self": tensor([[-3.0]]), "mat1": ONES, "mat2": ONES}, {"below 0"},
    ),
    "a product of a GELU": (
        "_addmm_activation",
        {"self": ONES, "mat1": ONES, "mat2": ONES, "use_gelu": True},
        set(),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REACHED)
def test_sides_that_values_reach(name: str) -> None:
    base, arguments, sides = REACHED[name]
    assert {side for side, elements in regions_of(base, arguments) if elements.any()} == sides
