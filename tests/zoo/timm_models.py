"""Models of timm, shallow and narrow where they let themselves be made so."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import timm
import torch
from timm.models.metaformer import MetaFormer
from timm.models.mlp_mixer import Affine, MlpMixer, ResBlock
from torch import nn

from tests.zoo.steps import Program, adam_w, classes, images


def sgd(parameters: Any, lr: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=lr, momentum=0.9)


def trained(name: str, size: int = 32, adam: bool = False, **options: Any) -> Program:
    make = partial(timm.create_model, name, pretrained=False, num_classes=5, **options)
    return Program(make, images(size), classes, adam_w if adam else sgd)


def built(model: Callable[..., nn.Module], **options: Any) -> Program:
    make = partial(model, num_classes=5, **options)
    return Program(make, images(32), classes, adam_w)


MIXED = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "num_blocks": 2}
SMALL = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2}
STAGES = {"depths": (1, 1, 1, 1), "dims": (8, 16, 16, 32)}

PROGRAMS: Mapping[str, Program] = {
    "timm/vit_tiny": trained("vit_tiny_patch16_224", adam=True, **SMALL, drop_path_rate=0.1),
    "timm/deit3": trained("deit3_small_patch16_224", adam=True, **SMALL),
    "timm/beit": trained("beit_base_patch16_224", adam=True, **SMALL),
    "timm/eva02": trained("eva02_tiny_patch14_224", adam=True, **SMALL),
    "timm/cait": trained("cait_xxs24_224", adam=True, **SMALL),
    "timm/xcit": trained("xcit_nano_12_p8_224", adam=True, **SMALL),
    "timm/mixer": built(MlpMixer, **MIXED),
    "timm/resmlp": built(MlpMixer, block_layer=ResBlock, norm_layer=Affine, mlp_ratio=4, **MIXED),
    "timm/convnext": trained("convnext_atto", adam=True, **STAGES),
    "timm/inception_next": trained("inception_next_atto", **STAGES),
    "timm/poolformer": built(MetaFormer, depths=(1, 1, 1, 1), dims=(8, 16, 16, 32)),
    "timm/swin": trained(
        "swin_tiny_patch4_window7_224", adam=True, img_size=32, window_size=4, embed_dim=16,
        depths=(2, 2), num_heads=(2, 2),
    ),
    "timm/efficientnet_lite": trained("efficientnet_lite0"),
    "timm/mobilenetv3": trained("mobilenetv3_small_050"),
    "timm/ghostnet": trained("ghostnet_050"),
    "timm/regnetx": trained("regnetx_002"),
    "timm/resnest": trained("resnest14d", 64),
    "timm/res2net": trained("res2net50_14w_8s", layers=(1, 1, 1, 1)),
    "timm/nfnet": trained("nf_resnet26"),
    "timm/dla": trained("dla34", 64),
    "timm/levit": trained("levit_128s", 224),
    "timm/pvt_v2": trained("pvt_v2_b0", 64),
    "timm/edgenext": trained("edgenext_xx_small", 64),
}  # fmt: skip
