"""ResNet-50 as torchvision has it (v1.5: the 3x3 convolution strides), as one training step.

``irgraph capture examples/resnet50.py:train --batch 32`` captures it, for any batch size;
``"…:train(size=160)"`` with smaller images. Modules are named as in torchvision.
"""

from __future__ import annotations

import torch
from classifier import CLASSES, ClassifierStep
from classifier import train as run
from torch import Tensor, nn

EXPANSION = 4
"""Ratio of a block's output channels to the channels of its 3x3 convolution."""


class Bottleneck(nn.Module):
    """Convolutions of 1x1, 3x3 and 1x1, and the input added to their result."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = width * EXPANSION
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.downsample: nn.Module | None = None
        if stride != 1 or inputs != outputs:
            shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.downsample = nn.Sequential(shortcut, nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Return [B, 4 * width, H / stride, W / stride] for [B, inputs, H, W]."""
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        y += x if self.downsample is None else self.downsample(x)
        return self.relu(y)


def layer(inputs: int, width: int, blocks: int, stride: int) -> nn.Sequential:
    """Return ``blocks`` blocks, of which the first strides."""
    first = Bottleneck(inputs, width, stride)
    return nn.Sequential(
        first, *(Bottleneck(width * EXPANSION, width, 1) for _ in range(blocks - 1))
    )


class ResNet(nn.Module):
    """A 7x7 convolution, four layers of blocks, a spatial average, one linear layer."""

    def __init__(self, blocks: tuple[int, int, int, int]) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        self.layer1 = layer(64, 64, blocks[0], 1)
        self.layer2 = layer(256, 128, blocks[1], 2)
        self.layer3 = layer(512, 256, blocks[2], 2)
        self.layer4 = layer(1024, 512, blocks[3], 2)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(512 * EXPANSION, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores [B, 1000] for images [B, 3, H, W]."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(torch.flatten(self.avgpool(x), 1))


def train(
    batch: int, device: str, size: int = 224, blocks: tuple[int, int, int, int] = (3, 4, 6, 3)
) -> ClassifierStep:
    """Return a training step over images of ``size`` x ``size``; ``blocks`` counts by layer."""
    with torch.device(device):
        model = ResNet(blocks)
    return ClassifierStep(model, batch, size, device)


def small(batch: int, device: str) -> ClassifierStep:
    """Return a step quick enough for a CPU: one block a layer, images of 64 x 64."""
    return train(batch, device, 64, (1, 1, 1, 1))


if __name__ == "__main__":
    torch.manual_seed(0)
    run("ResNet with 4 blocks", small(4, "cpu"))
