"""A vision transformer: patches as words, one of them for the class.

``irgraph capture examples/vit.py:train --batch 32`` captures a training step of ViT-B/16.
"""

from __future__ import annotations

import torch
from classifier import CLASSES, ClassifierStep
from classifier import train as run
from torch import Tensor, nn
from torch.nn import functional


class ViTBlock(nn.Module):
    """Attention and a two-layer perceptron, each after a normalisation."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return [B, T, width] for the same."""
        batch, length, width = x.shape
        parts = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = functional.scaled_dot_product_attention(query, key, value)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


class ViT(nn.Module):
    """A convolution that embeds patches, blocks, a norm, and scores of the first word."""

    def __init__(self, size: int, patch: int, layers: int, width: int, heads: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.first = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.zeros(1, (size // patch) ** 2 + 1, width))
        self.blocks = nn.Sequential(*(ViTBlock(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        """Return scores [B, CLASSES] for images [B, 3, H, W]."""
        words = self.patches(images).flatten(2).transpose(1, 2)
        words = torch.cat((self.first.expand(len(images), -1, -1), words), dim=1)
        return self.head(self.norm(self.blocks(words + self.positions))[:, 0])


def train(
    batch: int,
    device: str,
    size: int = 224,
    patch: int = 16,
    layers: int = 12,
    width: int = 768,
    heads: int = 12,
) -> ClassifierStep:
    """Return a training step over images of ``size`` x ``size``."""
    with torch.device(device):
        model = ViT(size, patch, layers, width, heads)
    return ClassifierStep(model, batch, size, device)


def small(batch: int, device: str) -> ClassifierStep:
    """Return a step quick enough for a CPU: two layers, images of 32 x 32."""
    return train(batch, device, 32, 8, 2, 32, 4)


if __name__ == "__main__":
    torch.manual_seed(0)
    run("ViT with 2 blocks", small(4, "cpu"))
