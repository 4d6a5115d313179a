"""Floating-point operations of a step, as torch's ``FlopCounterMode`` counts them.

Products, convolutions, attention and recurrent layers count, a multiplication and an addition each;
all else is left out. Formulas: torch, ``torch/utils/flop_counter.py``; but the gradient of a
grouped convolution's weight has a group's channels, where torch counts all, and of cuDNN's layers
every matrix counts with each row of each time step.
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
    """Return the operations of all leaves of a step, and how many products could not be counted."""
    found = [flops(op) for op in graph.walk() if not op.body]
    return sum(count or 0 for count in found), found.count(None)


def flops(op: Op) -> int | None:
    """Return the floating-point operations of a leaf; 0 for what is no product.

    ``None`` where a trace does not record the operands or attributes that they follow from.
    """
    name = _plain(op.name)
    if name not in _FORMULAS:
        return None if name in UNCOUNTED else 0
    try:
        return _FORMULAS[name](_named(op), op)
    except (LookupError, TypeError, AttributeError, ValueError):  # what a trace does not record
        return None


def is_product(name: str) -> bool:
    """Return whether operations of an op of this name are counted: it multiplies and adds."""
    return _plain(name) in _FORMULAS


def _plain(name: str) -> str:
    """Return the name of a product without what does not matter: where it lies, and tf32."""
    return plain_name(name).partition(".")[2].removesuffix("_") if name.startswith(_OURS) else ""


def _named(op: Op) -> Arguments:
    """Return arguments by name; of the first overload that has tensors there, if none fits."""
    schema = resolve(op) or next((s for s in schemas_of(op.name) if _tensors_fit(s, op)), None)
    return {a.name: value for a, value in bind(schema, op)} if schema else {}


def _tensors_fit(schema: Schema, op: Op) -> bool:
    pairs = zip(schema.arguments, op.operands, strict=False)
    return all(argument.is_tensor for argument, value in pairs if isinstance(value, Tensor))


_OURS = ("aten.", "irgraph.")

UNCOUNTED = frozenset((
    "mv", "addmv", "_grouped_mm", "mm_relu_backward", "batched_gemm",
    "cudnn_convolution_transpose", "cudnn_convolution_backward",
    "cudnn_convolution_transpose_backward", "_conv_depthwise2d", "conv_depthwise3d",
    "convolution_overrideable", "convolution_backward_overrideable",
))  # fmt: skip
"""Products that have no formula here."""


def _product(first: str, second: str) -> Callable[[Arguments, Op], int]:
    def count(named: Arguments, _: Op) -> int:
        return 2 * int(prod(named[first].shape)) * int(named[second].shape[-1])

    return count


def _linear(named: Arguments, _: Op) -> int:
    return 2 * int(prod(named["input"].shape)) * int(named["weight"].shape[0])


def _matmul(named: Arguments, op: Op) -> int:
    a, made = named["self"], op.outputs[0]
    return 2 * prod(made.shape) * int(a.shape[-1])


def _conv(x: Tensor, weight: Tensor, made: Tensor, transposed: bool) -> int:
    places = (x if transposed else made).shape[2:]
    return 2 * int(x.shape[0]) * prod(places) * prod(weight.shape)


def _convolution(named: Arguments, op: Op) -> int:
    x = named["input"] if "input" in named else named["self"]
    made, weight = op.outputs[0], named["weight"]
    transposed = named.get("transposed")
    if transposed is None:  # not recorded: the channels tell
        transposed = made.shape[1] != weight.shape[0]
    return _conv(x, weight, made, bool(transposed))


def _convolution_backward(named: Arguments, _: Op) -> int:
    grad, x, weight = (named[key] for key in ("grad_output", "input", "weight"))
    transposed, mask = bool(named["transposed"]), named["output_mask"]
    wanted = _conv(grad, weight, x, not transposed) if mask[0] else 0
    if mask[1]:
        # the gradient of the weight is a convolution of all places with all places
        places = (x if transposed else grad).shape[2:]
        groups = int(named["groups"])
        channels = int(grad.shape[1]) * int(x.shape[1])
        wanted += 2 * int(x.shape[0]) * prod(places) * prod(weight.shape[2:]) * channels // groups
    return wanted


def _attention(named: Arguments, _: Op) -> int:
    q, k, v = (named[key].shape for key in ("query", "key", "value"))
    return 2 * int(q[0]) * int(q[1]) * int(q[2]) * int(k[2]) * (int(q[3]) + int(v[3]))


def _attention_backward(named: Arguments, _: Op) -> int:
    q, k, v = (named[key].shape for key in ("query", "key", "value"))
    each = 2 * int(q[0]) * int(q[1]) * int(q[2]) * int(k[2])
    return each * (3 * int(q[3]) + 2 * int(v[3]))


def _cudnn_backward(_: Arguments, op: Op) -> int:
    """Count one gradient, of the input or of the weight, as torch called them before 1.11."""
    grad, other = op.inputs[:2]
    weight = op.outputs[0] if op.base.endswith("weight") else other
    return 2 * int(grad.shape[0]) * prod(grad.shape[2:]) * prod(weight.shape)


def _recurrent(named: Arguments, _: Op) -> int:
    """Count each matrix of all layers and directions with each row of each time step."""
    data = named["input"]
    matrices = (prod(weight.shape) for weight in named["weight"] if len(weight.shape) > 1)
    return 2 * int(prod(data.shape[:-1])) * int(sum(matrices))


def _recurrent_backward(named: Arguments, op: Op) -> int:
    """Count the gradient of what goes in, which cuDNN always computes, and that of the weights."""
    return (1 + bool(named["output_mask"][3])) * _recurrent(named, op)


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
