"""Ops that launch nothing: allocation, bookkeeping and views."""

from __future__ import annotations

from costmodels.formulas.machine import Rule, no_kernels

SOURCE = "launches nothing"

NAMES = (
    "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "detach",
    "detach_", "alias", "view", "view_as", "_unsafe_view", "_reshape_alias", "as_strided",
    "as_strided_", "expand", "expand_as", "t", "t_", "transpose", "transpose_", "permute",
    "numpy_T", "mT", "squeeze", "squeeze_", "unsqueeze", "unsqueeze_", "select", "slice",
    "narrow", "split", "split_with_sizes", "chunk", "unbind", "unfold", "diagonal", "movedim",
    "swapaxes", "conj", "lift_fresh", "broadcast_tensors", "broadcast_to", "resolve_conj",
    "resolve_neg", "result_type", "set_", "resize_", "requires_grad_", "_indices", "_values",
    "indices", "values", "_coalesced_", "_sparse_coo_tensor_unsafe",
    "_sparse_coo_tensor_with_dims_and_tensors", "sparse_coo_tensor", "is_pinned",
    "is_same_size", "sym_size", "_version", "record_stream", "retain_grad", "real", "imag",
    "view_as_real", "view_as_complex", "_has_compatible_shallow_copy_type", "_backward",
    "unsafe_split", "unsafe_split_with_sizes", "unsafe_chunk", "cudnn_is_acceptable",
    "is_coalesced", "_assert_tensor_metadata", "_has_same_storage_numel", "sym_numel",
    "sym_stride", "sym_storage_offset",
)  # fmt: skip

RULES: dict[str, Rule] = {f"aten.{name}": no_kernels for name in NAMES}
