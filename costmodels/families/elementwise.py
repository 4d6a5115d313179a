"""Element-wise kernels: every operand's distinct bytes are read or written once."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from costmodels.benchmarks.bench import Bench, Call
from costmodels.benchmarks.sweep import MATRIX, Function, Sweep, backward, forward
from costmodels.families.copy import device_copy
from costmodels.formulas.blocks.random_numbers import DRAW_FORMULA, dropout_time
from costmodels.formulas.elements import ROOFLINE, broadcast_copy, streaming
from costmodels.formulas.intervals import CLOSE, NEAR
from costmodels.formulas.machine import (
    Machine,
    Rule,
    first_tensor,
    shape_text,
    traffic,
    work,
)
from costmodels.formulas.offsets import needs_offsets, unvectorized_time
from costmodels.formulas.scatter import add_rows
from costmodels.formulas.serial import has_gpu_laws
from costmodels.learnable.family import LearnedFamily, Query
from costmodels.learnable.hardware import Floats, Hardware
from costmodels.learnable.inputs import Inputs, Sizes, log2, multiples, roofline, settling
from costmodels.learnable.launch import linear_in_bytes
from costmodels.learnable.settings import Architecture, Settings
from irgraph.ir.cost import Kernel
from irgraph.ir.op import Op
from irgraph.ir.points.point_values import maximum, to_float
from irgraph.ir.tensor import Tensor

SOURCE = (
    "roofline (paper, III-B-1b) over distinct bytes, plus the launch floor (traced V100 kernels); "
    "trained for f32 ops of one operand"
)

POINTWISE = (
    "abs", "acos", "acosh", "add", "addcdiv", "addcmul", "angle", "asin", "asinh", "atan",
    "atan2", "atanh", "bitwise_and", "bitwise_not", "bitwise_or", "bitwise_xor",
    "bitwise_left_shift", "bitwise_right_shift", "ceil", "celu", "clamp", "clamp_max",
    "clamp_min", "clip", "conj_physical", "copysign", "cos", "cosh", "deg2rad", "digamma",
    "div", "elu", "elu_backward", "eq", "erf", "erfc", "erfinv", "exp", "exp2", "expm1",
    "float_power", "floor", "floor_divide", "fmax", "fmin", "fmod", "frac", "ge", "gelu",
    "gelu_backward", "glu", "gt", "hardshrink", "hardsigmoid", "hardsigmoid_backward",
    "hardswish", "hardswish_backward", "hardtanh", "hardtanh_backward", "heaviside", "hypot",
    "isfinite", "isinf", "isnan", "isneginf", "isposinf", "ldexp", "le", "leaky_relu",
    "leaky_relu_backward", "lerp", "lgamma", "log", "log10", "log1p", "log2",
    "log_sigmoid_forward", "log_sigmoid_backward", "logaddexp", "logaddexp2", "logical_and",
    "logical_not", "logical_or", "logical_xor", "logit", "logit_backward", "lt", "masked_fill",
    "maximum", "minimum", "mish", "mish_backward", "mul", "nan_to_num", "native_dropout",
    "native_dropout_backward", "_fused_dropout", "_masked_scale", "ne", "neg", "nextafter",
    "polygamma", "positive", "pow", "prelu", "rad2deg", "reciprocal", "relu", "relu6",
    "remainder", "round", "rsqrt", "rsub", "selu", "sgn", "sigmoid", "sigmoid_backward", "sign",
    "signbit", "silu", "silu_backward", "sin", "sinc", "sinh", "softplus", "softplus_backward",
    "softshrink", "sqrt", "square", "sub", "tan", "tanh", "tanh_backward", "threshold",
    "threshold_backward", "true_divide", "trunc", "where", "xlogy", "tril", "triu", "bernoulli",
    "normal", "uniform", "exponential", "random", "__and__", "__or__", "__xor__",
    "_prelu_kernel", "_prelu_kernel_backward", "_amp_update_scale", "_add_relu", "complex",
    "frexp", "gcd", "glu_backward", "hardshrink_backward", "i0", "igamma", "igammac",
    "lcm", "mvlgamma", "polar", "rrelu_with_noise", "rrelu_with_noise_backward",
    "soft_margin_loss_backward", "softshrink_backward", "special_entr", "special_erfcx",
    "special_i0e", "special_i1", "special_i1e", "special_log_ndtr", "special_ndtri",
    "special_xlog1py", "special_zeta", "geometric", "log_normal", "cauchy",
)  # fmt: skip
"""Ops whose kernel visits each element once (torch's tag ``pointwise``, and their gradients)."""

PAPER_FLOPS = {"gelu": 175, "gelu_backward": 255, "tanh": 180, "tanh_backward": 260, "pow": 180}
"""FLOP per element in the paper's program; its counts of other ops (at most 4) are hidden by the
bytes on every card."""

PAPER_PAIRS = ("relu", "threshold_backward", "sigmoid", "sigmoid_backward", *PAPER_FLOPS)
"""Ops for which the paper's program counts two moved tensors; for all others it counts three."""


def pointwise(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Return the kernel of an elementwise op, or a sparse update's kernels."""
    target = first_tensor(op)
    if target is None:
        return None
    values = op.operands[1] if len(op.operands) > 1 else None
    if op.written and isinstance(values, Tensor) and not _broadcasts(values, target):
        return add_rows(target, values, machine)
    name = f"{op.base} {shape_text(target)}"
    count, dtype = target.numel, target.dtype
    learned = machine.learned_kernel(
        "elementwise", name, op=_measured_as(op), elements=count, dtype=dtype
    )
    learned = learned or _transformer_kernel(op, name, target, machine)
    if learned:
        return (learned,)
    if op.base in DROPOUTS and has_gpu_laws(machine):
        nbytes = traffic(*op.inputs, *op.outputs)
        time = dropout_time(count, target.itemsize, nbytes, machine) + machine.start
        return (work("elementwise", name, time, NEAR, DRAW_FORMULA),)
    return (work("elementwise", name, elementwise_time(op, count, machine), CLOSE, ROOFLINE),)


DROPOUTS = ("native_dropout", "_fused_dropout")
"""Ops that draw a number for each element."""


ROWS_PER_SUM = 64
"""Rows whose gradients a block sums up for a bias's gradient (Transformer Engine's ``dbias``
kernels: 32 rows for each element of a store, which are 2 to 4)."""


def _bias_gelu(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price a GELU that adds a bias to its operand, or its backward, like the plain GELU.

    The backward also writes partial sums of the bias's gradient, which a second kernel adds up.
    """
    *tensors, bias = op.inputs
    name = op.base.removeprefix("bias_")
    gelu_op = replace(op, name=f"aten.{name}", operands=tuple(tensors), results=op.results[:1])
    kernels = pointwise(gelu_op, machine)
    if kernels is None or len(op.outputs) < 2:
        return kernels
    rows = -(-tensors[0].numel // max(bias.numel, 1) // ROWS_PER_SUM)
    sums = streaming(machine, rows * bias.numel * 4 + traffic(bias))
    return *kernels, work("elementwise", f"sums {rows}x{bias.numel}", sums, CLOSE, ROOFLINE)


FUSED = ("silu_mul", "silu_mul_backward", "rotary", "rotary_backward")
"""irgraph's own ops whose kernel visits each element once."""


def _one_pass(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price one pass over all operands and results."""
    target = first_tensor(op)
    if target is None:
        return None
    name = f"{op.base} {shape_text(target)}"
    return (work("elementwise", name, elementwise_time(op, target.numel, machine), NEAR, ROOFLINE),)


TRAINED_COLUMNS = {"add": 4096, "gelu": 10240}
"""Columns of most rows of 16 bits on which the model of transformer layers was trained."""


def _transformer_kernel(op: Op, name: str, target: Tensor, machine: Machine) -> Kernel | None:
    """Return the estimate of the model of transformer layers for a sum of two tensors, or gelu.

    Times of contiguous tensors depend on the number of elements alone: the model is evaluated at
    the columns that it was trained on, and at one row at least. Above its training range its time
    grows with the bytes, from its answer at the border.
    """
    base, count = op.base.rstrip("_"), target.numel
    is_strided = needs_offsets((*op.inputs, *op.outputs), count)
    if len(op.inputs) != {"add": 2, "gelu": 1}.get(base) or is_strided:
        return None
    cols = TRAINED_COLUMNS[base]
    sizes: dict[str, float | str] = {
        "rows": maximum(count / cols, 1.0),
        "cols": cols,
        "op": base,
        "dtype": target.dtype,
    }
    return machine.kernel_of_model("transformer", name, "elementwise", sizes)


def _measured_as(op: Op) -> str:
    """Return an op's name, with the suffix ``u`` if its other operand is a scalar."""
    has_scalar = len(op.inputs) == 1 and len(op.operands) > 1 and op.inputs[0].dense
    return f"{op.base.rstrip('_')}u" if has_scalar else op.base


def elementwise_time(op: Op, count: int, machine: Machine) -> float:
    """Return microseconds for ``count`` elements: distinct bytes at the reachable bandwidth.

    If the kernel does not process vectors, return at least the time of its accesses.
    """
    if machine.paper:
        name = op.base.rstrip("_")
        nbytes = 4 * (2 if name in PAPER_PAIRS else 3) * count
        return streaming(machine, nbytes, PAPER_FLOPS.get(name, 0) * count)
    read = {t.name: t for t in op.inputs}
    written = [*op.outputs, *(t for t in read.values() if t.name in op.written)]
    memory_time = streaming(machine, traffic(*read.values(), *written))
    accesses = [t for t in read.values() if t.device != "cpu"]
    return maximum(
        memory_time, unvectorized_time(accesses, written, count, machine) + machine.start
    )


def _masked_fill(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price a fill with a new result: torch copies the tensor, and fills the copy."""
    fill_kernels, source = pointwise(op, machine), next(iter(op.inputs), None)
    if fill_kernels is None or source is None or not op.outputs or machine.paper:
        return fill_kernels
    result = op.outputs[0]
    copy_kernel = device_copy if source.numel == result.numel else broadcast_copy
    return copy_kernel(source, result, machine), *fill_kernels


def _broadcasts(source: Tensor, target: Tensor) -> bool:
    pairs = zip(reversed(source.shape), reversed(target.shape), strict=False)
    return source.rank <= target.rank and all(a in (1, b) for a, b in pairs)


RULES: dict[str, Rule] = {
    **{f"aten.{name}": pointwise for name in POINTWISE},
    **{f"aten.{name}_": pointwise for name in POINTWISE},
    "aten.masked_fill": _masked_fill,
    **dict.fromkeys(("irgraph.bias_gelu", "irgraph.bias_gelu_backward"), _bias_gelu),
    **{f"irgraph.{name}": _one_pass for name in FUSED},
}

_UNARY: Mapping[str, Function] = {
    "add_scalar": lambda t, x: x + 1.5,
    "relu": lambda t, x: t.relu(x),
    "sigmoid": lambda t, x: t.sigmoid(x),
    "tanh": lambda t, x: t.tanh(x),
    "gelu": lambda t, x: t.nn.functional.gelu(x),
    "silu": lambda t, x: t.nn.functional.silu(x),
}
_DROPOUT: Mapping[str, Function] = {"dropout": lambda t, x: t.native_dropout(x, 0.5, True)[0]}


def _bench_binary(bench: Bench) -> Call:
    op, shape = bench.case.op, (bench["rows"], bench["cols"])
    first = bench.values(*shape)
    second = bench.values(bench["cols"]) if op == "add_row" else bench.values(*shape)
    if op == "add_":
        return lambda: first.add_(second, alpha=-0.1)
    return lambda: first * second if op == "mul" else first + second


SWEEPS = {
    "elementwise": Sweep(
        {
            **dict.fromkeys(("add", "mul"), _bench_binary),
            **forward(_UNARY),
            **dict.fromkeys(("add_row", "add_"), _bench_binary),
            **backward({name: _UNARY[name] for name in ("relu", "gelu", "tanh", "sigmoid")}),
        },
        MATRIX,
    ),
    "dropout": Sweep({**forward(_DROPOUT), **backward(_DROPOUT)}, MATRIX),
}

TENSORS = {
    "add": 3, "mul": 3, "div": 3, "pow": 3, "addu": 2, "mulu": 2, "powu": 2, "relu": 2, "tanh": 2
}  # fmt: skip
"""Tensors that each measured op reads and writes; the suffix ``u`` is a scalar operand."""

UNARY_OPS = tuple(op for op, tensors in TENSORS.items() if tensors == 2)
"""Measured ops with one tensor operand."""

BLOCK = 512
"""Elements that a thread block handles in torch's vectorised kernels: 128 threads of 4."""


def _inputs(sizes: Sizes, device: Hardware) -> Inputs:
    """Return inputs of float32 element-wise ops over contiguous tensors."""
    elements = sizes["rows"] * sizes["cols"]
    op = sizes["op"].astype(np.intp)
    tensors = _tensors(op)
    nbytes = 4 * elements * tensors
    base, common = roofline(elements, nbytes, device)
    waves = np.ceil(elements / np.float32(BLOCK)) / device.sms
    columns = [tensors, *common[1:], settling(waves), settling(waves / 64)]
    columns += [log2(np.ceil(waves / 8) * 8 / waves)]
    columns += multiples(sizes["rows"] % 4 * sizes["cols"], 4)
    columns += [(op == number).astype(np.float32) for number in range(len(TENSORS))]
    return Inputs(base, [*columns, device.dual], [], log2(nbytes), device.indicators)


def _tensors(op: NDArray[np.intp]) -> Floats:
    return np.asarray(list(TENSORS.values()), np.float32)[op]


def _query(arguments: Mapping[str, float | str]) -> Query | None:
    """Return an op of one tensor; others may broadcast, which has no measurements."""
    op, sizes = (
        str(arguments["op"]).rstrip("_"),
        {"rows": to_float(arguments["elements"]), "cols": 1.0},
    )
    return Query(op, sizes) if op in UNARY_OPS else None


LEARNED = LearnedFamily(
    "elementwise",
    tuple(TENSORS),
    ("rows", "cols"),
    _inputs,
    _query,
    Settings(steps=3000, batch=1024, architecture=Architecture(64)),
    # kilobytes, so that the fit is well conditioned
    linear_in_bytes(
        lambda data: data.sizes["rows"] * data.sizes["cols"] * _tensors(data.op) * 4e-3
    ),
)
