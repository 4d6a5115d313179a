"""Models of torchvision, with few classes and small images."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import torchvision.models as tv
from torch import nn
from torchvision.models.convnext import CNBlockConfig
from torchvision.models.densenet import DenseNet
from torchvision.models.resnet import BasicBlock, Bottleneck, ResNet
from torchvision.models.swin_transformer import SwinTransformer, SwinTransformerBlockV2
from torchvision.models.vision_transformer import VisionTransformer

from tests.zoo.steps import Data, Program, classes, images


def sgd(parameters: Any, lr: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=lr, momentum=0.9, weight_decay=1e-4)


def trained(model: Callable[..., nn.Module], size: int = 32, **options: Any) -> Program:
    return Program(partial(model, num_classes=5, **options), images(size), classes, sgd)


def segmented(model: Callable[..., nn.Module], **options: Any) -> Program:
    bare = {"weights": None, "weights_backbone": None}
    return Program(partial(model, num_classes=5, **bare, **options), images(32), classes, sgd)


def googlenet() -> nn.Module:
    return tv.googlenet(weights=None, num_classes=5, aux_logits=False, init_weights=False)


def clips(batch: int) -> Data:
    video = torch.rand(batch, 3, 4, 16, 16, generator=torch.Generator().manual_seed(batch))
    return {"images": video, "target": torch.arange(batch) % 5}


def flow(model: nn.Module, data: Data) -> torch.Tensor:
    found: Any = model(data["a"], data["b"], num_flow_updates=2)
    return torch.stack([step.abs().mean() for step in found]).sum()


def pairs(batch: int) -> Data:
    source = torch.Generator().manual_seed(batch)
    return {name: torch.rand(batch, 3, 128, 128, generator=source) for name in "ab"}


def detected(model: nn.Module, data: Data) -> torch.Tensor:
    boxes = torch.tensor([[2.0, 2.0, 20.0, 20.0]], device=data["images"].device)
    target = [{"boxes": boxes, "labels": data["target"][:1]} for _ in data["images"]]
    found: Any = model(list(data["images"]), target)
    return torch.stack(list(found.values())).sum()


def fcos() -> nn.Module:
    return tv.detection.fcos_resnet50_fpn(weights=None, weights_backbone=None, num_classes=5)


SWIN = {"patch_size": [4, 4], "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 2],
        "window_size": [4, 4], "stochastic_depth_prob": 0.1}  # fmt: skip
STAGES = [CNBlockConfig(16, 32, 1), CNBlockConfig(32, None, 1)]

PROGRAMS: Mapping[str, Program] = {
    "alexnet": trained(tv.alexnet, 64),
    "vgg11_bn": trained(tv.vgg11_bn),
    "resnet18": trained(tv.resnet18),
    "resnet50-small": trained(ResNet, block=Bottleneck, layers=[1, 1, 1, 1]),
    "resnext": trained(
        ResNet, block=Bottleneck, layers=[1, 1, 1, 1], groups=4, width_per_group=4
    ),
    "resnet-zero-init": trained(
        ResNet, block=BasicBlock, layers=[1, 1, 1, 1], zero_init_residual=True
    ),
    "densenet": trained(DenseNet, growth_rate=8, block_config=(2, 2, 2), num_init_features=16),
    "squeezenet": trained(tv.squeezenet1_1),
    "googlenet": Program(googlenet, images(32), classes, sgd),
    "mobilenet_v2": trained(tv.mobilenet_v2),
    "mobilenet_v3_small": trained(tv.mobilenet_v3_small),
    "shufflenet": trained(tv.shufflenet_v2_x0_5),
    "mnasnet": trained(tv.mnasnet0_5),
    "efficientnet_b0": trained(tv.efficientnet_b0),
    "regnet_y_400mf": trained(tv.regnet_y_400mf),
    "convnext": trained(tv.ConvNeXt, block_setting=STAGES),
    "vit": trained(
        VisionTransformer, image_size=32, patch_size=8, num_layers=2, num_heads=2,
        hidden_dim=32, mlp_dim=64, dropout=0.1,
    ),
    "swin": trained(SwinTransformer, **SWIN),
    "swin_v2": trained(SwinTransformer, block=SwinTransformerBlockV2, **SWIN),
    "maxvit": trained(
        tv.MaxVit, input_size=(64, 64), stem_channels=16, partition_size=2,
        block_channels=[16, 32], block_layers=[1, 1], head_dim=16, stochastic_depth_prob=0.1,
        size=64,
    ),
    "fcn_resnet50": segmented(tv.segmentation.fcn_resnet50),
    "lraspp_mobilenet": segmented(tv.segmentation.lraspp_mobilenet_v3_large),
    "r3d_18": Program(partial(tv.video.r3d_18, num_classes=5), clips, classes, sgd),
    "raft_small": Program(partial(tv.optical_flow.raft_small, weights=None), pairs, flow, sgd),
    "fcos_resnet50": Program(fcos, images(64), detected, sgd),
}  # fmt: skip
"""By name. The last one matches boxes by their values, which a capture on meta has not."""
