"""Launches of a captured step, against a dispatch mode below everything that irgraph runs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from irgraph.capture.emulate.fallbacks import on_device
from irgraph.capture.emulate.known_values import KnownValues
from irgraph.capture.emulate.patches import emulate_cuda
from irgraph.capture.live import capture_file
from irgraph.capture.live.device_calls import recorder
from irgraph.capture.live.target import load_target

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"

HOST_WORK = frozenset(
    (
        "detach",
        "detach_",
        "to",
        "lift_fresh",
        "lift_fresh_copy",
        "full",
        "empty",
        "_local_scalar_dense",
    )
)
"""Operators that launch no kernel, or stand for a literal of the program (``full``)."""

Launch = tuple[str, tuple[tuple[int, ...], ...]]

CHECKPOINT = """
from functools import partial
import torch
from torch import nn
from torch.utils import checkpoint as saving

def policy(context, func, *arguments, **options):
    is_product = func == torch.ops.aten.mm.default
    kinds = saving.CheckpointPolicy
    return kinds.MUST_SAVE if is_product else kinds.PREFER_RECOMPUTE

def train(batch, device):
    layers = [nn.Sequential(nn.Linear(16, 16, bias=False), nn.ReLU()) for _ in range(3)]
    model, x = nn.Sequential(*layers).to(device), torch.rand(batch, 16)
    contexts = partial(saving.create_selective_checkpoint_contexts, policy)

    def step():
        rows = x.to(device).requires_grad_()
        saving.checkpoint(model, rows, use_reentrant=False, context_fn=contexts).sum().backward()
    return step
"""


class LowestMode(TorchDispatchMode):
    """Counts the calls on a device that no mode above it has answered."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device = device
        self.launches: Counter[Launch] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        results = result if isinstance(result, (list, tuple)) else [result]
        base = func._schema.name.partition("::")[2]
        is_launch = func.namespace != "profiler" and base not in HOST_WORK
        if is_launch and on_device([*args, *results], self.device):
            tensors = [t for t in results if isinstance(t, torch.Tensor)]
            written = func._schema.is_mutable
            shapes = () if written else tuple(tuple(t.shape) for t in tensors)
            self.launches[base, shapes] += 1
        return result


def launches_below(target: str, batch: int, device: str) -> Counter[Launch]:
    """Return the launches of a second step, without a recording."""
    with emulate_cuda(device):
        values, lowest = KnownValues(), LowestMode(device)
        step = load_target(target).step(batch, device)
        with recorder.dispatch_mode(None, {}, values):
            step()
        with lowest, recorder.dispatch_mode(None, {}, values):
            step()
    return lowest.launches


def launches_of_model(target: str, batch: int, device: str) -> Counter[Launch]:
    graph = capture_file(target, batch=batch, device=device, symbolic=False).graph
    leaves = [
        op
        for op in graph.leaves()
        if not op.is_scope and op.base not in HOST_WORK
        if any(tensor.device != "cpu" for tensor in (*op.inputs, *op.outputs))
    ]
    return Counter(
        (op.base, tuple(tuple(map(int, tensor.shape)) for tensor in op.outputs)) for op in leaves
    )


@pytest.mark.parametrize(
    ("target", "device"),
    [
        (f"{EXAMPLES}/mlp.py:train(width=16)", "meta"),
        (f"{EXAMPLES}/mlp.py:train(width=16)", "cpu"),
        (f"{EXAMPLES}/transformer.py:train", "meta"),
        ("checkpoint", "meta"),
        ("checkpoint", "cpu"),
    ],
)
def test_a_model_launches_the_calls_at_the_lowest_level(
    tmp_path: Path, target: str, device: str
) -> None:
    if target == "checkpoint":
        (tmp_path / "saving.py").write_text(CHECKPOINT)
        target = f"{tmp_path}/saving.py:train"
    below = launches_below(target, 4, device)
    model = launches_of_model(target, 4, device)
    assert model.total() > 20
    assert (below - model, model - below) == (Counter(), Counter())
