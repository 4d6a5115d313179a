"""Optimizer steps of every kind become fused ones that leave the same parameters and state."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from irgraph.api import rewrite
from irgraph.capture.live import capture
from irgraph.execute import compare
from irgraph.ir.graph import Graph
from tests.execute.models import Step

SGD = partial(torch.optim.SGD, lr=0.1)
KINDS: dict[str, Any] = {
    "sgd": SGD,
    "sgd-decay": partial(SGD, weight_decay=0.01),
    "sgd-momentum": partial(SGD, momentum=0.9),
    "sgd-momentum-decay": partial(SGD, momentum=0.9, weight_decay=0.01),
    "sgd-dampening": partial(SGD, momentum=0.9, dampening=0.3),
    "sgd-nesterov": partial(SGD, momentum=0.9, nesterov=True),
    "sgd-nesterov-decay": partial(SGD, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adam": torch.optim.Adam,
    "adam-decay": partial(torch.optim.Adam, weight_decay=0.01),
    "adamw": torch.optim.AdamW,
}
WRITES_GRADIENTS = "sgd-nesterov"
"""Torch's foreach series of it writes the gradients, which a fused step does not."""


def step(kind: str, foreach: bool) -> Graph:
    """Return a captured step of a small network."""
    with torch.device("meta"):
        layers = torch.nn.Sequential(torch.nn.Linear(6, 7), torch.nn.ReLU(), torch.nn.Linear(7, 5))
    data = (torch.rand(4, 6), torch.arange(4))
    return capture(Step(layers, data, partial(KINDS[kind], foreach=foreach)), device="meta").graph


def updates(graph: Graph) -> list[str]:
    """Return the ops that write parameters."""
    params = {d.tensor.name for d in graph.tensors if d.role == "param"}
    return [op.name for op in graph.leaves() if op.written & params]


@pytest.mark.parametrize("foreach", [False, True], ids=["loop", "foreach"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_step_becomes_one_update_that_leaves_the_same(kind: str, foreach: bool) -> None:
    before = step(kind, foreach)
    after = rewrite(before, "fuse-optimizer").graph
    if foreach and kind in ("sgd", WRITES_GRADIENTS):
        assert after == before
        return
    fused = "irgraph.fused_adam" if "adam" in kind else "aten._fused_sgd_"
    assert updates(after) == ["aten._foreach_add_" if kind == "sgd" else fused]
    assert not [op for op in after.walk() if op.name == "aten.item"]
    result = compare(before, after)
    assert result.same, str(result)
    kinds = {one.kind for one in result.compared if one.changed}
    stateful = kind not in ("sgd", "sgd-decay")
    assert kinds == {"param", "gradient", "returned", *(["state"] if stateful else [])}


@pytest.mark.parametrize(("name", "wrong"), [("weight", 0.101), ("beta2", 0.99), ("decay", 0.999)])
def test_a_wrong_constant_of_a_fused_step_is_caught(name: str, wrong: float) -> None:
    from tests.execute.test_compare import changed

    before = step("adamw", foreach=True)
    after = rewrite(before, "fuse-adam").graph

    def set_wrong(op: Any) -> Any:
        return replace(op, attributes={**op.attributes, name: wrong})

    assert not compare(before, changed(after, "irgraph.fused_adam", set_wrong)).same


def test_reads_of_step_counts_stay_where_the_step_is_not_fused() -> None:
    with torch.device("meta"):
        layers = torch.nn.Linear(6, 5)
    data = (torch.rand(4, 6), torch.arange(4))
    optimizer = partial(torch.optim.Adam, amsgrad=True, foreach=True)
    before = capture(Step(layers, data, optimizer), device="meta").graph
    assert rewrite(before, "fuse-optimizer").graph == before


def test_sparse_gradients_are_updated_table_by_table() -> None:
    from tests.execute.test_compare import dlrm_graph

    before = dlrm_graph("ddp", "meta", True)
    after = rewrite(before, "fuse-optimizer").graph
    alone = [op.inputs[0].name for op in after.leaves() if op.name == "aten.add_"]
    assert [name for name in alone if name.startswith("tables")] == [
        f"tables_{k}_weight" for k in range(8)
    ]
    assert compare(before, after).same
