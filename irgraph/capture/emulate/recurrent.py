"""Recurrent layers on meta tensors as a CUDA device runs them: one call of cuDNN.

Torch decomposes a meta tensor's layer into a cell for each step, because it chooses by the device.
Here the layer calls ``_cudnn_rnn`` as in ``aten/src/ATen/native/cudnn/RNN.cpp``, with its
derivative. Weights count as one buffer, as after ``flatten_parameters`` on a CUDA device.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Iterator

from irgraph.capture.common.torch_object import Torch
from irgraph.ir.torch_schemas.recurrent import MODES, register_recurrent


@contextlib.contextmanager
def cudnn_layers_on_meta() -> Iterator[None]:
    """Run recurrent layers over meta tensors as calls of cuDNN within the context."""
    from torch.library import Library

    register_recurrent()
    library = Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # these replace torch's own kernels
        for name in MODES:
            for form in ("input", "data"):
                kernel = functools.partial(_layer, name, form)
                library.impl(f"{name}.{form}", kernel, "AutogradMeta")
    try:
        yield
    finally:
        library._destroy()


def _layer(name: str, form: str, *arguments: Torch) -> Torch:
    """Run ``aten.NAME.FORM`` on meta: by cuDNN, or step by step if cuDNN does not support it."""
    import torch

    data, *rest = arguments
    lengths = rest.pop(0) if form == "data" else ()
    state, weights, has_biases, layers, dropout, train, bidirectional, *batch_first = rest
    states = list(state) if name == "lstm" else [state]
    kinds = {tensor.dtype for tensor in (data, *states, *weights)}
    mixed = len(kinds) > 1 and not torch.is_autocast_enabled("cuda")
    if mixed or not torch.backends.cudnn.enabled:
        return getattr(getattr(torch.ops.aten, name), form).decompose(*arguments)
    hidden = (states[1] if name == "lstm" else states[0]).shape[2]
    width = states[0].shape[2]
    projected = width if width != hidden else 0
    first_state = states[0].contiguous()
    cells = states[1].contiguous() if name == "lstm" else None
    stride = 2 + 2 * has_biases + bool(projected)
    outputs = torch.ops.aten._cudnn_rnn(
        data,
        list(weights),
        stride,
        None,
        first_state,
        cells,
        MODES.index(name),
        hidden,
        projected,
        layers,
        bool(batch_first and batch_first[0]),
        dropout,
        train,
        bidirectional,
        [int(n) for n in lengths],
        None,
    )
    return outputs[:3] if name == "lstm" else outputs[:2]
