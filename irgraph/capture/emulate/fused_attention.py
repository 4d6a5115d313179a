"""Scaled dot-product attention on meta tensors in the form that a CUDA device runs it in.

Torch decomposes a meta tensor's attention into products and a softmax over the whole matrix of
scores, because it chooses a fused kernel by the device. Here a CUDA device's choice is made
(``aten/src/ATen/native/transformers/cuda/sdp_utils.cpp``), and the fused operator is called with
its own meta kernel and derivative.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Iterator, Mapping

from irgraph.capture.common.torch_object import Torch

NAME = "aten::scaled_dot_product_attention"

MAX_FLASH_FEATURES = 256
"""Maximum number of features of a head that the flash kernel accepts."""


@contextlib.contextmanager
def fused_on_meta(notes: dict[str, None]) -> Iterator[None]:
    """Run attention over meta tensors fused within the context, with a sentence in ``notes``."""
    from torch.library import Library

    def kernel(*args: Torch, **kwargs: Torch) -> Torch:
        return attention(notes, *args, **kwargs)

    library = Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        library.impl("scaled_dot_product_attention", kernel, "AutogradMeta")
    try:
        yield
    finally:
        library._destroy()


def attention(
    notes: dict[str, None],
    query: Torch,
    key: Torch,
    value: Torch,
    attn_mask: Torch = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Torch:
    """Return attention over query [B, H, S, D] and key [B, H, T, D] by the fused op that fits."""
    import torch

    ops = torch.ops.aten
    form = _choose(query, key, value, attn_mask, is_causal, enable_gqa)
    notes[_NOTES[form]] = None
    if form == "flash":
        size = query.shape[-1]
        scale = 1 / math.sqrt(size) if scale is None else scale
        heads = [_pad_heads(tensor) for tensor in (query, key, value)]
        result = ops._scaled_dot_product_flash_attention(
            *heads, dropout_p, is_causal, False, scale=scale
        )[0]
        return result if result.shape[-1] == size else result[..., :size]
    mask = _additive_mask(attn_mask, query)
    if form == "efficient":
        tensors = (query, key, value)
        saves_logsumexp = torch.is_grad_enabled() and any(
            tensor.requires_grad for tensor in tensors
        )
        mask = None if mask is None else _align_mask(mask, query, key)
        return ops._scaled_dot_product_efficient_attention(
            *tensors, mask, saves_logsumexp, dropout_p, is_causal, scale=scale
        )[0]
    return ops._scaled_dot_product_attention_math(
        query, key, value, mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )[0]


_NOTES: Mapping[str, str] = {
    "flash": "aten.scaled_dot_product_attention runs the flash kernel, which CUDA devices since "
    "Ampere have; older ones run the memory-efficient one",
    "efficient": "aten.scaled_dot_product_attention runs the memory-efficient kernel, which a "
    "CUDA device would choose",
    "math": "aten.scaled_dot_product_attention fits no fused kernel: it is taken apart, as on a "
    "CUDA device",
}


def _choose(
    query: Torch, key: Torch, value: Torch, mask: Torch, causal: bool, grouped: bool
) -> str:
    """Return ``flash``, ``efficient`` or ``math``, in this order of preference."""
    import torch

    has_standard_shapes = query.dim() == key.dim() == value.dim() == 4 and 0 not in (
        *query.shape,
        *key.shape,
    )
    if not has_standard_shapes or len({t.shape[0] for t in (query, key, value)}) > 1:
        return "math"
    enabled = torch.backends.cuda
    half = query.dtype in (torch.float16, torch.bfloat16)
    widths = {tensor.shape[-1] for tensor in (query, key, value)}
    square = not causal or query.shape[2] == key.shape[2]
    same_heads = len({t.shape[1] for t in (query, key, value)}) == 1
    flash = (
        half and mask is None and len(widths) == 1 and max(widths) <= MAX_FLASH_FEATURES and square
    )
    is_ampere = torch.cuda.get_device_capability() >= (8, 0)
    if flash and is_ampere and (same_heads or grouped) and enabled.flash_sdp_enabled():
        return "flash"
    alignment = 8 if half else 4
    fits = (half or query.dtype == torch.float32) and not any(width % alignment for width in widths)
    return "efficient" if fits and same_heads and enabled.mem_efficient_sdp_enabled() else "math"


def _pad_heads(tensor: Torch) -> Torch:
    """Return a tensor whose heads have a multiple of 8 features."""
    import torch

    padding = -tensor.shape[-1] % 8
    return torch.constant_pad_nd(tensor, (0, padding)) if padding else tensor


def _additive_mask(mask: Torch, query: Torch) -> Torch:
    """Return a mask to be added to the scores, converted if it is boolean."""
    import torch

    if mask is None or mask.dtype != torch.bool:
        return mask
    minus_infinity = torch.scalar_tensor(-math.inf, dtype=query.dtype, device=mask.device)
    return torch.where(mask, 0.0, minus_infinity)


def _align_mask(mask: Torch, query: Torch, key: Torch) -> Torch:
    """Return a mask [B, H, S, T] whose rows start at multiples of 16 elements."""
    import torch

    columns = key.shape[2]
    padding = -mask.shape[-1] % 16
    if padding:
        mask = torch.constant_pad_nd(mask, (0, padding))[..., : mask.shape[-1]]
    return mask.expand(query.shape[0], query.shape[1], query.shape[2], columns)
