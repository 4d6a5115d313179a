"""cuDNN's recurrent layers and their gradients, computed by torch's layers on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from irgraph.execute.torch_values import Torch
from irgraph.ir.torch_schemas.recurrent import MODES, reserve_bytes

SEED = 0
"""Seed of dropout between layers, so that the gradient uses the forward pass's draws."""


def cudnn_rnn(
    input: Torch,  # noqa: A002
    weight: Sequence[Torch],
    weight_stride0: int,
    weight_buf: Torch,
    hx: Torch,
    cx: Torch,
    mode: int,
    hidden_size: int,
    proj_size: int,
    num_layers: int,
    batch_first: bool,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_sizes: Sequence[int],
    dropout_state: Torch,
) -> tuple[Torch, ...]:
    """Return results, last states, the buffer saved for the gradient (zeros), and empty weights."""
    biased = weight_stride0 - bool(proj_size) == 4
    layer: Callable[..., Torch] = getattr(torch, MODES[mode])
    states = hx if cx is None else [hx, cx]
    rest = (list(weight), biased, num_layers, dropout, train, bidirectional)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        if len(batch_sizes):
            lengths = torch.tensor(list(batch_sizes))
            outputs = layer(input, lengths, states, *rest)
        else:
            outputs = layer(input, states, *rest, batch_first)
    reserve_size = (
        reserve_bytes(input, mode, hidden_size, num_layers, bidirectional) if train else 0
    )
    cells = outputs[2] if cx is not None else input.new_empty(0)
    reserve = torch.zeros(reserve_size, dtype=torch.uint8)
    return outputs[0], outputs[1], cells, reserve, input.new_empty(0)


def cudnn_rnn_backward(
    input: Torch,  # noqa: A002
    weight: Sequence[Torch],
    weight_stride0: int,
    weight_buf: Torch,
    hx: Torch,
    cx: Torch,
    output: Torch,
    grad_output: Torch,
    grad_hy: Torch,
    grad_cy: Torch,
    *rest: Torch,
    **keywords: Torch,
) -> tuple[Torch, Torch, Torch, list[Torch]]:
    """Return gradients of the input, the states and the weights, by another forward pass."""
    names = (
        "mode",
        "hidden_size",
        "proj_size",
        "num_layers",
        "batch_first",
        "dropout",
        "train",
        "bidirectional",
        "batch_sizes",
        "dropout_state",
    )
    settings = {**dict(zip(names, rest, strict=False)), **keywords}
    settings = {name: settings[name] for name in names}
    with torch.enable_grad():
        inputs = [input, hx, *([] if cx is None else [cx]), *weight]
        leaves = [tensor.detach().requires_grad_() for tensor in inputs]
        data, first, *others = leaves
        cells, matrices = (None, others) if cx is None else (others[0], others[1:])
        outputs = cudnn_rnn(data, matrices, weight_stride0, None, first, cells, **settings)
        pairs = zip(outputs, (grad_output, grad_hy, grad_cy), strict=False)
        requested = [(result, grad) for result, grad in pairs if grad is not None]
        grads = torch.autograd.grad(
            [result for result, _ in requested],
            leaves,
            [grad for _, grad in requested],
            allow_unused=True,
        )
    filled = [
        torch.zeros_like(leaf) if grad is None else grad
        for leaf, grad in zip(leaves, grads, strict=True)
    ]
    states = filled[2] if cx is not None else input.new_empty(0)
    return filled[0], filled[1], states, filled[2 if cx is None else 3 :]
