"""``overlap-allreduce``: each gradient is averaged once, after its last accumulation."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from irgraph.api import rewrite
from irgraph.capture.live import capture
from irgraph.ir.effects import written_by


def accumulating_step(rounds: int, clips: bool) -> Callable[[], None]:
    with torch.device("meta"):
        layers = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 3))
        samples = torch.empty(6, 8)
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        for factor in range(rounds):
            (layers(samples * (factor + 1.0)) ** 2).mean().backward()
        if clips:
            nn.utils.clip_grad_norm_(layers.parameters(), 1.0)
        optimizer.step()

    return step


@pytest.mark.parametrize("clips", [False, True])
@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_a_gradient_is_reduced_after_its_last_accumulation(rounds: int, clips: bool) -> None:
    before = capture(accumulating_step(rounds, clips)).graph
    after = list(rewrite(before, "overlap-allreduce").graph.leaves())
    sums = [op for op in after if op.base == "allreduce_"]
    assert [op.attributes["reduce_op"] for op in sums] == ["avg"] * 4
    reduced = {tensor.buffer for op in sums for tensor in written_by(op)}
    assert len(reduced) == 4
    first_sum = {t.buffer: after.index(op) for op in sums for t in written_by(op)}
    for position, op in enumerate(after):
        if op.base == "add_" and op.phase == "backward":
            (gradient,) = written_by(op)
            assert position < first_sum[gradient.buffer]
