"""A captured step, executed, leaves what the real step left: to the bit, on the same values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from examples import dlrm, mlp
from irgraph.capture.live import capture
from irgraph.execute import execute
from irgraph.ir.graph import Graph
from tests.execute.models import conv_step, transformer_step, values_of

SMALL = {"max_rows": 40, "lookups": 3}


def small_mlp(batch: int, device: str) -> Any:
    """Return the example's step, with its data where the helpers look for it."""
    step = mlp.train(batch, device, width=16)
    step.inputs = (step.features, step.classes)  # type: ignore[attr-defined]
    return step


def dlrm_step(name: str, sparse: bool) -> Callable[[int, str], Any]:
    """Return what makes a small step of one of the example's configurations."""
    return lambda batch, device: getattr(dlrm, name)(batch, device, sparse=sparse, **SMALL)


STEPS = {
    "conv": conv_step,
    "transformer": transformer_step,
    "mlp": small_mlp,
    "dlrm-default": dlrm_step("default", False),
    "dlrm-default-sparse": dlrm_step("default", True),
    "dlrm-mlperf": dlrm_step("mlperf", False),
    "dlrm-mlperf-sparse": dlrm_step("mlperf", True),
    "dlrm-ddp": dlrm_step("ddp", False),
}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Compute on one thread, as executions do."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("name", STEPS)
def test_an_executed_capture_leaves_what_the_step_left(name: str) -> None:
    graph, step = captured(STEPS[name]), warmed(STEPS[name])
    before = start(graph, step)
    step()
    after = values_of(graph, step)
    left = execute(graph, before)
    changed = {name for name, value in after.items() if not torch.equal(value, before[name])}
    assert changed >= {d.tensor.name for d in graph.tensors if d.role == "param"}
    assert [n for n, value in after.items() if not torch.equal(value, left[n])] == []


def captured(make: Callable[[int, str], Any]) -> Graph:
    """Return the graph of a step, as it is after one step to warm up."""
    torch.manual_seed(0)
    return capture(make(4, "cpu"), device="cpu").graph


def warmed(make: Callable[[int, str], Any]) -> Any:
    """Return a step like the one that was captured, just before the one that was captured."""
    torch.manual_seed(0)
    step = make(4, "cpu")
    step()
    return step


def start(graph: Graph, step: Any) -> dict[str, torch.Tensor]:
    """Return what a step starts from, with the pairs of vectors that a DLRM's program lists."""
    values = values_of(graph, step)
    pairs = [op.outputs[0] for op in graph.leaves() if op.name == "aten.empty"]
    if pairs and hasattr(step.model, "tables"):
        count = len(step.model.tables) + 1
        lists = (
            [i for i in range(count) for _ in range(i)],
            [j for i in range(count) for j in range(i)],
        )
        values.update({t.name: torch.tensor(v) for t, v in zip(pairs, lists, strict=True)})
    return values
