"""Floating-point operations of a step, as torch's ``FlopCounterMode`` counts them.

Products, convolutions and attention count, a multiplication and an addition each; all else is left
out. Formulas: torch, ``torch/utils/flop_counter.py``; but the gradient of a grouped convolution's
weight has a group's channels, where torch counts all.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.ir.schema import bind, resolve
from irgraph.ir.tensor import Tensor

Arguments = dict[str, Any]


def step_flops(graph: Graph) -> tuple[int, int]:
    """Return the operations of all leaves of a step, and how many products could not be counted."""
    found = [flops(op) for op in graph.walk() if not op.body]
    return sum(count or 0 for count in found), found.count(None)


def flops(op: Op) -> int | None:
    """Return the floating-point operations of a leaf; 0 for what is no product.

    ``None`` where a trace does not record the operands or attributes that they follow from.
    """
    found = _FORMULAS.get(op.name.partition(".")[2]) if op.name.startswith(_OURS) else None
    if found is None:
        return 0
    schema = resolve(op)
    named = {a.name: v for a, v in bind(schema, op)} if schema else {}
    try:
        return found(named, op)
    except (KeyError, IndexError, TypeError, AttributeError):  # what a trace does not record
        return None


_OURS = ("aten.", "irgraph.")


def _product(first: str, second: str) -> Callable[[Arguments, Op], int]:
    def count(named: Arguments, op: Op) -> int:
        a, b = (named[first], named[second]) if named else _last_two(op)
        return 2 * prod(a.shape) * int(b.shape[-1])

    return count


def _last_two(op: Op) -> tuple[Tensor, Tensor]:
    """Return the matrices of one of our own ops, which torch has no schema of."""
    matrices = [t for t in op.inputs if len(t.shape) >= 2]
    return matrices[-2], matrices[-1]


def _linear(named: Arguments, op: Op) -> int:
    x, weight = (named["input"], named["weight"]) if named else _last_two(op)
    return 2 * prod(x.shape) * int(weight.shape[0])


def _matmul(named: Arguments, op: Op) -> int:
    a, made = named["self"], op.outputs[0]
    return 2 * prod(made.shape) * int(a.shape[-1])


def _conv(x: Tensor, weight: Tensor, made: Tensor, transposed: bool) -> int:
    places = (x if transposed else made).shape[2:]
    return 2 * int(x.shape[0]) * prod(places) * prod(weight.shape)


def _convolution(named: Arguments, op: Op) -> int:
    x = named["input"] if "input" in named else named["self"]
    return _conv(x, named["weight"], op.outputs[0], bool(named.get("transposed", False)))


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


_ATTENTION = (
    "_scaled_dot_product_efficient_attention", "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_cudnn_attention", "_scaled_dot_product_flash_attention_for_cpu",
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
    **dict.fromkeys(_ATTENTION, _attention),
    **dict.fromkeys((f"{name}_backward" for name in _ATTENTION), _attention_backward),
}
