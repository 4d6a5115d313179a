"""CPU replacements for ops that require another device, other processes, or valid operands."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from irgraph.execute.fused.attention import (
    efficient_attention,
    efficient_attention_backward,
    flash_attention,
    flash_attention_backward,
)
from irgraph.execute.fused.norm import (
    batch_norm_backward_elemt,
    batch_norm_backward_reduce,
    batch_norm_elemt,
    batch_norm_gather_stats,
    batch_norm_stats,
    rms_norm_backward,
)
from irgraph.execute.fused.recurrent import cudnn_rnn, cudnn_rnn_backward
from irgraph.execute.torch_values import Torch


def embedding_bag(
    weight: Torch,
    indices: Torch,
    offsets: Torch,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Torch = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Torch:
    """Return bags and the results that any backward pass may need.

    Without autograd torch omits these, and its CPU kernels omit the bag of each index and the sizes
    of bags for sums.
    """
    padding = -1 if padding_idx is None else padding_idx
    bags, bag_of, sizes, maxima = torch.ops.aten._embedding_bag(
        weight,
        indices,
        offsets,
        scale_grad_by_freq,
        mode,
        sparse,
        per_sample_weights,
        include_last_offset,
        padding,
    )
    if mode == 0 and padding < 0:
        starts = offsets[: len(bags)].to(torch.promote_types(indices.dtype, offsets.dtype))
        sizes = torch.cat([starts[1:], starts.new_tensor([indices.numel()])]) - starts
        bag_of = torch.arange(len(bags)).to(starts).repeat_interleave(sizes.long())
    return bags, bag_of, sizes, maxima


def cudnn_convolution(
    self: Torch,
    weight: Torch,
    padding: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    **_: object,
) -> Torch:
    """Convolve without a bias."""
    none = [0] * len(stride)
    return torch.ops.aten.convolution(
        self, weight, None, stride, padding, dilation, False, none, groups
    )


def histc(self: Torch, bins: int = 100, min: float = 0, max: float = 0) -> Torch:  # noqa: A002
    """Return a histogram, also of integers, as on devices."""
    return torch.histc(self.double(), bins, min, max).to(self.dtype)


def pin_memory(self: Torch, **_: object) -> Torch:
    """Return host memory unchanged."""
    return self


def reshape_alias(self: Torch, size: Sequence[int], stride: Sequence[int]) -> Torch:
    """Return the view of a size and strides, within bounds, which the original does not check."""
    return torch.as_strided(self, size, stride)


def sparse_coo_tensor(indices: Torch, values: Torch, size: Sequence[int], **_: object) -> Torch:
    """Return a sparse tensor; ``bounds.check_sparse`` checks its indices before they are used."""
    return torch.sparse_coo_tensor(indices, values, size, check_invariants=False)


def no_op(*_: object, **__: object) -> None:
    """Do nothing."""


SUBSTITUTES: Mapping[str, Callable[..., Torch]] = {
    "aten.embedding_bag": embedding_bag,
    "aten._embedding_bag": embedding_bag,
    "aten.cudnn_convolution": cudnn_convolution,
    "aten._scaled_dot_product_efficient_attention": efficient_attention,
    "aten._scaled_dot_product_efficient_attention_backward": efficient_attention_backward,
    "aten._scaled_dot_product_flash_attention": flash_attention,
    "aten._scaled_dot_product_flash_attention_backward": flash_attention_backward,
    "aten._fused_rms_norm_backward": rms_norm_backward,
    "aten.batch_norm_stats": batch_norm_stats,
    "aten.batch_norm_gather_stats_with_counts": batch_norm_gather_stats,
    "aten.batch_norm_elemt": batch_norm_elemt,
    "aten.batch_norm_backward_reduce": batch_norm_backward_reduce,
    "aten.batch_norm_backward_elemt": batch_norm_backward_elemt,
    "aten._cudnn_rnn": cudnn_rnn,
    "aten._cudnn_rnn_backward": cudnn_rnn_backward,
    "aten.histc": histc,
    "aten.pin_memory": pin_memory,
    "aten._pin_memory": pin_memory,
    "aten._reshape_alias": reshape_alias,
    "aten._sparse_coo_tensor_unsafe": sparse_coo_tensor,
    "aten._sparse_coo_tensor_with_dims_and_tensors": sparse_coo_tensor,
    "aten.record_stream": no_op,
}
"""Replacements by name of the op; arguments are passed by the schema's names."""
