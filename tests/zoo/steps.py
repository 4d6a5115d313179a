"""Training steps as people write them, around any model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

Data = Mapping[str, torch.Tensor]
"""A batch on the host, by name."""

Loss = Callable[[nn.Module, Data], torch.Tensor]
"""From a model and a batch on the device to the loss."""


def adam_w(parameters: Any, lr: float) -> torch.optim.Optimizer:
    """Return AdamW that does not blow up gradients that are nothing but rounding."""
    return torch.optim.AdamW(parameters, lr=lr, eps=1e-4)


@dataclass(frozen=True)
class Program:
    """A model to be trained.

    Attributes:
        model: builds it on the host, with random weights.
        data: makes a batch of a size on the host.
        loss: runs the forward pass.
        optimizer: of its parameters.
    """

    model: Callable[[], nn.Module]
    data: Callable[[int], Data]
    loss: Loss
    optimizer: Callable[..., torch.optim.Optimizer] = adam_w

    def step(self, batch: int, device: str, fixed: bool = False) -> Step:
        """Return a step; ``fixed`` without dropout, so that it can be compared with another."""
        torch.manual_seed(0)
        model = self.model()
        if fixed:
            without_dropout(model)
        return Step(model.to(device), self.data(batch), self.loss, self.optimizer, device)


class Step:
    """Forward, loss, backward, optimizer, on data that lies on the host."""

    def __init__(
        self,
        model: nn.Module,
        data: Data,
        loss: Loss,
        optimizer: Callable[..., torch.optim.Optimizer],
        device: str,
    ) -> None:
        self.model = model
        self.inputs = data
        self.loss = loss
        self.optimizer = optimizer(model.parameters(), lr=1e-3)
        self.device = device

    def __call__(self) -> torch.Tensor:
        """Train once and return the loss."""
        self.optimizer.zero_grad()
        loss = self.loss(self.model, {k: v.to(self.device) for k, v in self.inputs.items()})
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def without_dropout(model: nn.Module) -> None:
    """Set every rate of dropout, and of paths that are dropped, to nothing."""
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
        if type(module).__name__ == "StochasticDepth":
            module.p = 0.0
        for name, value in vars(module).items():
            if isinstance(value, float) and "drop" in name:
                setattr(module, name, 0.0)


def classes(model: nn.Module, data: Data) -> torch.Tensor:
    """Return the loss of class scores for images."""
    made: Any = model(data["images"])
    scores = made["out"].mean((2, 3)) if isinstance(made, dict) else made
    scores = scores if isinstance(scores, torch.Tensor) else scores[0]
    return nn.functional.cross_entropy(scores, data["target"])


def images(size: int, channels: int = 3, count: int = 5) -> Callable[[int], Data]:
    """Return what makes square images and their classes."""

    def make(batch: int) -> Data:
        source = torch.Generator().manual_seed(batch)
        return {
            "images": torch.rand(batch, channels, size, size, generator=source),
            "target": torch.arange(batch) % count,
        }

    return make
