"""Operators that torch decomposes on meta, and for which CUDA has a kernel.

Torch's table of native functions names such an operator's kernels by backend: one for CUDA, and a
composite for backends without one. Here the operator gets a kernel for meta, so torch calls it, and
its derivative, undivided. Other composites choose by the device within their code (attention,
dropout, recurrent layers): other modules of this package emulate them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence

from irgraph.capture.common.torch_object import Torch


def _normalized(
    input: Torch,  # noqa: A002
    normalized_shape: Sequence[int],
    weight: Torch = None,
    eps: float | None = None,
) -> tuple[Torch, Torch]:
    """Return the results of ``_fused_rms_norm``: the quotient, and a reciprocal root for each row.

    The kernel computes roots of short floating-point numbers in f32 (torch,
    aten/src/ATen/native/cuda/layer_norm_kernel.cu).
    """
    import torch

    axes = len(normalized_shape)
    rows = (*input.shape[: input.dim() - axes], *[1] * axes)
    dtype = torch.promote_types(input.dtype, torch.float32)
    quotient = torch.empty_like(input, memory_format=torch.contiguous_format)
    return quotient, input.new_empty(rows, dtype=dtype)


def _like_operand(grad_output: Torch, self: Torch) -> Torch:
    import torch

    return torch.empty_like(self)


CUDA_KERNELS: Mapping[str, Callable[..., Torch]] = {
    "_fused_rms_norm": _normalized,
    "mish_backward": _like_operand,
}
"""Meta kernels of implicit composites for which CUDA has a kernel, by the operator's name."""


@contextlib.contextmanager
def undivided_composites() -> Iterator[None]:
    """Call, within the context, the listed operators on meta tensors as CUDA does."""
    import torch
    from torch.library import Library

    library = Library("aten", "IMPL")
    for name, kernel in CUDA_KERNELS.items():
        if hasattr(torch.ops.aten, name):
            # ``Library.impl`` refuses kernels for operators that torch can decompose
            library.m.impl(name, "Meta", kernel, False)
    try:
        yield
    finally:
        library._destroy()
