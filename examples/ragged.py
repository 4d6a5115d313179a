"""MLPerf's DLRM v2 as one training step: tables and bags of very different sizes.

``irgraph capture examples/ragged.py:train --batch 65536`` captures it: the 26 tables of Criteo's
terabyte of clicks, multi-hot (sizes as in facebookresearch/dlrm, torchrec_dlrm), three low-rank
crosses instead of the dot products (DCN v2). Tables have sparse gradients, since dense ones would
be as large as the tables, and plain SGD instead of the benchmark's fused Adagrad.
"""

from __future__ import annotations

import torch
from dlrm import mlp
from torch import Tensor, nn

ROWS = (
    40000000, 39060, 17295, 7424, 20265, 3, 7122, 1543, 63, 40000000, 3067956, 405282, 10, 2209,
    11938, 155, 4, 976, 14, 40000000, 40000000, 40000000, 590152, 12973, 108, 36,
)  # fmt: skip
"""Rows of each table."""

LOOKUPS = (
    3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1, 6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1,
)  # fmt: skip
"""Indices that each table looks up for one sample."""

WIDTH, DENSE, RANK, CROSSES = 128, 13, 512, 3


def table(rows: int) -> nn.EmbeddingBag:
    """Return a table with small random rows."""
    weights = torch.empty(rows, WIDTH).uniform_(-(rows**-0.5), rows**-0.5)
    return nn.EmbeddingBag.from_pretrained(weights, False, mode="sum", sparse=True)


class Cross(nn.Module):
    """The input plus the first layer's input times a low-rank product (DCN v2)."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.down = nn.Linear(size, RANK, bias=False)
        self.up = nn.Linear(RANK, size)

    def forward(self, x: Tensor, first: Tensor) -> Tensor:
        """Return [B, F] for the input and the first layer's input, both [B, F]."""
        return torch.addcmul(x, first, self.up(self.down(x)))


class DLRM(nn.Module):
    """Dense features and bags of every table, crossed, and a perceptron over them."""

    def __init__(self, rows: tuple[int, ...]) -> None:
        super().__init__()
        size = WIDTH * (len(rows) + 1)
        self.bottom = mlp((DENSE, 512, 256, WIDTH), nn.ReLU())
        self.tables = nn.ModuleList(map(table, rows))
        self.crosses = nn.ModuleList(Cross(size) for _ in range(CROSSES))
        self.top = mlp((size, 1024, 1024, 512, 256, 1), nn.Identity())

    def forward(self, dense: Tensor, offsets: list[Tensor], indices: list[Tensor]) -> Tensor:
        """Return logits [B, 1] of dense features [B, 13] and each table's bags."""
        pairs = zip(self.tables, indices, offsets, strict=True)
        first = torch.cat([self.bottom(dense), *(bag(i, o) for bag, i, o in pairs)], dim=1)
        x = first
        for cross in self.crosses:
            x = cross(x, first)
        return self.top(x)


class RaggedStep:
    """One training step on tensors of the host."""

    def __init__(self, batch: int, device: str, rows: tuple[int, ...]) -> None:
        self.device = device
        with torch.device(device):
            self.model = DLRM(rows)
        self.dense = torch.rand(batch, DENSE)
        self.target = torch.randint(2, (batch, 1)).float()
        self.offsets = [torch.arange(0, batch * count, count) for count in LOOKUPS]
        self.indices = [
            torch.randint(entries, (batch * count,))
            for entries, count in zip(rows, LOOKUPS, strict=True)
        ]
        self.loss = nn.BCEWithLogitsLoss()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.005, foreach=False)

    def __call__(self) -> Tensor:
        """Train once and return the loss, on the host."""
        self.optimizer.zero_grad()
        offsets, indices = ([t.to(self.device) for t in v] for v in (self.offsets, self.indices))
        logits = self.model(self.dense.to(self.device), offsets, indices)
        loss = self.loss(logits, self.target.to(self.device))
        loss.backward()
        self.optimizer.step()
        return loss.detach().cpu()


def train(batch: int, device: str, max_rows: int | None = None) -> RaggedStep:
    """Return the step; ``max_rows`` bounds the rows of each table."""
    return RaggedStep(batch, device, tuple(min(count, max_rows or count) for count in ROWS))
