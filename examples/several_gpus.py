"""Distributed training steps, of which one rank is captured on one CPU.

``irgraph capture examples/several_gpus.py:ddp --batch 32 --ranks 8`` captures a small residual
network whose gradients are reduced in buckets; ``fsdp`` a language model whose parameters are
sharded and gathered layer by layer (``--ranks 2x8 --rank 3``); ``tensor_parallel`` transformer
layers split over ranks by heads, columns of the perceptron and words, and ``mesh``
(``--ranks 2x8``) the same with FSDP2 across the machines;
``pipeline`` layers distributed over ranks, through which micro-batches pass in turn, and
``whole`` (only ``--batch 64``) the same layers on one card;
``zero`` the network of ``ddp`` whose ranks each update some parameters and send them to the others.
"""

from __future__ import annotations

import os
from collections import OrderedDict

import torch
from resnet50 import ResNet
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
)
from torch.distributed.pipelining.schedules import (
    PipelineScheduleMulti,
    ScheduleInterleavedZeroBubble,
)
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from transformer import WORDS, Block


def place(device: str) -> torch.device:
    """Return this rank's device: the CPU if ``device`` is ``cpu``, else a card."""
    if device == "cpu":
        return torch.device("cpu")
    card = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(card)
    return card


class Training:
    """A step that minimises the mean square of a model's results for the same data."""

    def __init__(self, model: nn.Module, data: Tensor, device: torch.device) -> None:
        self.model, self.data, self.device = model, data, device
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def __call__(self) -> Tensor:
        """Train once and return the loss."""
        self.optimizer.zero_grad()
        loss = self.model(self.data.to(self.device)).float().square().mean()
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def ddp(batch: int, device: str, bucket: int = 25, size: int = 64) -> Training:
    """Return a step of a residual network on ``size``; ``bucket`` MiB are reduced at a time."""
    dist.init_process_group("gloo" if device == "cpu" else "nccl")
    card = place(device)
    model = DistributedDataParallel(ResNet((1, 1, 1, 1)).to(card), bucket_cap_mb=bucket)
    return Training(model, torch.rand(batch, 3, size, size), card)


def zero(batch: int, device: str, bucket: int = 25, size: int = 64) -> Training:
    """Return the step of ``ddp`` whose ranks each update some parameters and store their state."""
    step = ddp(batch, device, bucket, size)
    kind = torch.optim.AdamW
    step.optimizer = ZeroRedundancyOptimizer(step.model.parameters(), kind, lr=1e-3)
    return step


def fsdp(
    batch: int, device: str, layers: int = 4, width: int = 256, heads: int = 4, length: int = 128
) -> Training:
    """Return a step of a language model in bfloat16 whose parameters are sharded over all ranks."""
    card = place(device)
    mesh = init_device_mesh(card.type, (int(os.environ["WORLD_SIZE"]),), mesh_dim_names=("dp",))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    blocks = [Block(width, heads, 0.0) for _ in range(layers)]
    model = nn.Sequential(nn.Embedding(WORDS, width), *blocks, nn.LayerNorm(width)).to(card)
    for block in blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    return Training(model, torch.randint(WORDS, (batch, length)), card)


class Attention(nn.Module):
    """Causal attention of this rank's heads."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.size = width // heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return [B, T / ranks, width] for all words, [B, T, width]."""
        batch, length, _ = x.shape
        query, key, value = (
            layer(x).view(batch, length, -1, self.size).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, -1))


class Layer(nn.Module):
    """Attention and a two-layer perceptron, each after a normalisation of this rank's words."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return [B, T / ranks, width] for this rank's words."""
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


GATHER = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
SCATTER = RowwiseParallel(output_layouts=Shard(1))
PLAN = {
    "norm1": SequenceParallel(), "norm2": SequenceParallel(), "attention": GATHER, "mlp": GATHER,
    "attention.query": ColwiseParallel(), "attention.key": ColwiseParallel(),
    "attention.value": ColwiseParallel(), "attention.out": SCATTER, "mlp.0": ColwiseParallel(),
    "mlp.2": SCATTER,
}  # fmt: skip
"""Split of a layer over ranks: by heads, by columns of the perceptron, and by words."""


def tensor_parallel(
    batch: int, device: str, layers: int = 2, width: int = 256, heads: int = 8, length: int = 128
) -> Training:
    """Return a step of transformer layers split over all ranks; ``length`` counts all words."""
    card = place(device)
    ranks = int(os.environ["WORLD_SIZE"])
    mesh = init_device_mesh(card.type, (ranks,), mesh_dim_names=("tp",))
    model = nn.Sequential(*(Layer(width, heads) for _ in range(layers))).to(card)
    for layer in model:
        parallelize_module(layer, mesh, PLAN)
    return Training(model, torch.rand(batch, length // ranks, width), card)


def mesh(
    batch: int,
    device: str,
    together: int = 2,
    layers: int = 2,
    width: int = 256,
    heads: int = 8,
    length: int = 128,
) -> Training:
    """Return a step on a mesh: layers are split over ``together`` ranks, and sharded (FSDP2).

    Layers are split over consecutive ranks of one machine; ranks with the same index among them
    have separate batches, and shards of the same parameters.
    """
    card = place(device)
    ranks = int(os.environ["WORLD_SIZE"])
    axes = init_device_mesh(card.type, (ranks // together, together), mesh_dim_names=("dp", "tp"))
    model = nn.Sequential(*(Layer(width, heads) for _ in range(layers))).to(card)
    for layer in model:
        parallelize_module(layer, axes["tp"], PLAN)
        fully_shard(layer, mesh=axes["dp"])
    fully_shard(model, mesh=axes["dp"])
    return Training(model, torch.rand(batch, length // together, width), card)


def perceptron(layers: int, width: int, first: int = 0) -> nn.Sequential:
    """Return layers with ReLU, named as layers of a model from index ``first`` on."""
    modules = [part for _ in range(layers) for part in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(OrderedDict((str(n), part) for n, part in enumerate(modules, 2 * first)))


class SingleCard:
    """The step of ``pipeline`` on one card, in one batch."""

    def __init__(self, batch: int, device: str, layers: int, width: int) -> None:
        self.model = perceptron(layers, width).to(device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.data, self.device = torch.rand(batch, width), device

    def __call__(self) -> None:
        """Train once."""
        self.optimizer.zero_grad()
        data = self.data.to(self.device)
        functional.mse_loss(self.model(data), data).backward()
        self.optimizer.step()


def whole(batch: int, device: str, layers: int = 16, width: int = 256) -> SingleCard:
    """Return the step of ``pipeline`` on one card: ``layers`` counts the layers of all ranks."""
    return SingleCard(batch, device, layers, width)


SCHEDULES = {
    "1f1b": Schedule1F1B, "gpipe": ScheduleGPipe, "interleaved": ScheduleInterleaved1F1B,
    "zero-bubble": ScheduleInterleavedZeroBubble,
}  # fmt: skip


class Pipeline:
    """A step whose micro-batches pass through the layers of each rank in turn.

    With several ``stages`` per rank they pass through all ranks as many times.
    """

    def __init__(
        self, batch: int, card: torch.device, parts: int, layers: int, width: int, stages: int
    ) -> None:
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.places = range(self.rank, stages * self.ranks, self.ranks)
        models = [perceptron(layers, width, place * layers).to(card) for place in self.places]
        self.model = nn.Sequential(OrderedDict(i for m in models for i in m.named_children()))
        stage_input, stage_output = (
            torch.rand(batch // parts, width, device=card, requires_grad=True) for _ in range(2)
        )
        self.stages = [
            PipelineStage(
                model,
                place,
                stages * self.ranks,
                card,
                input_args=stage_input,
                output_args=stage_output,
            )
            for place, model in zip(self.places, models, strict=True)
        ]
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.data = torch.rand(batch, width)
        self.first, self.last, self.card = self.rank == 0, self.rank == self.ranks - 1, card

    def with_schedule(self, kind: str, parts: int) -> Pipeline:
        """Return the step with its schedule, for one stage or several."""
        several = issubclass(SCHEDULES[kind], PipelineScheduleMulti)
        stages = self.stages if several else self.stages[0]
        self.schedule = SCHEDULES[kind](stages, parts, loss_fn=functional.mse_loss)
        return self

    def __call__(self) -> None:
        """Train once: the first rank has the data, the last one the targets."""
        self.optimizer.zero_grad()
        data = self.data.to(self.card) if self.first or self.last else None
        inputs = (data,) if self.first else ()
        self.schedule.step(*inputs, target=data if self.last else None)
        self.optimizer.step()


def pipeline(
    batch: int,
    device: str,
    parts: int = 4,
    layers: int = 4,
    width: int = 256,
    kind: str = "1f1b",
    stages: int = 1,
) -> Pipeline:
    """Return a step in ``parts`` micro-batches.

    ``kind`` may also be ``gpipe``, or ``interleaved`` or ``zero-bubble`` with several ``stages``
    per rank, of ``layers`` layers each.
    """
    dist.init_process_group("gloo" if device == "cpu" else "nccl")
    return Pipeline(batch, place(device), parts, layers, width, stages).with_schedule(kind, parts)
