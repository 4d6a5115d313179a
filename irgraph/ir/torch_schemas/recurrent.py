"""Types of the results of cuDNN's recurrent layers, and of their gradient.

Torch's own meta kernel saves nothing for the gradient, and torch has no meta kernel of the
gradient.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

MODES = ("rnn_relu", "rnn_tanh", "lstm", "gru")
"""Torch's layers, in the order of cuDNN's numbers (``cudnnRNNMode_t``)."""

GATES = (1, 1, 4, 3)
"""Number of matrices of a cell, in the same order."""


@cache
def register_recurrent() -> None:
    """Register meta kernels with these types in torch."""
    import torch

    library = torch.library.Library("aten", "IMPL")
    _LIBRARIES.append(library)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch has its own kernel for the first op
        _replace(library, "_cudnn_rnn", _forward)
        _replace(library, "_cudnn_rnn_backward", _backward)


def _replace(library: Any, name: str, kernel: Callable[..., Any]) -> None:  # noqa: ANN401
    """Register a kernel for the meta device, even if torch.compile has registered torch's own.

    Torch 2.11 refuses to override a kernel without ``allow_override``; older releases always
    refuse, and store the names of registered kernels.
    """
    import torch

    try:
        library.impl(name, kernel, "Meta", allow_override=True)
    except TypeError:
        torch.library._impls.discard(f"aten/{name}/Meta")
        library.impl(name, kernel, "Meta")


_LIBRARIES: list[Any] = []
"""References that prevent the registrations from being freed."""

Torch = Any
"""A tensor of torch."""


def reserve_bytes(data: Torch, mode: int, hidden: int, layers: int, bidirectional: bool) -> int:
    """Return the bytes that a layer saves for its gradient: gates and states, as torch's cells do.

    ``data`` is [steps, batch, features], in either order, or packed. cuDNN reports the actual size
    only on a device (``cudnnGetRNNTempSpaceSizes``).
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
    """Return results, last states, the reserve for the gradient, and copied weights (empty)."""
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
