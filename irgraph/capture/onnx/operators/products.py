"""Operators that multiply matrices."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F  # noqa: N812

from irgraph.capture.common.torch_object import Torch
from irgraph.capture.onnx.bind import Convert, UnsupportedError


def linear(x: Torch, weight: Torch, bias: Torch) -> Torch:
    """Multiply by a transposed weight, and add a bias."""
    return F.linear(x, weight, bias)


def matmul(x: Torch, y: Torch) -> Torch:
    """``MatMul`` of matrices, vectors, or batches of them."""
    return torch.matmul(x, y)


def gemm(
    x: Torch,
    y: Torch,
    bias: Torch = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    trans_a: int = 0,
    trans_b: int = 0,
) -> Torch:
    """``Gemm``: a linear layer if the second matrix is transposed and nothing is scaled."""
    is_linear = alpha == 1 and beta == 1 and not trans_a and trans_b
    if is_linear and (bias is None or bias.shape == y.shape[:1]):
        return F.linear(x, y, bias)
    x = x.t() if trans_a else x
    y = y.t() if trans_b else y
    if bias is not None:
        return torch.addmm(bias, x, y, beta=beta, alpha=alpha)
    product = torch.mm(x, y)
    return product if alpha == 1 else product * alpha


def einsum(*xs: Torch, equation: str) -> Torch:
    """``Einsum``."""
    return torch.einsum(equation, *xs)


def attention(
    q: Torch,
    k: Torch,
    v: Torch,
    mask: Torch = None,
    past_key: Torch = None,
    past_value: Torch = None,
    *,
    is_causal: int = 0,
    scale: float | None = None,
    q_num_heads: int = 0,
    kv_num_heads: int = 0,
    softcap: float = 0.0,
    softmax_precision: int = 1,
    qk_matmul_output_mode: int = 0,
    outputs: int = 1,
) -> Torch | tuple[Torch, Torch, Torch]:
    """``Attention`` as one fused call, which does not return the scores."""
    if softcap:
        raise UnsupportedError(f"its attribute softcap = {softcap} is not supported")
    if outputs not in (1, 3):
        raise UnsupportedError("its output qk_matmul_output is not supported")
    is_flat = q.ndim == 3
    if is_flat:
        q, k, v = _split(q, q_num_heads), _split(k, kv_num_heads), _split(v, kv_num_heads)
    if past_key is not None:
        if is_causal:
            raise UnsupportedError("its attribute is_causal = 1 with past_key is not supported")
        k, v = torch.cat([past_key, k], 2), torch.cat([past_value, v], 2)
    if mask is not None and (is_causal or mask.shape[-1] != k.shape[2]):
        raise UnsupportedError("its mask is shorter than the keys, or is_causal = 1 besides")
    output = F.scaled_dot_product_attention(
        q, k, v, mask, is_causal=bool(is_causal), scale=scale, enable_gqa=q.shape[1] != k.shape[1]
    )
    output = output.transpose(1, 2).flatten(2) if is_flat else output
    return output if outputs == 1 else (output, k, v)


def _split(x: Torch, heads: int) -> Torch:
    return x.unflatten(2, (heads, -1)).transpose(1, 2)


PRODUCTS: Mapping[str, Convert] = {
    "MatMul": matmul, "Gemm": gemm, "Einsum": einsum, "Attention": attention,
}  # fmt: skip
