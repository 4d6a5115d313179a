"""``fuse-embedding`` on captured steps of all kinds of bags leaves the same parameters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from irgraph.api import rewrite
from irgraph.capture.live import capture
from irgraph.execute import compare
from irgraph.ir.graph import Graph
from irgraph.manage.stage import Outcome
from irgraph.text import IrgraphError
from tests.execute.models import Step

BATCH, LOOKUPS = 4, 3


class Bags(nn.Module):
    """Bags of one or several tables, and class scores from what they give."""

    def __init__(self, tables: list[nn.EmbeddingBag], looks: Callable[..., Any]) -> None:
        super().__init__()
        self.tables = nn.ModuleList(tables)
        self.looks = looks
        self.head = nn.LazyLinear(5)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.head(torch.cat([y.float() for y in self.looks(self.tables, rows)], dim=1))


def table(rows: int = 9, width: int = 8, **options: Any) -> nn.EmbeddingBag:
    return nn.EmbeddingBag(rows, width, **{"mode": "sum", **options})


def plain(tables: Any, rows: torch.Tensor) -> list[torch.Tensor]:
    """Look up the same rows in each table."""
    return [bag(rows) for bag in tables]


def weighted(tables: Any, rows: torch.Tensor) -> list[torch.Tensor]:
    """Weigh each row that is looked up."""
    weights = torch.linspace(0.5, 2, BATCH * LOOKUPS, device=rows.device).view(BATCH, LOOKUPS)
    return [bag(rows, per_sample_weights=weights) for bag in tables]


def shared(tables: Any, rows: torch.Tensor) -> list[torch.Tensor]:
    """Look up different rows in the same tables."""
    return [bag(some) for some in (rows, rows.flip(0)) for bag in tables]


def chained(tables: Any, rows: torch.Tensor) -> list[torch.Tensor]:
    """Look up in the last tables the rows that the first ones point to."""
    half = len(tables) // 2
    first = [bag(rows) for bag in tables[:half]]
    pointed = (first[0].detach()[:, :LOOKUPS].abs() * 2).long().clamp(max=8)
    return [*first, *(bag(pointed) for bag in tables[half:])]


SGD = partial(torch.optim.SGD, lr=0.1, foreach=False)


class Head(torch.optim.SGD):
    """Updates the last layer only; the gradients of all others are made anew in each step."""

    def __init__(self, parameters: Any) -> None:
        self.every = list(parameters)
        super().__init__(self.every[-2:], lr=0.1, foreach=False)

    def zero_grad(self, set_to_none: bool = True) -> None:
        for parameter in self.every:
            parameter.grad = None


MOMENTUM = partial(torch.optim.SGD, lr=0.1, momentum=0.9, foreach=False)
SPARSE = {"sparse": True}
WIDTHS = [8, 8, 16, 16, 4]

FORWARD, BACKWARD, UPDATE = (
    f"irgraph.batched_embedding{what}" for what in ("", "_backward", "_sgd")
)
CASES: dict[str, tuple[Callable[[], list[nn.EmbeddingBag]], Any, Any, dict[str, int]]] = {
    "26 tables": (lambda: [table(k + 3) for k in range(26)], plain, SGD, {FORWARD: 1, UPDATE: 1}),
    "26 tables, sparse": (
        lambda: [table(k + 3, **SPARSE) for k in range(26)],
        plain,
        SGD,
        {FORWARD: 1, UPDATE: 1},
    ),
    "momentum": (lambda: [table(), table()], plain, MOMENTUM, {FORWARD: 1, BACKWARD: 1}),
    "kept gradients": (lambda: [table(), table()], plain, Head, {FORWARD: 1, BACKWARD: 1}),
    "kept gradients, sparse": (
        lambda: [table(**SPARSE), table(**SPARSE)],
        plain,
        Head,
        {FORWARD: 1, BACKWARD: 1},
    ),
    "widths": (
        lambda: [table(width=width) for width in WIDTHS],
        plain,
        SGD,
        {FORWARD: 2, UPDATE: 2},
    ),
    "types": (
        lambda: [table(dtype=kind) for kind in (torch.float32, torch.float64) * 2],
        plain,
        SGD,
        {FORWARD: 2, UPDATE: 2},
    ),
    "means and sums": (
        lambda: [table(mode=mode) for mode in ("mean", "sum") * 2],
        plain,
        SGD,
        {FORWARD: 2, UPDATE: 2},
    ),
    "maxima": (lambda: [table(mode="max"), table(mode="max")], plain, SGD, {}),
    "weights": (lambda: [table(), table()], weighted, SGD, {FORWARD: 1, UPDATE: 1}),
    "weights, sparse": (
        lambda: [table(**SPARSE), table(**SPARSE)],
        weighted,
        SGD,
        {FORWARD: 1, UPDATE: 1},
    ),
    "weights, momentum": (
        lambda: [table(), table()],
        weighted,
        MOMENTUM,
        {FORWARD: 1, BACKWARD: 1},
    ),
    "shared": (lambda: [table(), table()], shared, SGD, {FORWARD: 1, BACKWARD: 1}),
    "chained": (lambda: [table() for _ in range(4)], chained, SGD, {FORWARD: 2, UPDATE: 1}),
}


def step(name: str) -> Graph:
    """Return the captured step of a case."""
    made, looks, optimizer, _ = CASES[name]
    rows = torch.arange(BATCH * LOOKUPS).view(BATCH, LOOKUPS) % 3
    model = Bags(made(), looks)
    model(rows)
    return capture(Step(model, (rows, torch.arange(BATCH)), optimizer), device="cpu").graph


def fused(outcome: Outcome) -> dict[str, int]:
    """Return how many fused ops there are of each kind."""
    names = Counter(op.name for op in outcome.graph.walk() if op.name.startswith("irgraph."))
    return dict(names)


@pytest.mark.parametrize("name", CASES)
def test_just_what_may_be_fused_is_and_leaves_the_same(name: str) -> None:
    before = step(name)
    outcome = rewrite(before, "fuse-embedding")
    assert fused(outcome) == CASES[name][3]
    result = compare(before, outcome.graph)
    assert result.same, str(result)
    tables = [one for one in result.compared if one.label.startswith("tables")]
    updated = 0 if CASES[name][2] is Head else len(CASES[name][0]())
    assert sum(one.kind == "param" and one.changed for one in tables) == updated


def test_sparse_gradients_of_a_shared_table_are_added_before_its_update() -> None:
    CASES["shared, sparse"] = (lambda: [table(**SPARSE)] * 2, shared, SGD, {})
    before = step("shared, sparse")
    outcome = rewrite(before, "fuse-embedding")
    # the size of their sum depends on which rows both read: such a step is not executable
    assert fused(outcome) == {FORWARD: 1, BACKWARD: 1}


def test_a_sparse_tensor_from_before_the_step_is_told() -> None:
    momentum = partial(torch.optim.SGD, lr=0.1, momentum=0.9, foreach=False)
    CASES["sparse momentum"] = (lambda: [table(**SPARSE)], plain, momentum, {})
    graph = step("sparse momentum")
    with pytest.raises(IrgraphError, match="is sparse and exists before the step"):
        compare(graph, graph)
