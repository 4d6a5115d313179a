"""A training step of an image classifier, as ``resnet50.py`` and ``inception_v3.py`` run it."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

CLASSES = 1000
"""Classes of ImageNet."""


class ClassifierStep:
    """Copy images and labels to the device, forward, cross entropy, backward, SGD.

    ``model`` returns scores [B, CLASSES], or a pair of them: the scores of an auxiliary head are
    second, with the weight ``aux`` in the loss; with 0 they are computed and ignored. As in the
    paper's measured program, plain SGD is used, and gradients are zeroed by writing.
    """

    def __init__(
        self, model: nn.Module, batch: int, size: int, device: str, aux: float = 0.0
    ) -> None:
        self.model = model
        self.device = device
        self.aux = aux
        self.labels = torch.arange(batch) % CLASSES
        self.images = torch.rand(batch, 3, size, size)
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.01, foreach=False)

    def __call__(self) -> Tensor:
        """Train on ``images`` once and return the loss, on the device."""
        images, labels = self.images.to(self.device), self.labels.to(self.device)
        scores = self.model(images)
        scores, second = scores if isinstance(scores, tuple) else (scores, None)
        loss = cross_entropy(scores, labels)
        if second is not None and self.aux:
            loss = loss + self.aux * cross_entropy(second, labels)
        self.optimizer.zero_grad(set_to_none=False)
        loss.backward()
        self.optimizer.step()
        return loss


def train(name: str, step: ClassifierStep, steps: int = 8) -> None:
    """Train on the same images ``steps`` times and print how the loss falls."""
    losses = [step().item() for _ in range(steps)]
    print(f"{name}: loss {losses[0]:.4f} at first, {losses[-1]:.4f} after {steps} steps")
