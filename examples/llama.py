"""A small Llama: RMS norms, rotary embeddings, grouped queries, SwiGLU, spelt out as usual.

``irgraph capture examples/llama.py:train --batch 4`` captures a training step in bf16; ``layers``,
``width``, ``heads``, ``groups``, ``hidden``, ``length``, ``words`` and ``dtype`` may be given, as
in ``"…:train(layers=16, width=2048)"``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class Sizes:
    """Sizes of a model; ``groups`` counts the heads of keys and values."""

    layers: int = 2
    width: int = 1024
    heads: int = 16
    groups: int = 4
    hidden: int = 2816
    length: int = 512
    words: int = 32000


class RMSNorm(nn.Module):
    """A norm whose mean of squares is computed in f32."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalised tensor, in its own type."""
        wide = x.to(torch.float32)
        variance = wide.pow(2).mean(-1, keepdim=True)
        return self.weight * (wide * torch.rsqrt(variance + 1e-5)).to(x.dtype)


def rotate_half(x: Tensor) -> Tensor:
    """Return the second half of each row, negated, before the first."""
    half = x.shape[-1] // 2
    first, second = x[..., :half], x[..., half:]
    return torch.cat((-second, first), dim=-1)


class LlamaBlock(nn.Module):
    """Grouped causal attention and a gated perceptron, each behind a norm."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        width, self.sizes = sizes.width, sizes
        part = width // sizes.heads * sizes.groups
        self.norm1, self.norm2 = RMSNorm(width), RMSNorm(width)
        self.query, self.out = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.key, self.value = (nn.Linear(width, part, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(width, sizes.hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(sizes.hidden, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Return [B, T, width] for the same."""
        x = x + self.attention(self.norm1(x), cos.unsqueeze(1), sin.unsqueeze(1))
        y = self.norm2(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))

    def attention(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Return [B, T, width] for the same."""
        batch, length, width = x.shape
        heads, groups = self.sizes.heads, self.sizes.groups
        query, key, value = (
            layer(x).view(batch, length, count, -1).transpose(1, 2)
            for layer, count in ((self.query, heads), (self.key, groups), (self.value, groups))
        )
        query = query * cos + rotate_half(query) * sin
        key = key * cos + rotate_half(key) * sin
        key, value = (
            part[:, :, None].expand(-1, -1, heads // groups, -1, -1).reshape(query.shape)
            for part in (key, value)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class Llama(nn.Module):
    """Embeddings, blocks, a norm and the scores of the next word."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.embed = nn.Embedding(sizes.words, sizes.width)
        self.blocks = nn.ModuleList(LlamaBlock(sizes) for _ in range(sizes.layers))
        self.norm = RMSNorm(sizes.width)
        self.head = nn.Linear(sizes.width, sizes.words, bias=False)
        size = sizes.width // sizes.heads
        speeds = 10000.0 ** -(torch.arange(0, size, 2) / size)
        angles = torch.outer(torch.arange(sizes.length), speeds).repeat(1, 2)[None]
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, text: Tensor) -> Tensor:
        """Return [B, T, words] for [B, T]."""
        x = self.embed(text)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return self.head(self.norm(x))


class LlamaStep:
    """One training step: predict the next word of random text."""

    def __init__(self, batch: int, device: str, dtype: torch.dtype, sizes: Sizes) -> None:
        self.model = Llama(sizes).to(device, dtype)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-4, fused=True)
        self.device = device
        self.text = torch.randint(sizes.words, (batch, sizes.length + 1))

    def __call__(self) -> Tensor:
        """Train once on the same text and return the loss."""
        text = self.text.to(self.device)
        scores = self.model(text[:, :-1])
        loss = functional.cross_entropy(scores.flatten(0, 1).float(), text[:, 1:].flatten())
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss


def train(batch: int, device: str, dtype: str = "bfloat16", **sizes: int) -> LlamaStep:
    """Return a training step; ``length`` counts the words of one text."""
    return LlamaStep(batch, device, getattr(torch, dtype), Sizes(**sizes))


TINY = {"width": 16, "heads": 4, "groups": 2, "hidden": 24, "length": 6, "words": 31}
"""Sizes at which a step runs on a CPU in no time."""


def main() -> None:
    """Train on the CPU and print the first and the last loss."""
    torch.manual_seed(0)
    step = train(2, "cpu", "float32", **TINY)
    losses = [step().item() for _ in range(20)]
    print(f"loss {losses[0]:.4f} at first, {losses[-1]:.4f} after {len(losses)} steps")


if __name__ == "__main__":
    main()
