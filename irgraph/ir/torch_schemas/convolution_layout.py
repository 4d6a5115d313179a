"""cuDNN's layout of the results of convolutions, which torch's meta kernels return contiguous."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

Torch: TypeAlias = Any
"""An object of torch's."""

OPERANDS = {
    "aten::convolution_backward": slice(1, 3),
    **dict.fromkeys(
        (
            "aten::convolution", "aten::conv2d", "aten::conv3d", "aten::conv_transpose2d",
            "aten::conv_transpose3d", "aten::_convolution", "aten::cudnn_convolution",
        ),
        slice(0, 2),
    ),
}  # fmt: skip
"""Convolutions by torch's names, with the positions of input and weight in their arguments."""


def with_cudnn_layout(name: str, operands: Sequence[Torch], results: Torch) -> Torch:
    """Return a call's meta results in the layout of a CUDA device.

    Results are in ``channels_last`` if the input or the weight is, unless they are of type f64
    (ATen's ``cudnn_conv_suggest_memory_format``). Results of other calls are unchanged.
    """
    import torch
    from torch._prims_common import suggest_memory_format

    if name not in OPERANDS:
        return results
    tensors = operands[OPERANDS[name]]
    formats = {suggest_memory_format(tensor) for tensor in tensors} - {torch.contiguous_format}
    if not formats or tensors[0].dtype == torch.float64 or tensors[0].device.type != "meta":
        return results
    (memory_format,) = formats
    if isinstance(results, torch.Tensor):
        return results.contiguous(memory_format=memory_format)
    return tuple(
        t if t is None or t.dim() < 4 else t.contiguous(memory_format=memory_format)
        for t in results
    )
