"""Training steps of common kinds of models, small: what they call is what matters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

Loss = Callable[..., Tensor]
Optimizer = Callable[[Any], torch.optim.Optimizer]


class Step:
    """One training step: host data to the device, forward, backward, update."""

    def __init__(
        self, model: nn.Module, device: str, data: tuple[Tensor, ...], loss: Loss, update: Optimizer
    ) -> None:
        self.model, self.device, self.data, self.loss = model.to(device), device, data, loss
        self.optimizer = update(self.model.parameters())

    def __call__(self) -> None:
        self.optimizer.zero_grad()
        data = (part.to(self.device) for part in self.data)
        self.loss(self.model, *data).backward()
        dense = [p for p in self.model.parameters() if p.grad is None or not p.grad.is_sparse]
        torch.nn.utils.clip_grad_norm_(dense, 1.0)
        self.optimizer.step()


def _classes(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    scores = model(x)
    return functional.cross_entropy(scores.reshape(-1, scores.shape[-1]), y.reshape(-1))


def encoder(batch: int, device: str) -> Step:
    """Like BERT: embeddings, post-norm encoder layers, AdamW over lists."""
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, activation="gelu")
    body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    model = nn.Sequential(nn.Embedding(100, 64), nn.LayerNorm(64), body, nn.Linear(64, 100))
    words = torch.zeros(batch, 16, dtype=torch.long)
    return Step(model, device, (words, words), _classes, torch.optim.AdamW)


class _Causal(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(100, 64), nn.Linear(64, 100, bias=False)
        self.qkv, self.norm = nn.Linear(64, 192), nn.RMSNorm(64)
        self.gate, self.down = nn.Linear(64, 256), nn.Linear(128, 64)

    def forward(self, x: Tensor) -> Tensor:
        h = self.words(x)
        heads = (t.unflatten(-1, (4, 16)).transpose(1, 2) for t in self.qkv(h).chunk(3, -1))
        mixed = functional.scaled_dot_product_attention(*heads, is_causal=True)
        h = h + mixed.transpose(1, 2).flatten(2)
        a, b = self.gate(self.norm(h)).chunk(2, -1)
        return self.out(h + functional.dropout(self.down(functional.silu(a) * b), 0.1))


def decoder(batch: int, device: str) -> Step:
    """Like GPT or Llama: causal fused attention, RMS norm, gates, AdamW in one kernel, bf16."""
    words = torch.zeros(batch, 16, dtype=torch.long)

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return _classes(model, x, y)

    def fused(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, fused=True)

    return Step(_Causal(), device, (words, words), loss, fused)


def images(batch: int, device: str) -> Step:
    """Like ResNet and MobileNet: convolutions with groups, batch norm, pools, momentum."""
    model = nn.Sequential(
        nn.Conv2d(3, 16, 7, 2, 3, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(True),
        nn.MaxPool2d(3, 2, 1),
        nn.Conv2d(16, 16, 3, 1, 1, groups=16),
        nn.ReLU6(),
        nn.AvgPool2d(2),
        nn.Conv2d(16, 32, 1),
        nn.GroupNorm(4, 32),
        nn.Hardswish(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(32, 10),
    )
    data = (torch.rand(batch, 3, 32, 32), torch.zeros(batch, dtype=torch.long))
    return Step(
        model, device, data, _classes, lambda p: torch.optim.SGD(p, 0.1, 0.9, weight_decay=1e-4)
    )


def noise(batch: int, device: str) -> Step:
    """Like a diffusion U-Net: down and up, transposed and resized, tensor-by-tensor Adam."""
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.GroupNorm(4, 16),
        nn.SiLU(),
        nn.Conv2d(16, 32, 3, 2, 1),
        nn.LeakyReLU(0.2),
        nn.ConvTranspose2d(32, 16, 4, 2, 1),
        nn.ReflectionPad2d(1),
        nn.Upsample(scale_factor=2, mode="bilinear"),
        nn.AvgPool2d(2),
        nn.Conv2d(16, 3, 3),
    )

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        noise = torch.randn_like(x)
        return functional.mse_loss(model(x + noise), noise)

    data = (torch.rand(batch, 3, 16, 16),)
    return Step(model, device, data, loss, lambda p: torch.optim.Adam(p, foreach=False))


def series(batch: int, device: str) -> Step:
    """Signals: 1-D convolutions with groups and dilation, then LSTM and GRU, RMSprop."""

    class Series(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.norm = nn.Conv1d(8, 32, 3, padding=2, dilation=2), nn.BatchNorm1d(32)
            self.second = nn.Conv1d(32, 32, 5, groups=32)
            self.lstm = nn.LSTM(32, 16, 2, batch_first=True, dropout=0.1)
            self.gru = nn.GRU(16, 8, batch_first=True, bidirectional=True)

        def forward(self, x: Tensor) -> Tensor:
            h = functional.elu(self.second(self.norm(self.first(x)))).transpose(1, 2)
            return self.gru(self.lstm(h)[0])[0].amax(1).sum(-1, keepdim=True)

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return functional.binary_cross_entropy_with_logits(model(x), y)

    data = (torch.rand(batch, 8, 12), torch.rand(batch, 1))
    return Step(Series(), device, data, loss, torch.optim.RMSprop)


class _Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(32, 4), nn.Parameter(torch.zeros(4, 32, 64))
        self.down = nn.Parameter(torch.zeros(4, 64, 32))

    def forward(self, x: Tensor) -> Tensor:
        weights, experts = torch.topk(functional.softmax(self.gate(x), -1), 2, -1)
        order = torch.argsort(experts.reshape(-1), stable=True)
        tokens = order // 2
        load = functional.one_hot(experts, 4).sum(1).cumsum(0)
        rows = x[tokens].view(4, -1, 32)
        rows = torch.bmm(functional.silu(torch.einsum("ecd,edf->ecf", rows, self.up)), self.down)
        scaled = rows.view(-1, 32) * weights.reshape(-1)[order].unsqueeze(-1)
        mixed = torch.zeros_like(x).index_add(0, tokens, scaled)
        return mixed + x + load.float().mean() + torch.logsumexp(self.gate(x), -1).square().mean()


def experts(batch: int, device: str) -> Step:
    """A mixture of experts: gates, sorted tokens, gathered, computed and added back."""
    data = (torch.rand(batch * 4, 32),)
    return Step(_Experts(), device, data, lambda m, x: m(x).square().mean(), torch.optim.Adam)


class _Bags(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        kinds = (("sum", True), ("mean", False), ("mean", True), ("max", False))
        self.bags = nn.ModuleList(nn.EmbeddingBag(100, 8, mode=m, sparse=s) for m, s in kinds)
        self.weighted, self.out = nn.EmbeddingBag(50, 8, mode="sum"), nn.Linear(40, 1)

    def forward(self, i: Tensor, o: Tensor, w: Tensor) -> Tensor:
        bags = [bag(i, o) for bag in self.bags]
        joined = torch.cat([*bags, self.weighted(i, o, per_sample_weights=w)], 1)
        return torch.sigmoid(self.out(joined))


def bags(batch: int, device: str) -> Step:
    """Embedding bags of every mode, dense and sparse, with weights that are learned."""
    indices, offsets = torch.zeros(batch * 4, dtype=torch.long), torch.arange(0, batch * 4, 4)
    data = (indices, offsets, torch.rand(batch * 4), torch.rand(batch, 1))

    def loss(model: nn.Module, i: Tensor, o: Tensor, w: Tensor, y: Tensor) -> Tensor:
        return functional.binary_cross_entropy(model(i, o, w.requires_grad_()), y)

    return Step(_Bags(), device, data, loss, lambda p: torch.optim.SGD(p, 0.1))


class _Graph(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, x: Tensor, ends: Tensor) -> Tensor:
        messages = self.layer(x)[ends]
        places = ends[:, None].expand(-1, 16)
        added = torch.zeros_like(x).scatter_add(0, places, messages)
        largest = torch.full_like(x, -9.0).scatter_reduce(0, places, messages, "amax")
        kept = torch.gather(added, 1, (ends[: x.shape[0], None] % 16).expand(-1, 4))
        return functional.log_softmax(largest.masked_fill(added > 1, 0.0), -1).sum() + kept.norm()


def graph(batch: int, device: str) -> Step:
    """A graph network: gathers, and scatters that add and that keep the largest."""
    data = (torch.rand(batch * 4, 16), torch.zeros(batch * 16, dtype=torch.long))
    return Step(_Graph(), device, data, lambda m, x, e: m(x, e), torch.optim.Adagrad)
