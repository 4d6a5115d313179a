"""Fused attention of CUDA devices in plain torch: Vaswani et al. (2017), equation 1."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from irgraph.execute.torch_values import Torch

QUERY_ALIGNMENT = 32
"""Number to a multiple of which the kernel's log-sum-exp pads the queries."""


def efficient_attention(
    query: Torch,
    key: Torch,
    value: Torch,
    attn_bias: Torch,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
) -> tuple[Torch, Torch, Torch, Torch]:
    """Return softmax(q k^T scale + bias) v, its log-sum-exp, and the seed and offset of dropout.

    ``query`` is [batch, heads, length, width]; ``key`` and ``value`` may have another length.
    """
    scores = _scores(query, key, attn_bias, is_causal, scale)
    seed = torch.randint(2**62, ())
    dropout_scales = _dropout_scales(scores, dropout_p, seed)
    # completely masked rows are 0
    out = (torch._safe_softmax(scores, -1) * dropout_scales) @ value
    sums = scores.logsumexp(-1)
    sums = sums if sums.dtype == torch.float64 else sums.float()
    missing = -sums.shape[-1] % QUERY_ALIGNMENT
    sums = torch.nn.functional.pad(sums, (0, missing)) if compute_log_sumexp else sums[..., :0]
    return out, sums, seed, torch.zeros((), dtype=torch.int64)


def efficient_attention_backward(
    grad_out_: Torch,
    query: Torch,
    key: Torch,
    value: Torch,
    attn_bias: Torch,
    philox_seed: Torch,
    dropout_p: float,
    grad_input_mask: Sequence[bool],
    is_causal: bool = False,
    scale: float | None = None,
    **_: object,
) -> tuple[Torch, ...]:
    """Return the gradients of query, key, value and bias, ``None`` if not requested."""
    scores = _scores(query, key, attn_bias, is_causal, scale)
    dropout_scales = _dropout_scales(scores, dropout_p, philox_seed)
    shares = scores.softmax(-1)
    grad_shares = (grad_out_ @ value.mT) * dropout_scales
    grad_scores = shares * (grad_shares - (grad_shares * shares).sum(-1, keepdim=True))
    factor = _factor(query, scale)
    gradients = (
        grad_scores @ key * factor,
        grad_scores.mT @ query * factor,
        (shares * dropout_scales).mT @ grad_out_,
        grad_scores,
    )
    return tuple(
        g if requested else None for g, requested in zip(gradients, grad_input_mask, strict=True)
    )


def flash_attention(
    query: Torch,
    key: Torch,
    value: Torch,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    scale: float | None = None,
) -> tuple[Torch, ...]:
    """Return attention, its log-sum-exp, no sequence lengths, and the state of dropout.

    ``key`` and ``value`` may have fewer heads than ``query``, which share them evenly.
    """
    if return_debug_mask:
        raise RuntimeError("what dropout kept is not returned")
    heads = query.shape[1]
    out, sums, seed, offset = efficient_attention(
        query,
        _repeat_heads(key, heads),
        _repeat_heads(value, heads),
        None,
        True,
        dropout_p,
        is_causal,
        scale,
    )
    state = torch.stack([seed, offset])
    return out, sums[..., : query.shape[2]], None, None, state, offset, query.new_empty(0)


def flash_attention_backward(
    grad_out: Torch,
    query: Torch,
    key: Torch,
    value: Torch,
    dropout_p: float,
    is_causal: bool,
    philox_seed: Torch,
    scale: float | None = None,
    **_: object,
) -> tuple[Torch, ...]:
    """Return the gradients of query, key and value."""
    heads, requested = query.shape[1], (True, True, True, False)
    repeated = _repeat_heads(key, heads), _repeat_heads(value, heads)
    seed = philox_seed.flatten()[0]
    grad, *head_gradients, _none = efficient_attention_backward(
        grad_out, query, *repeated, None, seed, dropout_p, requested, is_causal, scale
    )
    of_heads = [
        g.unflatten(1, (t.shape[1], -1)).sum(2)
        for g, t in zip(head_gradients, (key, value), strict=True)
    ]
    return grad, *of_heads


def _repeat_heads(tensor: Torch, heads: int) -> Torch:
    """Return keys or values, repeated to the number of heads of the queries."""
    return tensor.repeat_interleave(heads // tensor.shape[1], 1)


def _factor(query: Torch, scale: float | None) -> float:
    return 1 / math.sqrt(query.shape[-1]) if scale is None else scale


def _scores(query: Torch, key: Torch, bias: Torch, causal: bool, scale: float | None) -> Torch:
    scores = query @ key.mT * _factor(query, scale)
    if bias is not None:
        scores = scores + bias
    if causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(later, -math.inf)
    return scores


def _dropout_scales(scores: Torch, dropout: float, seed: Torch) -> Torch:
    """Return the factor of dropout for each weight: 0, or 1 over the probability of keeping it."""
    source = torch.Generator().manual_seed(int(seed))
    samples = torch.rand(scores.shape, generator=source)
    return (samples >= dropout).to(scores.dtype) / (1 - dropout)
