"""A small language model in mixed precision: causal attention, autocast and fused AdamW.

``irgraph capture examples/transformer.py:train --batch 8`` captures a training step; ``layers``,
``width``, ``heads``, ``length``, ``dropout`` and ``words`` may be given, as in
``"…:train(layers=12, width=768)"``.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

WORDS = 4096
"""Size of the vocabulary."""


class Block(nn.Module):
    """Causal attention and a two-layer perceptron, each after a normalisation."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.together, self.apart = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return [B, T, width] for [B, T, width]."""
        batch, length, width = x.shape
        parts = self.together(self.norm1(x)).view(batch, length, 3, self.heads, -1)
        query, key, value = (part.transpose(1, 2) for part in parts.unbind(2))
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.dropout(self.apart(mixed.transpose(1, 2).reshape(batch, length, width)))
        return x + self.dropout(self.mlp(self.norm2(x)))


class Train:
    """One training step: predict the next word of random text."""

    def __init__(
        self,
        batch: int,
        device: str,
        layers: int,
        width: int,
        heads: int,
        length: int,
        dropout: float,
        words: int,
    ) -> None:
        blocks = [Block(width, heads, dropout) for _ in range(layers)]
        parts = [nn.Embedding(words, width), *blocks, nn.LayerNorm(width), nn.Linear(width, words)]
        self.model = nn.Sequential(*parts).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-4, fused=True)
        self.device = device
        self.text = torch.randint(words, (batch, length + 1))

    def __call__(self) -> Tensor:
        """Train once on the same text and return the loss."""
        text = self.text.to(self.device)
        with torch.autocast(self.device, dtype=torch.bfloat16):
            scores = self.model(text[:, :-1])
            loss = functional.cross_entropy(scores.flatten(0, 1), text[:, 1:].flatten())
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss


def train(
    batch: int,
    device: str,
    layers: int = 2,
    width: int = 256,
    heads: int = 4,
    length: int = 256,
    dropout: float = 0.0,
    words: int = WORDS,
) -> Train:
    """Return a training step; ``length`` counts the words of one text."""
    return Train(batch, device, layers, width, heads, length, dropout, words)


def main() -> None:
    """Train on the CPU and print the first and the last loss."""
    torch.manual_seed(0)
    step = train(2, "cpu", width=64, length=32)
    losses = [step().item() for _ in range(20)]
    print(f"loss {losses[0]:.4f} at first, {losses[-1]:.4f} after {len(losses)} steps")


if __name__ == "__main__":
    main()
