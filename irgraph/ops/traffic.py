"""Minimum bytes that a call must move: each byte is read once and written once."""

from __future__ import annotations

from functools import cache

from irgraph.ir.op import Op
from irgraph.ir.schema import schemas_of
from irgraph.ops.flops import is_product

WHOLE_TENSOR_OPS = frozenset((
    "clone", "_to_copy", "contiguous", "copy_", "cat", "stack", "constant_pad_nd", "fill_", "zero_",
    "zeros", "ones", "full", "zeros_like", "ones_like", "full_like", "new_zeros",
    "sum", "mean", "amax", "amin", "max", "min", "prod", "var", "var_mean", "std", "norm",
    "linalg_vector_norm", "_softmax", "_log_softmax", "_softmax_backward_data",
    "_log_softmax_backward_data", "native_layer_norm", "native_layer_norm_backward",
    "native_batch_norm", "native_batch_norm_backward", "cudnn_batch_norm",
    "cudnn_batch_norm_backward", "_fused_rms_norm", "native_group_norm",
    "native_group_norm_backward", "native_dropout", "native_dropout_backward",
    "max_pool2d_with_indices", "max_pool2d_with_indices_backward", "avg_pool2d",
    "avg_pool2d_backward", "_adaptive_avg_pool2d", "_adaptive_avg_pool2d_backward",
    "bernoulli_", "normal_", "uniform_", "cumsum", "flip", "roll", "_fused_adam_", "_fused_adamw_",
    "_fused_sgd_",
))  # fmt: skip
"""Ops that read and write every element of every tensor, in addition to pointwise ops and products.
Lookups, gathers and scatters are not among them: their accesses depend on their indices."""

_FILLS = frozenset(("copy_", "fill_", "zero_", "bernoulli_", "normal_", "uniform_"))
"""Ops that write their operand without reading it."""


@cache
def moves_all(name: str) -> bool:
    """Return whether an op of this name reads and writes all of its tensors."""
    _, _, base = name.rpartition(".")
    if base in WHOLE_TENSOR_OPS:
        return True
    return is_product(name) or has_pointwise_form(name)


def has_pointwise_form(name: str) -> bool:
    """Return whether torch declares any overload of an op as pointwise."""
    return any(schema.pointwise for schema in schemas_of(name))


def traffic(op: Op) -> int | None:
    """Return the bytes of a call's operands, each read once, and of the tensors that it writes.

    The distinct elements of a tensor with expanded axes are counted. ``None`` if the tensors do
    not determine the traffic: lookups by index, and calls without recorded results.
    """
    if not moves_all(op.name) or not (op.outputs or op.written):
        return None
    is_fill = op.base in _FILLS
    moved_tensors = list(op.outputs)
    for name, tensor in {tensor.name: tensor for tensor in op.inputs}.items():
        is_written = name in op.written
        if not (is_written and is_fill):
            moved_tensors.append(tensor)
        if is_written:
            moved_tensors.append(tensor)
    return sum(tensor.distinct * tensor.itemsize for tensor in moved_tensors)
