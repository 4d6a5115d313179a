"""Steps as people write them: loops, helpers and habits around small models."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from tests.zoo.steps import Data, Program, Step, classes, images, without_dropout

WORDS, LENGTH = 20, 6


def net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.1),
        nn.Linear(32, 5),
    )


def sentences(batch: int) -> Data:
    """Return sentences, of which the last one is shorter, and their classes."""
    words = torch.arange(batch * LENGTH).view(batch, LENGTH) % WORDS
    lengths = torch.tensor([LENGTH] * (batch - 1) + [LENGTH - 2])
    return {"words": words, "target": torch.arange(batch) % 5, "lengths": lengths}


class Recurrent(nn.Module):
    """Sentences of different lengths through a packed LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 8)
        self.lstm = nn.LSTM(8, 8, batch_first=True)
        self.head = nn.Linear(8, 5)

    def forward(self, words: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed = pack_padded_sequence(self.words(words), lengths.cpu(), batch_first=True)
        states, _ = self.lstm(packed)
        padded, _ = pad_packed_sequence(states, batch_first=True)
        return self.head(padded.sum(1))


def read(model: nn.Module, data: Data) -> torch.Tensor:
    return functional.cross_entropy(model(data["words"], data["lengths"]), data["target"])


class Listener(nn.Module):
    """Frames through a GRU, aligned with words."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(4, 8, bidirectional=True)
        self.head = nn.Linear(16, WORDS)

    def forward(self, frames: torch.Tensor) -> torch.Tensor:
        return self.head(self.gru(frames.transpose(0, 1))[0]).log_softmax(2)


def frames(batch: int) -> Data:
    sounds = torch.rand(batch, 12, 4, generator=torch.Generator().manual_seed(batch))
    return {"frames": sounds, "words": torch.arange(batch * 3).view(batch, 3) % 9 + 1}


def align(model: nn.Module, data: Data) -> torch.Tensor:
    scores = model(data["frames"])
    lengths = (torch.full((scores.shape[1],), n, device=scores.device) for n in (12, 3))
    return functional.ctc_loss(scores, data["words"], *lengths)


class Recomputed(nn.Module):
    """Blocks that are computed again in backward."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.GELU()) for _ in range(3))
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.mean((1, 2))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return self.head(x)


class Experts(nn.Module):
    """Rows sorted by expert, and one grouped product for all experts."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 8)
        self.up = nn.Parameter(torch.rand(4, 8, 16) * 0.1)
        self.down = nn.Parameter(torch.rand(4, 16, 8) * 0.1)
        self.head = nn.Linear(8, 5)

    def forward(self, words: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        expert = words.flatten() % 4  # hash routing, which needs no values of parameters
        order = expert.argsort(stable=True)
        ends = torch.bincount(expert, minlength=4).cumsum(0).to(torch.int32)
        rows = self.words(words).flatten(0, 1)[order]
        rows = torch._grouped_mm(rows, self.up, offs=ends).relu()
        mixed = torch._grouped_mm(rows, self.down, offs=ends)[order.argsort()]
        return self.head(mixed.view(*words.shape, 8).mean(1))


class Quiet(nn.Module):
    """A frozen backbone in evaluation, and a head that is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = net()[:5].requires_grad_(False)
        self.head = nn.Linear(32, 5)

    def train(self, mode: bool = True) -> Quiet:
        super().train(mode)
        self.backbone.eval()
        return self

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.backbone(x))


def quiet() -> nn.Module:
    return Quiet().train()


class Casting(nn.Module):
    """Weights cast to the type that they have, as models in mixed precision write them."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(8, 3) * 0.1)
        self.register_buffer("scale", torch.full((8,), 0.5))
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = functional.linear(x.mean((2, 3)).float(), self.weight.float())
        return self.head(hidden * self.scale.to(hidden.dtype))


class Bags(nn.Module):
    """Lookups with sparse gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.EmbeddingBag(WORDS, 5, mode="sum", sparse=True)

    def forward(self, words: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        return self.bags(words)


def sparse_adam(parameters: Any, lr: float) -> torch.optim.Optimizer:
    return torch.optim.SparseAdam(list(parameters), lr=lr)


def sgd(parameters: Any, lr: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=lr, momentum=0.9)


class Accumulated(Step):
    """Two batches before an update, clipped gradients, a schedule of rates."""

    def __call__(self) -> torch.Tensor:
        schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda _: 0.5)
        self.optimizer.zero_grad()
        total = torch.zeros((), device=self.device)
        for _ in range(2):
            data = {k: v.to(self.device) for k, v in self.inputs.items()}
            loss = self.loss(self.model, data) / 2
            loss.backward()
            total += loss.detach()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        schedule.step()
        return total


class Averaged(Step):
    """A second model follows the first."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.follower = copy.deepcopy(self.model).requires_grad_(False)

    def __call__(self) -> torch.Tensor:
        loss = super().__call__()
        with torch.no_grad():
            pairs = zip(self.follower.parameters(), self.model.parameters(), strict=True)
            for mine, other in pairs:
                mine.lerp_(other, 0.1)
        return loss


class Loaded(Step):
    """The batch comes from a loader, within the step."""

    def __call__(self) -> torch.Tensor:
        data = TensorDataset(*self.inputs.values())
        values = next(iter(DataLoader(data, batch_size=len(data))))
        self.optimizer.zero_grad(set_to_none=False)
        given = dict(zip(self.inputs, values, strict=True))
        loss = self.loss(self.model, {k: v.to(self.device) for k, v in given.items()})
        loss.backward()
        self.optimizer.step()
        return loss.detach()


class Scaled(Step):
    """Mixed precision with a gradient scaler."""

    def __call__(self) -> torch.Tensor:
        scaler = torch.amp.GradScaler(enabled=self.device != "cpu")
        self.optimizer.zero_grad()
        data = {k: v.to(self.device) for k, v in self.inputs.items()}
        with torch.autocast("cpu" if self.device == "cpu" else "cuda", torch.bfloat16):
            scores = self.model(
                data["images"]
            ).float()  # for the CPU casts no loss of its own accord
            loss = functional.cross_entropy(scores, data["target"])
        scaler.scale(loss).backward()
        scaler.step(self.optimizer)
        scaler.update()
        return loss.detach()


@dataclass(frozen=True)
class Own:
    """A program with a step of its own kind."""

    program: Program
    kind: Callable[..., Step]

    def step(self, batch: int, device: str, fixed: bool = False) -> Step:
        """Return a step, as ``Program.step`` does."""
        torch.manual_seed(0)
        model, program = self.program.model(), self.program
        if fixed:
            without_dropout(model)
        data = program.data(batch)
        return self.kind(model.to(device), data, program.loss, program.optimizer, device)


PICTURES = Program(net, images(16), classes)
PROGRAMS: Mapping[str, Program | Own] = {
    "user/packed-lstm": Program(Recurrent, sentences, read),
    "user/gru-ctc": Program(Listener, frames, align),
    "user/checkpoint": Program(Recomputed, images(8, channels=8), classes),
    "user/experts": Program(Experts, sentences, read),
    "user/frozen-backbone": Program(quiet, images(16), classes, sgd),
    "user/casts": Program(Casting, images(8), classes),
    "user/sparse-adam": Program(Bags, sentences, read, sparse_adam),
    "user/accumulated": Own(PICTURES, Accumulated),
    "user/averaged": Own(PICTURES, Averaged),
    "user/loader": Own(PICTURES, Loaded),
    "user/mixed-precision": Own(PICTURES, Scaled),
}
