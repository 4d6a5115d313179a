"""FlexAttention as one op and its gradient, with its two functions as text.

The result is that of ``torch._higher_order_ops.flex_attention.math_attention`` without a compiler:
softmax(score(q k^T scale) if the mask holds) v. The log-sum-exp is in base 2, as in the compiled
kernel.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import torch

from irgraph.ir.torch_schemas.score_functions import evaluate, index_tensors, lookups

Torch: TypeAlias = Any


def flex_attention(
    query: Torch,
    key: Torch,
    value: Torch,
    *,
    buffers: Sequence[Torch] = (),
    score: str = "",
    mask: str = "",
    scale: float,
    density: float = 1.0,
    max_scores: bool = False,
) -> tuple[Torch, Torch, Torch]:
    """Return attention, the log-sum-exp of scores, and their maxima (empty if not requested).

    ``query`` is [batch, heads, length, width]; ``key`` and ``value`` may have fewer heads, and one
    sample for all. ``density`` is the share of blocks that the mask retains, used in pricing.
    """
    working = torch.float64 if query.dtype == torch.float64 else torch.float32
    key, value = (_expand_heads(tensor, query) for tensor in (key, value))
    scores = (query.to(working) @ key.to(working).mT * scale).to(working)
    names = {"s": scores, **index_tensors(scores.shape, scores.device), **_buffers_by_name(buffers)}
    if score:
        scores = evaluate(score, names, working).to(working).expand(scores.shape)
    if mask:
        counts = evaluate(mask, {n: v for n, v in names.items() if n != "s"}, working)
        scores = torch.where(counts, scores, torch.tensor(-math.inf, dtype=working))
    out = torch._safe_softmax(scores, -1).to(query.dtype) @ value.to(query.dtype)
    sums = scores.logsumexp(-1) / math.log(2)
    maxima = scores.max(-1)[0] / math.log(2) if max_scores else scores.new_empty(0)
    return with_layout_of(out, query), sums, maxima


def flex_attention_backward(
    grad_out: Torch,
    query: Torch,
    key: Torch,
    value: Torch,
    out: Torch,
    logsumexp: Torch,
    grad_logsumexp: Torch = None,
    *,
    buffers: Sequence[Torch] = (),
    score: str = "",
    mask: str = "",
    scale: float,
    density: float = 1.0,
    learned: Sequence[int] = (),
) -> tuple[Torch, Torch, Torch, list[Torch]]:
    """Return gradients of query, key, value, and of the buffers with indices ``learned``."""
    with torch.enable_grad():
        leaves = [t.detach().requires_grad_() for t in (query, key, value)]
        buffer_leaves = [t.detach().requires_grad_(i in learned) for i, t in enumerate(buffers)]
        sources = [*leaves, *(buffer_leaves[i] for i in learned)]
        result, sums, _ = flex_attention(
            *leaves, buffers=buffer_leaves, score=score, mask=mask, scale=scale, density=density
        )
        results = [(result, grad_out), (sums, grad_logsumexp)]
        results = [pair for pair in results if pair[1] is not None]
        gradients = torch.autograd.grad(
            [pair[0] for pair in results], sources, [pair[1] for pair in results], allow_unused=True
        )
    grads = [
        torch.zeros_like(leaf) if grad is None else grad
        for leaf, grad in zip(sources, gradients, strict=True)
    ]
    first = [with_layout_of(g, t) for g, t in zip(grads, (query, key, value), strict=False)]
    return first[0], first[1], first[2], [grad.contiguous() for grad in grads[3:]]


def _buffers_by_name(buffers: Sequence[Torch]) -> dict[str, Torch]:
    return {f"b{i}": buffer for i, buffer in enumerate(buffers)}


def _expand_heads(tensor: Torch, query: Torch) -> Torch:
    """Return keys or values expanded to all heads and samples of the query."""
    heads = tensor.repeat_interleave(query.shape[1] // tensor.shape[1], 1)
    return heads.expand(query.shape[0], *heads.shape[1:])


def with_layout_of(result: Torch, template: Torch) -> Torch:
    """Return a result with the order of axes of a template, and the last axis innermost."""
    order = sorted(range(result.dim() - 1), key=lambda axis: -template.stride(axis))
    strides, step = [0] * result.dim(), 1
    for axis in reversed((*order, result.dim() - 1)):
        strides[axis], step = step, step * result.shape[axis]
    return result.new_empty_strided(result.shape, strides).copy_(result)


def attention_types(
    query: Torch,
    key: Torch,
    value: Torch,
    *,
    buffers: Sequence[Torch] = (),
    score: str = "",
    mask: str = "",
    max_scores: bool = False,
    **_: object,
) -> tuple[Torch, Torch, Torch]:
    """Return results without elements; raise ``RuntimeError`` if the operands do not fit."""
    heads, key_heads = query.shape[1], key.shape[1]
    fits = query.dim() == key.dim() == value.dim() == 4 and query.shape[-1] == key.shape[-1]
    fits = fits and key.shape[:3] == value.shape[:3] and key.shape[0] in (1, query.shape[0])
    if not fits or not key_heads or heads % key_heads:
        raise RuntimeError("flex_attention: query, key and value do not fit")
    sizes = dict(zip("bhqk", (*query.shape[:3], key.shape[2]), strict=True))
    buffer_by_name = _buffers_by_name(buffers)
    for name, axis, place in (*lookups(score), *lookups(mask)):
        if place in sizes and sizes[place] > buffer_by_name[name].shape[axis]:
            shape = tuple(buffer_by_name[name].shape)
            raise RuntimeError(f"flex_attention: {place} < {sizes[place]} is no row of {shape}")
    kind = torch.float64 if query.dtype == torch.float64 else torch.float32
    sums = query.new_empty(query.shape[:-1], dtype=kind)
    maxima = query.new_empty(query.shape[:-1] if max_scores else (0,), dtype=kind)
    result = query.new_empty((*query.shape[:-1], value.shape[-1]))
    return with_layout_of(result, query), sums, maxima


def gradient_types(
    grad_out: Torch,
    query: Torch,
    key: Torch,
    value: Torch,
    *,
    buffers: Sequence[Torch] = (),
    learned: Sequence[int] = (),
    **_: object,
) -> tuple[Torch, Torch, Torch, list[Torch]]:
    """Return gradients without elements."""
    gradients = [with_layout_of(t.new_empty(t.shape), t) for t in (query, key, value)]
    return (
        gradients[0],
        gradients[1],
        gradients[2],
        [buffers[i].new_empty(buffers[i].shape) for i in learned],
    )
