"""Training steps to capture, and what each starts from by the names of its graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from irgraph.ir.graph import Graph


class Step:
    """One step of a model on fixed data: forward, loss, backward, optimizer."""

    def __init__(
        self,
        model: nn.Module,
        data: Sequence[torch.Tensor],
        optimizer: Callable[..., torch.optim.Optimizer],
    ) -> None:
        self.model = model
        self.inputs = tuple(data)
        self.optimizer = optimizer(model.parameters())

    def __call__(self) -> torch.Tensor:
        """Train once and return the loss."""
        self.optimizer.zero_grad()
        *given, target = (tensor.to(next(self.model.parameters()).device) for tensor in self.inputs)
        loss = nn.functional.cross_entropy(self.model(*given), target)
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, foreach=False)


def conv_step(batch: int, device: str) -> Step:
    """Return a small convolutional network with batch norm and pooling."""
    with torch.device(device):
        model = nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1),
            nn.BatchNorm2d(4),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Conv2d(4, 6, 3, bias=False),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(6, 5),
        )
    return Step(model, (torch.rand(batch, 3, 8, 8), torch.arange(batch) % 5), sgd)


class Block(nn.Module):
    """Token and position embeddings, one attention block, and class scores."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.tokens = nn.Embedding(11, 16)
        self.block = nn.TransformerEncoderLayer(
            16, 2, 32, dropout=dropout, batch_first=True, activation="gelu"
        )
        self.head = nn.Linear(16, 5)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.block(self.tokens(tokens)).mean(1))


def transformer_step(batch: int, device: str, dropout: float = 0.0) -> Step:
    """Return a small transformer block trained by AdamW."""
    with torch.device(device):
        model = Block(dropout)
    tokens = torch.arange(batch * 6).view(batch, 6) % 11
    return Step(model, (tokens, torch.arange(batch) % 5), torch.optim.AdamW)


def values_of(graph: Graph, step: Any) -> dict[str, torch.Tensor]:
    """Return the present values of what a graph starts from, in the step it was captured from.

    Parameters, buffers and gradients go by their labels, data by the order of first use, and the
    optimizer's state by its order.
    """
    labelled = _labelled(step.model)
    state = iter(_state(step.optimizer))
    data = iter(step.inputs)
    found = {}
    for declared in graph.tensors:
        if declared.value is not None:  # a literal of the program
            continue
        if declared.label:
            value = labelled[declared.label]
        else:
            value = next(data if declared.role == "input" else state)
        found[declared.tensor.name] = value.detach().clone()
    return found


def _labelled(model: nn.Module) -> Mapping[str, torch.Tensor]:
    found = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    grads = {f"{name}.grad": p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {**found, **grads}


def _state(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [
        value
        for parameter in optimizer.param_groups[0]["params"]
        for value in optimizer.state[parameter].values()
    ]


class LookupsFirst(nn.Module):
    """Lookups whose bags feed others, before the bottom layers that they could run beside."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(10, 8, mode="sum") for _ in range(3))
        self.bot_mlp = nn.Sequential(nn.Linear(6, 8), nn.ReLU())
        self.top = nn.Linear(32, 5)

    def forward(self, dense: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        bags = [table(rows[:, k : k + 2]) for k, table in enumerate(self.tables)]
        return self.top(torch.cat([self.bot_mlp(dense), *bags], dim=1))


def lookups_first_step(batch: int, device: str) -> Step:
    """Return lookups that are launched before the bottom MLP."""
    with torch.device(device):
        model = LookupsFirst()
    rows = torch.arange(batch * 4).view(batch, 4) % 10
    return Step(model, (torch.rand(batch, 6), rows, torch.arange(batch) % 5), sgd)


class Apart(nn.Module):
    """Attention whose query, key and value are layers of their own, without a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(8, 8) for _ in range(3))
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.query(x), self.key(x), self.value(x)
        shares = (query @ key.t()).softmax(1)
        return self.head(shares @ value)


def attention_step(batch: int, device: str) -> Step:
    """Return attention among the samples of a batch, trained by Adam's foreach series."""
    with torch.device(device):
        model = Apart()
    data = (torch.rand(batch, 8), torch.arange(batch) % 5)
    return Step(model, data, lambda parameters: torch.optim.Adam(parameters, foreach=True))


class Eager(nn.Module):
    """Attention spelt out, with or without a mask that lets each row see those before it."""

    def __init__(self, width: int, heads: int, masked: bool) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.heads, self.masked = heads, masked

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [B, T, width] for the same."""
        batch, length, width = x.shape
        query, key, value = (
            layer(x).view(batch, length, self.heads, -1).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        scores = query @ key.transpose(-2, -1)
        if self.masked:
            seen = torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
            scores = (scores / (width // self.heads) ** 0.5).masked_fill(~seen, -torch.inf)
        else:
            scores = scores * 0.5
        mixed = scores.softmax(-1) @ value
        return x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))


def eager_step(batch: int, device: str) -> Step:
    """Return two blocks of attention spelt out, one with a mask."""
    with torch.device(device):
        parts = [Eager(16, 2, True), nn.ReLU(), Eager(16, 4, False), nn.Flatten(), nn.Linear(96, 5)]
        model = nn.Sequential(nn.Linear(3, 16), *parts)
    return Step(model, (torch.rand(batch, 6, 3), torch.arange(batch) % 5), sgd)
