r"""A small DLRM that learns a planted truth in seconds, for experiments with narrow formats.

    python examples/quantize.py --data data.pt          # train it, and write parameters and batches
    irgraph capture examples/quantize.py:infer --batch 2048 -o model.ir
    irgraph quantize model.ir --data data.pt --budget 0.02% --device a100 -o plan.irg

Serving with tables of 1.3 TB, formats and tiers combined:

    irgraph capture examples/quantize.py:serve --batch 512 -o served.ir
    irgraph place served.ir --executed model.ir --data data.pt --formats i8,i4,i2 \
        --platform dgx-1-nand --qps 20000 --latency 10ms --indices zipf:1.05

Clicks are drawn from a logistic model over hidden vectors of the looked-up rows and the dense
features, so that predictions mean something and their divergence is one of real probabilities.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

ROWS = (4000, 3000, 2000, 1000)
DENSE, WIDTH, LOOKUPS = 13, 32, 4
ZIPF = 1.05
LARGER = 1_000_000
Batch = dict[str, Tensor]


class Ranking(nn.Module):
    """Dense features and sums of table rows, products of all pairs, and an MLP over all of it."""

    def __init__(self, larger: int = 1) -> None:
        super().__init__()
        self.bottom = nn.Sequential(
            nn.Linear(DENSE, 64), nn.ReLU(), nn.Linear(64, WIDTH), nn.ReLU()
        )
        self.tables = nn.ModuleList(
            nn.EmbeddingBag(larger * rows, WIDTH, mode="sum") for rows in ROWS
        )
        vectors = len(ROWS) + 1
        self.top = nn.Sequential(
            nn.Linear(WIDTH + vectors * vectors, 64), nn.ReLU(), nn.Linear(64, 1), nn.Sigmoid()
        )
        for table in self.tables:
            nn.init.normal_(table.weight, std=0.05)

    def forward(self, dense: Tensor, indices: Tensor, offsets: Tensor) -> Tensor:
        """Return chances of clicks [B, 1] of ``dense`` [B, 13] and ``indices`` [4, 4 B]."""
        x = self.bottom(dense)
        bags = [table(indices[k], offsets) for k, table in enumerate(self.tables)]
        vectors = torch.stack([x, *bags], 1)
        products = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)
        return self.top(torch.cat([x, products], 1))


def serve(batch: int, device: str) -> Callable[[], Tensor]:
    """Return the same forward pass over tables too large for a device: 1.3 TB in f32."""
    return infer(batch, device, LARGER)


def infer(batch: int, device: str, larger: int = 1) -> Callable[[], Tensor]:
    """Return a forward pass of an untrained model, to capture it."""
    with torch.device(device):
        model = Ranking(larger)
        inputs = (
            torch.zeros(batch, DENSE),
            torch.zeros(len(ROWS), LOOKUPS * batch, dtype=torch.int64),
            torch.arange(0, LOOKUPS * batch, LOOKUPS),
        )

    @torch.inference_mode()
    def step() -> Tensor:
        return model(*inputs)

    step.model = model  # type: ignore[attr-defined]
    return step


class Truth:
    """Source of samples: popular rows are more frequent, clicks depend on hidden vectors."""

    def __init__(self, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.rows = [0.5 * torch.randn(rows, generator=generator) for rows in ROWS]
        self.dense = 0.5 * torch.randn(DENSE, generator=generator)
        self.shares = [torch.arange(1, rows + 1.0) ** -ZIPF for rows in ROWS]

    def batch(self, size: int, seed: int) -> tuple[Batch, Tensor]:
        """Return inputs by their names in the captured model, and clicks [B]."""
        generator = torch.Generator().manual_seed(seed)
        dense = torch.randn(size, DENSE, generator=generator)
        count = size * LOOKUPS
        indices = [torch.multinomial(s, count, True, generator=generator) for s in self.shares]
        score = dense @ self.dense - 1
        for rows, index in zip(self.rows, indices, strict=True):
            score = score + rows[index].view(size, LOOKUPS).sum(1)
        clicks = torch.rand(size, generator=generator) < score.sigmoid()
        offsets = torch.arange(0, count, LOOKUPS)
        return {"input1": dense, "input2": torch.stack(indices), "input3": offsets}, clicks.float()


def trained(steps: int = 300, size: int = 1024, seed: int = 0) -> Ranking:
    """Return a model trained on the truth by ``steps`` steps of Adam."""
    torch.manual_seed(seed)
    model, truth = Ranking(), Truth()
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    for step in range(steps):
        inputs, clicks = truth.batch(size, 1000 + step)
        loss = nn.functional.binary_cross_entropy(model(*inputs.values())[:, 0], clicks)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


def data(steps: int = 300, size: int = 2048, count: int = 4, fresh: int = 0) -> dict[str, object]:
    """Return parameters, batches and clicks, as ``irgraph quantize --data`` expects them."""
    samples = list(batches(size, count, fresh))
    return {
        "parameters": dict(trained(steps).state_dict()),
        "batches": [inputs for inputs, _ in samples],
        "labels": [clicks for _, clicks in samples],
    }


def batches(size: int, count: int, fresh: int = 0) -> Iterator[tuple[Batch, Tensor]]:
    """Yield batches outside the training data; another ``fresh`` draws other ones."""
    truth = Truth()
    for number in range(count):
        yield truth.batch(size, 10_000_000 + 1000 * fresh + number)


def main() -> None:
    """Train the model and write the data of ``irgraph quantize``."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--data", default="data.pt")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--fresh", type=int, default=0, help="another number draws other batches")
    options = parser.parse_args()
    torch.save(data(options.steps, fresh=options.fresh), options.data)


if __name__ == "__main__":
    main()
