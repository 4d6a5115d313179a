"""The paper's three DLRM configurations (Table III) as one training step in plain PyTorch.

Capture one with ``irgraph capture examples/dlrm.py:default``, or train it at a reduced size with
``python examples/dlrm.py``. A step is the same as in the measured program: it copies dense
features, offsets, indices and the target to the device, runs the bottom MLP, one embedding bag per
table, the pairwise interaction and the top MLP, copies the loss to the host, zeroes the dense
gradients by writing, runs backward and updates with SGD. Only the tables differ: the measured
program had one fused lookup of all, here they are separate, as PyTorch users write them.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor, nn

CRITEO_ROWS = (
    14885288, 29419, 15123, 7291, 19899, 3, 6463, 1310, 61, 10155909, 618195, 218994, 10, 2208,
    9779, 71, 4, 963, 14, 16967044, 4154705, 13180313, 289595, 10828, 95, 34,
)  # fmt: skip
"""Rows of the 26 tables of the measured DLRM_MLPerf."""


@dataclass(frozen=True)
class Config:
    """Sizes of one model.

    Attributes:
        bottom: features of the bottom MLP, the dense inputs first, the embedding width last.
        top: features of the top MLP after its input, whose width follows from the interaction.
        rows: rows of each embedding table.
        lookups: indices that each table looks up for one sample.
        loss: ``mse`` or ``bce``.
        sparse: whether table gradients are sparse.
    """

    bottom: tuple[int, ...]
    top: tuple[int, ...]
    rows: tuple[int, ...]
    lookups: int
    loss: str = "mse"
    sparse: bool = False

    @property
    def width(self) -> int:
        """Elements of one embedding vector."""
        return self.bottom[-1]

    @property
    def interactions(self) -> int:
        """Features that enter the top MLP: the dense ones and one for each pair of vectors."""
        vectors = len(self.rows) + 1
        return self.width + vectors * (vectors - 1) // 2


CONFIGS = {
    "default": Config((512, 512, 64), (1024, 1024, 1024, 1), (1_000_000,) * 8, 100),
    "mlperf": Config((13, 512, 256, 128), (1024, 1024, 512, 256, 1), CRITEO_ROWS, 1, "bce"),
    "ddp": Config((128, 128, 128, 128), (512, 512, 512, 256, 1), (80_000,) * 8, 10),
}
"""Table III of the paper, with the row counts and lookups of its benchmark script."""


def mlp(sizes: tuple[int, ...], last: nn.Module) -> nn.Sequential:
    """Return linear layers with ReLU between them and ``last`` after the last one."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1], last)


def table(config: Config, rows: int) -> nn.EmbeddingBag:
    """Return a table with the small random rows that DLRM begins with."""
    bound = rows**-0.5
    weights = torch.empty(rows, config.width).uniform_(-bound, bound)
    return nn.EmbeddingBag.from_pretrained(weights, False, mode="sum", sparse=config.sparse)


class DLRM(nn.Module):
    """Dense features and table lookups, their pairwise products, and an MLP over all of it."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.bot_mlp = mlp(config.bottom, nn.ReLU())
        self.tables = nn.ModuleList(table(config, rows) for rows in config.rows)
        self.top_mlp = mlp((config.interactions, *config.top), nn.Sigmoid())

    def forward(self, dense: Tensor, offsets: Tensor, indices: Tensor) -> Tensor:
        """Return click probabilities [B, 1].

        ``dense`` is [B, F]; ``offsets`` [T, B] and ``indices`` [T, B*L] hold a row a table.
        """
        x = self.bot_mlp(dense)
        bags = [bag(indices[k], offsets[k]) for k, bag in enumerate(self.tables)]
        return self.top_mlp(self.interact(x, bags))

    def interact(self, x: Tensor, bags: list[Tensor]) -> Tensor:
        """Return ``x`` [B, D] and the products of all pairs of vectors, [B, D + pairs]."""
        vectors = torch.cat([x, *bags], dim=1).view(x.shape[0], -1, self.config.width)
        products = torch.bmm(vectors, vectors.transpose(1, 2))
        count = len(bags) + 1
        # built on the host in every step, as the measured program does
        rows = torch.tensor([i for i in range(count) for _ in range(i)])
        columns = torch.tensor([j for i in range(count) for j in range(i)])
        return torch.cat([x, products[:, rows, columns]], dim=1)


class DLRMStep:
    """One training step over the host tensors ``inputs``: dense, offsets, indices, target."""

    def __init__(self, config: Config, batch: int, device: str) -> None:
        self.device = device
        with torch.device(device):
            self.model = DLRM(config)
        self.inputs = random_batch(config, batch)
        self.loss = nn.BCELoss() if config.loss == "bce" else nn.MSELoss()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, foreach=False)

    def __call__(self) -> Tensor:
        """Train on ``inputs`` once and return the loss, on the host."""
        dense, offsets, indices, target = self.inputs
        dense, offsets = dense.to(self.device), offsets.to(self.device)
        predicted = self.model(dense, offsets, indices.to(self.device))
        loss = self.loss(predicted, target.to(self.device))
        host_loss = loss.detach().cpu()
        for bag in self.model.tables:
            bag.weight.grad = None  # zeros for whole tables would be written and read in vain
        self.optimizer.zero_grad(set_to_none=False)
        loss.backward()
        self.optimizer.step()
        return host_loss


def random_batch(config: Config, batch: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return host tensors: dense [B, F], offsets [T, B], indices [T, B*L], target [B, 1].

    Offsets and indices are 32-bit, as the measured program copied them. The dense features of
    clicked samples are larger, so that there is something to learn.
    """
    tables, lookups = len(config.rows), config.lookups
    target = torch.randint(2, (batch, 1)).float()
    dense = torch.rand(batch, config.bottom[0]) + target
    offsets = torch.arange(0, batch * lookups, lookups, dtype=torch.int32).repeat(tables, 1)
    rows = torch.tensor(config.rows).unsqueeze(1)
    indices = (torch.rand(tables, batch * lookups) * rows).clamp(max=rows - 1).int()
    return dense, offsets, indices, target


def preset(
    name: str,
    batch: int,
    device: str,
    lookups: int | None = None,
    max_rows: int | None = None,
    sparse: bool = False,
) -> DLRMStep:
    """Return the step of a configuration, with its lookups, rows or gradient layout changed."""
    config = CONFIGS[name]
    rows = tuple(min(count, max_rows or count) for count in config.rows)
    changed = replace(config, rows=rows, lookups=lookups or config.lookups, sparse=sparse)
    return DLRMStep(changed, batch, device)


def default(
    batch: int,
    device: str,
    lookups: int | None = None,
    max_rows: int | None = None,
    sparse: bool = False,
) -> DLRMStep:
    """Return the step of DLRM_default: 8 tables of 1,000,000 rows, 100 lookups each."""
    return preset("default", batch, device, lookups, max_rows, sparse)


def mlperf(
    batch: int,
    device: str,
    lookups: int | None = None,
    max_rows: int | None = None,
    sparse: bool = False,
) -> DLRMStep:
    """Return the step of DLRM_MLPerf: the 26 Criteo tables, one lookup each."""
    return preset("mlperf", batch, device, lookups, max_rows, sparse)


def ddp(
    batch: int,
    device: str,
    lookups: int | None = None,
    max_rows: int | None = None,
    sparse: bool = False,
) -> DLRMStep:
    """Return the step of DLRM_DDP: 8 tables of 80,000 rows, 10 lookups each."""
    return preset("ddp", batch, device, lookups, max_rows, sparse)


def infer(
    batch: int,
    device: str,
    name: str = "default",
    lookups: int | None = None,
    max_rows: int | None = None,
) -> Callable[[], Tensor]:
    """Return a step that computes the click probabilities of one batch, without gradients."""
    training = preset(name, batch, device, lookups, max_rows)

    @torch.inference_mode()
    def step() -> Tensor:
        dense, offsets, indices = (tensor.to(device) for tensor in training.inputs[:3])
        return training.model(dense, offsets, indices).cpu()

    step.model = training.model  # type: ignore[attr-defined]
    return step


def train(step: DLRMStep, steps: int) -> list[float]:
    """Train on a fresh random batch a step and return the losses."""
    batch = step.inputs[0].shape[0]
    losses = []
    for _ in range(steps):
        step.inputs = random_batch(step.model.config, batch)
        losses.append(float(step()))
    return losses


def main() -> None:
    """Train a configuration at a reduced size and print how the loss falls."""
    parser = argparse.ArgumentParser(description="Train one of the paper's DLRM configurations.")
    parser.add_argument("preset", nargs="?", default="default", choices=CONFIGS)
    parser.add_argument("--batch", type=int, default=128, help="samples a step (128)")
    parser.add_argument("--steps", type=int, default=200, help="steps to train (200)")
    parser.add_argument("--lookups", type=int, help="lookups a table and sample")
    parser.add_argument("--max-rows", type=int, default=1000, help="most rows of a table (1000)")
    parser.add_argument("--sparse", action="store_true", help="sparse table gradients")
    parser.add_argument("--device", default="cpu", help="a torch device (cpu)")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    step = preset(
        arguments.preset,
        arguments.batch,
        arguments.device,
        arguments.lookups,
        arguments.max_rows,
        arguments.sparse,
    )
    losses = train(step, arguments.steps)
    window = max(1, min(10, arguments.steps // 2))
    first, last = sum(losses[:window]) / window, sum(losses[-window:]) / window
    averages = f"{first:.4f} over the first {window} steps, {last:.4f} over the last {window}"
    print(f"DLRM {arguments.preset}: loss {averages} of {arguments.steps}")


if __name__ == "__main__":
    main()
