"""Equal parallel branches, trained with SGD and momentum, and a layer with an unused result.

``irgraph capture examples/experts.py:train --batch 64`` captures a training step, in which products
can be batched, updates fused and a dead branch removed; ``width`` and ``count`` may be given.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn


class Experts(nn.Module):
    """The mean of equal branches over one input, and a layer with an unused result."""

    def __init__(self, width: int, count: int) -> None:
        super().__init__()
        self.branches = nn.ModuleList(nn.Linear(width, width) for _ in range(count))
        self.unread = nn.Linear(width, 4 * width)
        self.last = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores [B, 10] for features [B, width]."""
        self.unread(x)
        return self.last(torch.stack([branch(x) for branch in self.branches]).mean(0).relu())


def train(batch: int, device: str, width: int = 256, count: int = 8) -> Callable[[], Tensor]:
    """Return a training step of ``Experts`` with SGD and momentum, parameter by parameter."""
    with torch.device(device):
        model = Experts(width, count)
    features, classes = torch.rand(batch, width), torch.arange(batch) % 10
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, foreach=False)

    def step() -> Tensor:
        optimizer.zero_grad()
        scores = model(features.to(device))
        loss = nn.functional.cross_entropy(scores, classes.to(device))
        loss.backward()
        optimizer.step()
        return loss

    step.model = model  # type: ignore[attr-defined]
    return step


def main() -> None:
    """Train on the CPU and print the first and the last loss."""
    torch.manual_seed(0)
    step = train(64, "cpu", width=32)
    losses = [step().item() for _ in range(100)]
    print(f"loss {losses[0]:.4f} at first, {losses[-1]:.4f} after {len(losses)} steps")


if __name__ == "__main__":
    main()
