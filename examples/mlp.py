"""A small multilayer perceptron: a quick step to capture or to try things on.

``irgraph capture examples/mlp.py:train`` captures a training step, ``:infer`` a forward pass.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn


class Train:
    """One training step of three linear layers with Adam and the cross-entropy of ten classes."""

    def __init__(self, batch: int, device: str, width: int = 256) -> None:
        with torch.device(device):
            self.model = nn.Sequential(
                nn.Linear(width, width),
                nn.ReLU(),
                nn.Linear(width, width),
                nn.ReLU(),
                nn.Linear(width, 10),
            )
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.device = device
        self.features = torch.rand(batch, width)
        self.classes = (self.features[:, 0] * 10).long()

    def __call__(self) -> float:
        """Train once on the same batch and return the loss."""
        self.optimizer.zero_grad()
        scores = self.model(self.features.to(self.device))
        loss = nn.functional.cross_entropy(scores, self.classes.to(self.device))
        loss.backward()
        self.optimizer.step()
        return loss.item()


def train(batch: int, device: str, width: int = 256) -> Train:
    """Return a training step; ``width`` is the number of features of each layer."""
    return Train(batch, device, width)


def infer(batch: int, device: str, width: int = 256) -> Callable[[], Tensor]:
    """Return a step that computes the scores of one batch, without gradients."""
    training = Train(batch, device, width)

    @torch.inference_mode()
    def step() -> Tensor:
        return training.model(training.features.to(device)).cpu()

    step.model = training.model  # type: ignore[attr-defined]
    return step


def main() -> None:
    """Train on the CPU and print the first and the last loss."""
    torch.manual_seed(0)
    step = train(64, "cpu")
    losses = [step() for _ in range(100)]
    print(f"loss {losses[0]:.4f} at first, {losses[-1]:.4f} after {len(losses)} steps")


if __name__ == "__main__":
    main()
