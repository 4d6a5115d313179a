"""Floating-point operations of a step, as torch's ``FlopCounterMode`` counts them.

Products, convolutions, attention and recurrent layers are counted, with a multiplication and an
addition each; other ops are not. The formulas are torch's (``torch/utils/flop_counter.py``), with
two exceptions. The gradient of a grouped convolution's weight has the channels of one group, where
torch counts all channels. In cuDNN's layers every matrix is multiplied by each row of each time
step.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.ir.schema import Schema, bind, resolve, schemas_of
from irgraph.ir.tensor import Tensor
from irgraph.ir.tf32 import plain_name

Arguments = dict[str, Any]


def step_flops(graph: Graph) -> tuple[int, int]:
    """Return the operations of all leaves of a step, and the number of uncounted products."""
    counts = [flops(op) for op in graph.walk() if not op.body]
    return sum(count or 0 for count in counts), counts.count(None)


def flops(op: Op) -> int | None:
    """Return the floating-point operations of a leaf; 0 if it is no product.

    ``None`` if a trace does not record the operands or attributes on which they depend.
    """
    name = _canonical_name(op.name)
    if name not in _FORMULAS:
        return None if name in UNCOUNTED else 0
    try:
        return _FORMULAS[name](_arguments_by_name(op), op)
    except (LookupError, TypeError, AttributeError, ValueError):  # not recorded by a trace
        return None


def is_product(name: str) -> bool:
    """Return whether the operations of ops with this name are counted."""
    return _canonical_name(name) in _FORMULAS


def _canonical_name(name: str) -> str:
    """Return the base name of a product, without ``_tf32`` and the ``_`` of in-place ops."""
    return (
        plain_name(name).partition(".")[2].removesuffix("_")
        if name.startswith(_COUNTED_LIBRARIES)
        else ""
    )


def _arguments_by_name(op: Op) -> Arguments:
    """Return arguments by name; if no overload fits, of the first one whose tensors fit."""
    schema = resolve(op) or next((s for s in schemas_of(op.name) if _tensors_fit(s, op)), None)
    return {a.name: value for a, value in bind(schema, op)} if schema else {}


def _tensors_fit(schema: Schema, op: Op) -> bool:
    pairs = zip(schema.arguments, op.operands, strict=False)
    return all(argument.is_tensor for argument, value in pairs if isinstance(value, Tensor))


_COUNTED_LIBRARIES = ("aten.", "irgraph.")

UNCOUNTED = frozenset((
    "mv", "addmv", "_grouped_mm", "mm_relu_backward", "batched_gemm",
    "cudnn_convolution_transpose", "cudnn_convolution_backward",
    "cudnn_convolution_transpose_backward", "_conv_depthwise2d", "conv_depthwise3d",
    "convolution_overrideable", "convolution_backward_overrideable",
))  # fmt: skip
"""Products without a formula in this module."""


def _product(first: str, second: str) -> Callable[[Arguments, Op], int]:
    def count(arguments: Arguments, _: Op) -> int:
        return 2 * int(prod(arguments[first].shape)) * int(arguments[second].shape[-1])

    return count


def _linear(arguments: Arguments, _: Op) -> int:
    return 2 * int(prod(arguments["input"].shape)) * int(arguments["weight"].shape[0])


def _matmul(arguments: Arguments, op: Op) -> int:
    a, output = arguments["self"], op.outputs[0]
    return 2 * prod(output.shape) * int(a.shape[-1])


def _conv(x: Tensor, weight: Tensor, output: Tensor, transposed: bool) -> int:
    positions = (x if transposed else output).shape[2:]
    return 2 * int(x.shape[0]) * prod(positions) * prod(weight.shape)


def _convolution(arguments: Arguments, op: Op) -> int:
    x = arguments["input"] if "input" in arguments else arguments["self"]
    output, weight = op.outputs[0], arguments["weight"]
    transposed = arguments.get("transposed")
    if transposed is None:  # not recorded: derive it from the channels
        transposed = output.shape[1] != weight.shape[0]
    return _conv(x, weight, output, bool(transposed))


def _convolution_backward(arguments: Arguments, _: Op) -> int:
    grad, x, weight = (arguments[key] for key in ("grad_output", "input", "weight"))
    transposed, mask = bool(arguments["transposed"]), arguments["output_mask"]
    count = _conv(grad, weight, x, not transposed) if mask[0] else 0
    if mask[1]:
        # the gradient of the weight is a convolution of all places with all places
        positions = (x if transposed else grad).shape[2:]
        groups = int(arguments["groups"])
        channels = int(grad.shape[1]) * int(x.shape[1])
        count += 2 * int(x.shape[0]) * prod(positions) * prod(weight.shape[2:]) * channels // groups
    return count


def _attention(arguments: Arguments, _: Op) -> int:
    q, k, v = (arguments[key].shape for key in ("query", "key", "value"))
    return 2 * int(q[0]) * int(q[1]) * int(q[2]) * int(k[2]) * (int(q[3]) + int(v[3]))


def _attention_backward(arguments: Arguments, _: Op) -> int:
    q, k, v = (arguments[key].shape for key in ("query", "key", "value"))
    per_column = 2 * int(q[0]) * int(q[1]) * int(q[2]) * int(k[2])
    return per_column * (3 * int(q[3]) + 2 * int(v[3]))


def _cudnn_backward(_: Arguments, op: Op) -> int:
    """Count one gradient, of the input or of the weight: ops of torch before 1.11."""
    grad, other = op.inputs[:2]
    weight = op.outputs[0] if op.base.endswith("weight") else other
    return 2 * int(grad.shape[0]) * prod(grad.shape[2:]) * prod(weight.shape)


def _recurrent(arguments: Arguments, _: Op) -> int:
    """Count each matrix of all layers and directions with each row of each time step."""
    data = arguments["input"]
    matrices = (prod(weight.shape) for weight in arguments["weight"] if len(weight.shape) > 1)
    return 2 * int(prod(data.shape[:-1])) * int(sum(matrices))


def _recurrent_backward(arguments: Arguments, op: Op) -> int:
    """Count the gradient of the input, which cuDNN always computes, and that of the weights."""
    return (1 + bool(arguments["output_mask"][3])) * _recurrent(arguments, op)


_ATTENTION = (
    "scaled_dot_product_attention", "_scaled_dot_product_fused_attention_overrideable",
    "_scaled_dot_product_efficient_attention", "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_cudnn_attention", "_scaled_dot_product_flash_attention_for_cpu",
    "flex_attention",
)  # fmt: skip
_FORMULAS: dict[str, Callable[[Arguments, Op], int]] = {
    "mm": _product("self", "mat2"),
    "_scaled_mm": _product("self", "mat2"),
    "addmm": _product("mat1", "mat2"),
    "_addmm_activation": _product("mat1", "mat2"),
    "addmm_relu": _product("mat1", "mat2"),
    "bmm": _product("self", "mat2"),
    "baddbmm": _product("batch1", "batch2"),
    "linear": _linear,
    "linear_relu": _linear,
    "matmul": _matmul,
    **dict.fromkeys(("convolution", "_convolution", "cudnn_convolution"), _convolution),
    "convolution_backward": _convolution_backward,
    **dict.fromkeys(
        ("cudnn_convolution_backward_input", "cudnn_convolution_backward_weight"), _cudnn_backward
    ),
    "_cudnn_rnn": _recurrent,
    "_cudnn_rnn_backward": _recurrent_backward,
    **dict.fromkeys(_ATTENTION, _attention),
    **dict.fromkeys((f"{name}_backward" for name in _ATTENTION), _attention_backward),
}
