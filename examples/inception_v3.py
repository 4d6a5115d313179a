"""Inception-v3 as torchvision has it, with its auxiliary head, as one training step.

``irgraph capture examples/inception_v3.py:train --batch 32`` captures it, for any batch size.
Modules are named as in torchvision; weights begin as torch begins them.
"""

from __future__ import annotations

import torch
from classifier import CLASSES, ClassifierStep
from classifier import train as run
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d, avg_pool2d, max_pool2d, relu


class BasicConv2d(nn.Module):
    """Convolution, batch normalisation, ReLU."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int | tuple[int, int],
        stride: int = 1,
        padding: int | tuple[int, int] = 0,
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=False)
        self.bn = nn.BatchNorm2d(outputs, eps=0.001)

    def forward(self, x: Tensor) -> Tensor:
        """Return [B, outputs, H', W'] for [B, inputs, H, W]."""
        return relu(self.bn(self.conv(x)), inplace=True)


def wide(inputs: int, outputs: int) -> BasicConv2d:
    """Return a convolution over seven columns of a row."""
    return BasicConv2d(inputs, outputs, (1, 7), padding=(0, 3))


def tall(inputs: int, outputs: int) -> BasicConv2d:
    """Return a convolution over seven rows of a column."""
    return BasicConv2d(inputs, outputs, (7, 1), padding=(3, 0))


def smoothed(x: Tensor) -> Tensor:
    """Return the averages over 3x3 pixels, of the same size."""
    return avg_pool2d(x, 3, stride=1, padding=1)


class InceptionA(nn.Module):
    """Branches of 1x1, 5x5 and two 3x3 convolutions, and one that averages."""

    def __init__(self, inputs: int, pooled: int) -> None:
        super().__init__()
        self.branch1x1 = BasicConv2d(inputs, 64, 1)
        self.branch5x5_1 = BasicConv2d(inputs, 48, 1)
        self.branch5x5_2 = BasicConv2d(48, 64, 5, padding=2)
        self.branch3x3dbl_1 = BasicConv2d(inputs, 64, 1)
        self.branch3x3dbl_2 = BasicConv2d(64, 96, 3, padding=1)
        self.branch3x3dbl_3 = BasicConv2d(96, 96, 3, padding=1)
        self.branch_pool = BasicConv2d(inputs, pooled, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return [B, 224 + pooled, H, W] for [B, inputs, H, W]."""
        pointwise = self.branch1x1(x)
        five = self.branch5x5_2(self.branch5x5_1(x))
        three = self.branch3x3dbl_3(self.branch3x3dbl_2(self.branch3x3dbl_1(x)))
        return torch.cat([pointwise, five, three, self.branch_pool(smoothed(x))], 1)


class InceptionB(nn.Module):
    """Halve height and width: by a 3x3 convolution, by two of them, by a maximum."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.branch3x3 = BasicConv2d(inputs, 384, 3, stride=2)
        self.branch3x3dbl_1 = BasicConv2d(inputs, 64, 1)
        self.branch3x3dbl_2 = BasicConv2d(64, 96, 3, padding=1)
        self.branch3x3dbl_3 = BasicConv2d(96, 96, 3, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        """Return [B, 480 + inputs, H / 2, W / 2] for [B, inputs, H, W]."""
        single = self.branch3x3(x)
        double = self.branch3x3dbl_3(self.branch3x3dbl_2(self.branch3x3dbl_1(x)))
        return torch.cat([single, double, max_pool2d(x, 3, stride=2)], 1)


class InceptionC(nn.Module):
    """Branches of 1x1, one and two 7x7 convolutions (each in two parts), and one that averages."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.branch1x1 = BasicConv2d(768, 192, 1)
        self.branch7x7_1 = BasicConv2d(768, width, 1)
        self.branch7x7_2 = wide(width, width)
        self.branch7x7_3 = tall(width, 192)
        self.branch7x7dbl_1 = BasicConv2d(768, width, 1)
        self.branch7x7dbl_2 = tall(width, width)
        self.branch7x7dbl_3 = wide(width, width)
        self.branch7x7dbl_4 = tall(width, width)
        self.branch7x7dbl_5 = wide(width, 192)
        self.branch_pool = BasicConv2d(768, 192, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return [B, 768, H, W] for [B, 768, H, W]."""
        pointwise = self.branch1x1(x)
        seven = self.branch7x7_3(self.branch7x7_2(self.branch7x7_1(x)))
        double = self.branch7x7dbl_3(self.branch7x7dbl_2(self.branch7x7dbl_1(x)))
        double = self.branch7x7dbl_5(self.branch7x7dbl_4(double))
        return torch.cat([pointwise, seven, double, self.branch_pool(smoothed(x))], 1)


class InceptionD(nn.Module):
    """Halve height and width: by a 3x3 convolution, by a 7x7 and a 3x3 one, by a maximum."""

    def __init__(self) -> None:
        super().__init__()
        self.branch3x3_1 = BasicConv2d(768, 192, 1)
        self.branch3x3_2 = BasicConv2d(192, 320, 3, stride=2)
        self.branch7x7x3_1 = BasicConv2d(768, 192, 1)
        self.branch7x7x3_2 = wide(192, 192)
        self.branch7x7x3_3 = tall(192, 192)
        self.branch7x7x3_4 = BasicConv2d(192, 192, 3, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        """Return [B, 1280, H / 2, W / 2] for [B, 768, H, W]."""
        three = self.branch3x3_2(self.branch3x3_1(x))
        seven = self.branch7x7x3_3(self.branch7x7x3_2(self.branch7x7x3_1(x)))
        return torch.cat([three, self.branch7x7x3_4(seven), max_pool2d(x, 3, stride=2)], 1)


class InceptionE(nn.Module):
    """Branches of 1x1, one and two 3x3 convolutions that end in a row and a column, an average."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.branch1x1 = BasicConv2d(inputs, 320, 1)
        self.branch3x3_1 = BasicConv2d(inputs, 384, 1)
        self.branch3x3_2a = BasicConv2d(384, 384, (1, 3), padding=(0, 1))
        self.branch3x3_2b = BasicConv2d(384, 384, (3, 1), padding=(1, 0))
        self.branch3x3dbl_1 = BasicConv2d(inputs, 448, 1)
        self.branch3x3dbl_2 = BasicConv2d(448, 384, 3, padding=1)
        self.branch3x3dbl_3a = BasicConv2d(384, 384, (1, 3), padding=(0, 1))
        self.branch3x3dbl_3b = BasicConv2d(384, 384, (3, 1), padding=(1, 0))
        self.branch_pool = BasicConv2d(inputs, 192, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return [B, 2048, H, W] for [B, inputs, H, W]."""
        pointwise = self.branch1x1(x)
        y = self.branch3x3_1(x)
        three = torch.cat([self.branch3x3_2a(y), self.branch3x3_2b(y)], 1)
        y = self.branch3x3dbl_2(self.branch3x3dbl_1(x))
        double = torch.cat([self.branch3x3dbl_3a(y), self.branch3x3dbl_3b(y)], 1)
        return torch.cat([pointwise, three, double, self.branch_pool(smoothed(x))], 1)


class InceptionAux(nn.Module):
    """Scores from the features between the blocks of 17x17."""

    def __init__(self) -> None:
        super().__init__()
        self.conv0 = BasicConv2d(768, 128, 1)
        self.conv1 = BasicConv2d(128, 768, 5)
        self.fc = nn.Linear(768, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores [B, 1000] for [B, 768, H, W], H and W of 17 or more."""
        x = self.conv1(self.conv0(avg_pool2d(x, 5, stride=3)))
        return self.fc(torch.flatten(adaptive_avg_pool2d(x, 1), 1))


class InceptionV3(nn.Module):
    """Five convolutions, eleven blocks, an average over what is left, one linear layer."""

    def __init__(self, aux_logits: bool) -> None:
        super().__init__()
        self.Conv2d_1a_3x3 = BasicConv2d(3, 32, 3, stride=2)
        self.Conv2d_2a_3x3 = BasicConv2d(32, 32, 3)
        self.Conv2d_2b_3x3 = BasicConv2d(32, 64, 3, padding=1)
        self.maxpool1 = nn.MaxPool2d(3, stride=2)
        self.Conv2d_3b_1x1 = BasicConv2d(64, 80, 1)
        self.Conv2d_4a_3x3 = BasicConv2d(80, 192, 3)
        self.maxpool2 = nn.MaxPool2d(3, stride=2)
        self.Mixed_5b = InceptionA(192, pooled=32)
        self.Mixed_5c = InceptionA(256, pooled=64)
        self.Mixed_5d = InceptionA(288, pooled=64)
        self.Mixed_6a = InceptionB(288)
        self.Mixed_6b = InceptionC(128)
        self.Mixed_6c = InceptionC(160)
        self.Mixed_6d = InceptionC(160)
        self.Mixed_6e = InceptionC(192)
        self.AuxLogits = InceptionAux() if aux_logits else None
        self.Mixed_7a = InceptionD()
        self.Mixed_7b = InceptionE(1280)
        self.Mixed_7c = InceptionE(2048)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.dropout = nn.Dropout()
        self.fc = nn.Linear(2048, CLASSES)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return scores [B, 1000] for images [B, 3, H, W], and the auxiliary head's scores."""
        x = self.Conv2d_2b_3x3(self.Conv2d_2a_3x3(self.Conv2d_1a_3x3(x)))
        x = self.maxpool2(self.Conv2d_4a_3x3(self.Conv2d_3b_1x1(self.maxpool1(x))))
        x = self.Mixed_5d(self.Mixed_5c(self.Mixed_5b(x)))
        x = self.Mixed_6e(self.Mixed_6d(self.Mixed_6c(self.Mixed_6b(self.Mixed_6a(x)))))
        second = None if self.AuxLogits is None else self.AuxLogits(x)
        x = self.avgpool(self.Mixed_7c(self.Mixed_7b(self.Mixed_7a(x))))
        return self.fc(torch.flatten(self.dropout(x), 1)), second


def train(
    batch: int, device: str, size: int = 299, aux_logits: bool = True, aux: float = 0.4
) -> ClassifierStep:
    """Return a training step over images of ``size`` x ``size``.

    ``aux`` is the weight of the auxiliary head's loss; below 299 x 299 its convolution has too few
    pixels, and ``aux_logits=False`` omits it.
    """
    with torch.device(device):
        model = InceptionV3(aux_logits)
    return ClassifierStep(model, batch, size, device, aux)


def small(batch: int, device: str) -> ClassifierStep:
    """Return a step quick enough for a CPU: images of 75 x 75, no auxiliary head."""
    return train(batch, device, 75, aux_logits=False)


if __name__ == "__main__":
    torch.manual_seed(0)
    run("Inception-v3 without its auxiliary head", small(4, "cpu"))
