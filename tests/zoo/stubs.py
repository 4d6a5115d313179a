"""Lets the torchvision of PyPI, built for CUDA, be imported beside torch's CPU build."""

import torch

BOXES = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"

library = torch.library.Library("torchvision", "DEF")
"""Kept, since its operators go with it."""

if not hasattr(torch.ops.torchvision, "nms"):
    for name in ("nms", "qnms"):
        library.define(name + BOXES)
