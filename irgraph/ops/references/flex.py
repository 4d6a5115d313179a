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
    working = _working_type(query)
    key = _expand_heads(key, query)
    value = _expand_heads(value, query)
    products = query.to(working) @ key.to(working).mT
    scores = (products * scale).to(working)
    names = index_tensors(scores.shape, scores.device)
    names = {**names, **_buffers_by_name(buffers)}
    if score:
        changed = evaluate(score, {"s": scores, **names}, working)
        scores = changed.to(working).expand(scores.shape)
    if mask:
        is_seen = evaluate(mask, names, working)
        hidden = torch.tensor(-math.inf, dtype=working)
        scores = torch.where(is_seen, scores, hidden)
    weights = torch._safe_softmax(scores, -1).to(query.dtype)
    out = weights @ value.to(query.dtype)
    sums = scores.logsumexp(-1) / math.log(2)
    maxima = scores.new_empty(0)
    if max_scores:
        maxima = scores.max(-1)[0] / math.log(2)
    return with_layout_of(out, query), sums, maxima


def _working_type(query: Torch) -> torch.dtype:
    """Return the element type in which scores are computed."""
    return torch.float64 if query.dtype == torch.float64 else torch.float32


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
        buffer_leaves = [buffer.detach() for buffer in buffers]
        for index in learned:
            buffer_leaves[index].requires_grad_()
        sources = [*leaves, *(buffer_leaves[i] for i in learned)]
        results = flex_attention(
            *leaves,
            buffers=buffer_leaves,
            score=score,
            mask=mask,
            scale=scale,
            density=density,
        )
        outputs, grads = [results[0]], [grad_out]
        if grad_logsumexp is not None:
            outputs.append(results[1])
            grads.append(grad_logsumexp)
        gradients = torch.autograd.grad(outputs, sources, grads, materialize_grads=True)
    of_query, of_key, of_value, *of_buffers = gradients
    return (
        with_layout_of(of_query, query),
        with_layout_of(of_key, key),
        with_layout_of(of_value, value),
        [gradient.contiguous() for gradient in of_buffers],
    )


def _buffers_by_name(buffers: Sequence[Torch]) -> dict[str, Torch]:
    return {f"b{i}": buffer for i, buffer in enumerate(buffers)}


def _expand_heads(tensor: Torch, query: Torch) -> Torch:
    """Return keys or values expanded to all heads and samples of the query."""
    heads = tensor.repeat_interleave(query.shape[1] // tensor.shape[1], 1)
    return heads.expand(query.shape[0], *heads.shape[1:])


def with_layout_of(result: Torch, template: Torch) -> Torch:
    """Return a result with the order of axes of a template, and the last axis innermost."""
    outer_axes = range(result.dim() - 1)
    order = sorted(outer_axes, key=lambda axis: -template.stride(axis))
    strides = [1] * result.dim()
    step = result.shape[-1]
    for axis in reversed(order):
        strides[axis] = step
        step *= result.shape[axis]
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
    if not _fit(query, key, value):
        raise RuntimeError("flex_attention: query, key and value do not fit")
    sizes = dict(zip("bhqk", (*query.shape[:3], key.shape[2]), strict=True))
    buffer_by_name = _buffers_by_name(buffers)
    for name, axis, index in (*lookups(score), *lookups(mask)):
        shape = buffer_by_name[name].shape
        if index in sizes and sizes[index] > shape[axis]:
            limit = f"{index} < {sizes[index]}"
            raise RuntimeError(f"flex_attention: {limit} is no row of {tuple(shape)}")
    kind = _working_type(query)
    rows = query.shape[:-1]
    sums = query.new_empty(rows, dtype=kind)
    maxima = query.new_empty(rows if max_scores else (0,), dtype=kind)
    result = query.new_empty((*rows, value.shape[-1]))
    return with_layout_of(result, query), sums, maxima


def _fit(query: Torch, key: Torch, value: Torch) -> bool:
    """Return whether the shapes of query, key and value fit each other."""
    if not query.dim() == key.dim() == value.dim() == 4:
        return False
    if query.shape[-1] != key.shape[-1] or key.shape[:3] != value.shape[:3]:
        return False
    if key.shape[0] not in (1, query.shape[0]):
        return False
    key_heads = int(key.shape[1])
    return key_heads > 0 and int(query.shape[1]) % key_heads == 0


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
    return (
        with_layout_of(query, query),
        with_layout_of(key, key),
        with_layout_of(value, value),
        [buffers[index].new_empty(buffers[index].shape) for index in learned],
    )
