"""Types of what cuDNN's recurrent layers return, and of their gradient.

Torch's own kernel for the meta device keeps nothing for the gradient, and it has none for the
gradient itself.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

MODES = ("rnn_relu", "rnn_tanh", "lstm", "gru")
"""Torch's layers by cuDNN's numbers of them (``cudnnRNNMode_t``)."""

GATES = (1, 1, 4, 3)
"""Matrices of a cell, by those numbers."""


@cache
def register_recurrent() -> None:
    """Give torch these types for meta tensors."""
    import torch

    library = torch.library.Library("aten", "IMPL")
    _LIBRARIES.append(library)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch has a kernel of its own for the first
        _replace(library, "_cudnn_rnn", _forward)
        _replace(library, "_cudnn_rnn_backward", _backward)


def _replace(library: Any, name: str, kernel: Callable[..., Any]) -> None:  # noqa: ANN401
    """Register a kernel for the meta device, also where torch.compile made torch register its own.

    Torch 2.11 refuses that unless it is told; older releases refuse it always, and keep the names
    of what is registered.
    """
    import torch

    try:
        library.impl(name, kernel, "Meta", allow_override=True)
    except TypeError:
        torch.library._impls.discard(f"aten/{name}/Meta")
        library.impl(name, kernel, "Meta")


_LIBRARIES: list[Any] = []
"""What keeps the registrations alive."""

Torch = Any
"""A tensor of torch."""


def reserve_bytes(data: Torch, mode: int, hidden: int, layers: int, bidirectional: bool) -> int:
    """Return bytes that a layer keeps for its gradient: gates and states, as torch's cells do.

    ``data`` is [steps, batch, features], in either order, or packed. cuDNN says how many it really
    takes only where there is a device (``cudnnGetRNNTempSpaceSizes``).
    """
    steps = data.numel() // max(data.shape[-1], 1)
    return int(
        steps
        * layers
        * (2 if bidirectional else 1)
        * hidden
        * (GATES[mode] + 1)
        * data.element_size()
    )


def _forward(
    data: Torch,
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
    """Return results, last states, what is kept for the gradient, and copied weights: none."""
    import torch

    width = (proj_size or hidden_size) * (2 if bidirectional else 1)
    reserve = reserve_bytes(data, mode, hidden_size, num_layers, bidirectional) if train else 0
    return (
        data.new_empty((*data.shape[:-1], width)),
        hx.new_empty(hx.shape),
        data.new_empty(0) if cx is None else cx.new_empty(cx.shape),
        data.new_empty(reserve, dtype=torch.uint8),
        data.new_empty(0),
    )


def _backward(data: Torch, weight: Sequence[Torch], *rest: Torch) -> Torch:
    """Return gradients of the input, of the states and of the weights."""
    _, _, hx, cx = rest[:4]
    return (
        data.new_empty(data.shape),
        hx.new_empty(hx.shape),
        data.new_empty(0) if cx is None else cx.new_empty(cx.shape),
        [tensor.new_empty(tensor.shape) for tensor in weight],
    )
