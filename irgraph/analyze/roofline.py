"""Roofline of measured steps: device work by the calls that launched it, with their shapes."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np
from msgspec.structs import replace

from irgraph.capture.kineto.events.host import operand_shapes
from irgraph.capture.kineto.events.tree import EVALUATE, Tree, innermost_chosen
from irgraph.capture.kineto.reading.trace import (
    EventKind,
    KinetoTrace,
    operands,
    recorded_values,
    stride_lists,
)
from irgraph.ir.dtypes import FROM_CPP
from irgraph.ir.op import Op, Value
from irgraph.ir.schema import Schema, schemas_of
from irgraph.ir.tensor import Tensor
from irgraph.ops.flops import flops, is_product
from irgraph.ops.shapes import broadcast
from irgraph.ops.traffic import has_pointwise_form, traffic
from irgraph.replay.replay import select_typical_steps
from irgraph.report.roofline import CallWork

US = 1000
NO_OPERATOR = "(no operator)"

TF32 = re.compile(r"tf32|tensorop_s1688|_s1688", re.IGNORECASE)
"""Pattern of names of kernels that multiply float32 in tf32, as spelt by CUTLASS and cuDNN."""

_HOST_COPY = re.compile(r"HtoD|DtoH|HostToDevice|DeviceToHost|Host -> Device|Device -> Host", re.I)
_DEVICE_COPY = re.compile(r"DtoD|DeviceToDevice|Device -> Device", re.I)
_SAME_TYPE_OPS = (
    "softmax",
    "batch_norm",
    "layer_norm",
    "group_norm",
    "rms_norm",
    "dropout",
    "clone",
)
"""Ops whose first result has the type of their first operand; their other results are small."""

_CONVOLUTIONS = frozenset(("conv1d", "conv2d", "conv3d"))
"""Composite convolutions: their arguments without ``transposed`` and ``output_padding``."""

CONVOLUTION_ARGUMENTS = 7
"""Number of their arguments: input, weight, bias, stride, padding, dilation, groups."""

_BOOLEAN_OPS = frozenset((
    "eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_not", "isnan", "isinf"
))  # fmt: skip
"""Ops whose result has the type ``bool``, unlike their operands."""

Grads = Mapping[int, tuple[int, ...]]
"""Shape of the gradient passed to the autograd node of a sequence number, equal to the shape of the
forward call's result."""


def works_of(trees: Sequence[Tree]) -> tuple[list[CallWork], int]:
    """Return the calls with device work in the typical steps of traces, and the number of steps."""
    works: list[CallWork] = []
    steps = 0
    for tree in trees:
        typical_steps = select_typical_steps(tree)
        steps += len(typical_steps)
        step_indices = [i for i, step in enumerate(tree.steps) if step in typical_steps]
        works += _TraceCalls(tree).works(step_indices)
    return works, steps


class _TraceCalls:
    """Calls of one trace as ops; equal calls are converted once."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.grads = _gradients(tree)
        self.op_by_key: dict[tuple[Any, ...], tuple[Op, int | None, int | None]] = {}

    def works(self, steps: Sequence[int]) -> list[CallWork]:
        """Return the calls with device work in the steps with these indices."""
        tree = self.tree
        rows = np.flatnonzero(tree.trace.on_device & np.isin(tree.step, steps))
        owner = _owners(tree)
        rows_by_call: dict[int, list[int]] = defaultdict(list)
        for row in rows.tolist():
            op = int(tree.op[row])
            product = int(owner[op]) if op >= 0 else -1
            rows_by_call[product if product >= 0 else op if op >= 0 else ~row].append(row)
        return [self._work(call, work) for call, work in rows_by_call.items()]

    def _work(self, call: int, rows: Sequence[int]) -> CallWork:
        trace = self.tree.trace
        duration, kinds = trace.columns["duration"], trace.columns["kind"]
        kernels = tuple((trace.text(row), float(duration[row]) / US) for row in rows)
        link = all(kinds[r] == EventKind.MEMCPY and _HOST_COPY.search(trace.text(r)) for r in rows)
        if call < 0:
            copied = _copied_bytes(trace, rows)
            return CallWork(NO_OPERATOR, "", "", kernels, nbytes=copied, over_link=link)
        op, flop, nbytes = self._op(call)
        copied = _copied_bytes(trace, rows)
        nbytes = nbytes if copied is None else copied
        dtype = op.inputs[0].dtype if op.inputs else ""
        if dtype == "f32" and any(TF32.search(name) for name, _ in kernels):
            dtype = "tf32"
        shape = operand_shapes(*trace.shapes[int(trace.columns["shape"][call])])
        name = trace.text(call)
        if flop is not None:
            shape = _with_layouts(shape, trace.strides[int(trace.columns["strides"][call])])
        return CallWork(name, shape, dtype, kernels, flop, nbytes, link)

    def _op(self, row: int) -> tuple[Op, int | None, int | None]:
        """Return a call as an op, its operations and its bytes; cached by name and shapes."""
        trace = self.tree.trace
        columns = trace.columns
        grad = self.grads.get(int(columns["sequence"][row]))
        above = int(columns["shape"][self.tree.parent[row]]) if self.tree.parent[row] >= 0 else 0
        concrete = int(columns["concrete"][row])
        key = (int(columns["name"][row]), int(columns["shape"][row]), concrete, above, grad)
        if key not in self.op_by_key:
            values = recorded_values(trace.concretes[concrete])
            shapes = trace.shapes[key[1]], trace.shapes[above]
            op = _as_op(trace.text(row), *shapes, grad, values)
            flop = flops(op) if is_product(op.name) else None
            self.op_by_key[key] = op, flop, traffic(op)
        return self.op_by_key[key]


def _with_layouts(shapes: str, strides: bytes) -> str:
    """Return operand shapes with ``T`` after each transposed matrix, by the recorded strides.

    The last two axes of such an operand are swapped in memory. Other layouts than contiguous ones
    are followed by their strides.
    """
    texts, recorded = shapes.split(" "), [s for s in stride_lists(strides) if s]
    if len(texts) != len(recorded):
        return shapes
    return " ".join(map(_with_layout, texts, recorded))


def _with_layout(text: str, strides: Sequence[int]) -> str:
    sizes = [int(n) for n in re.findall(r"\d+", text.partition("[")[2])]
    if len(sizes) != len(strides) or _is_contiguous(sizes, strides):
        return text
    is_matrix = len(sizes) > 1
    swapped = ([*v[:-2], v[-1], v[-2]] for v in (sizes, strides) if is_matrix)
    if is_matrix and _is_contiguous(*swapped):
        return f"{text}T"
    return f"{text}:({','.join(map(str, strides))})"


def _is_contiguous(sizes: Sequence[int], strides: Sequence[int]) -> bool:
    expected = 1
    for size, stride in zip(reversed(sizes), reversed(strides), strict=True):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def _owners(tree: Tree) -> Any:  # noqa: ANN401  (an array)
    """Return the innermost product around each event that contains no other product, else -1."""
    names = [is_product(name.replace("::", ".")) for name in tree.trace.names]
    products = np.array(names, bool)[tree.trace.columns["name"]]
    products &= tree.trace.columns["kind"] == EventKind.OP
    rows = np.flatnonzero(products & (tree.parent >= 0))
    around = innermost_chosen(tree.parent, products)[tree.parent[rows]]
    products[around[around >= 0]] = False
    return innermost_chosen(tree.parent, products)


def _gradients(tree: Tree) -> Grads:
    """Return the result shape of the call with each sequence number, from its gradient."""
    trace = tree.trace
    sequence, shape = trace.columns["sequence"], trace.columns["shape"]
    rows = np.array(list(tree.forward_of), "i8")
    gradients: dict[int, tuple[int, ...]] = {}
    for row in rows[shape[rows] > 0].tolist() if len(rows) else ():
        if not trace.text(row).startswith((EVALUATE, "aten::")):
            first = next(_operands(*trace.shapes[int(shape[row])]), None)
            if isinstance(first, Tensor):
                gradients.setdefault(int(sequence[row]), first.shape)
    return gradients


def _copied_bytes(trace: KinetoTrace, rows: Sequence[int]) -> int | None:
    """Return the bytes that copies and fills move as recorded, ``None`` if other work is there.

    A copy within a device's memory reads and writes them.
    """
    total = 0
    for row in rows:
        nbytes = int(trace.columns["nbytes"][row])
        if trace.columns["kind"][row] not in (EventKind.MEMCPY, EventKind.MEMSET) or nbytes < 0:
            return None
        total += nbytes * (2 if _DEVICE_COPY.search(trace.text(row)) else 1)
    return total


def _operands(dims: bytes, types: bytes, values: Sequence[Value] = ()) -> Iterator[Value]:
    """Yield a call's arguments by position: tensors of a known type, and recorded ``values``.

    Lists of tensors are yielded as ``"unknown"``, all other arguments as ``None``.
    """
    shapes, kinds = operands(dims, types) or ((), ())
    pairs = zip_longest(shapes, kinds[: len(shapes)] if shapes else kinds)
    for place, (shape, kind) in enumerate(pairs):
        sizes: list[Any] = shape if isinstance(shape, list) else [None]
        if kind in FROM_CPP and all(type(size) is int and size >= 0 for size in sizes):
            yield Tensor(str(place), FROM_CPP[kind], tuple(sizes), "b")
        else:
            value = values[place] if place < len(values) else None
            yield "unknown" if sizes and isinstance(sizes[0], list) else value


def _as_op(
    name: str,
    shape: tuple[bytes, bytes],
    above: tuple[bytes, bytes],
    grad: tuple[int, ...] | None,
    values: Sequence[Value] = (),
) -> Op:
    """Return a call as an op: operands by position, and results if they can be inferred.

    Args:
        name: of the event.
        shape: dims and types of its operands.
        above: dims and types of the operands of the call around it.
        grad: shape of the gradient of its result, if autograd passed one.
        values: its arguments that are no tensors, by position.
    """
    op = _plain_convolution(Op(name.replace("::", "."), tuple(_operands(*shape, values))))
    if "unknown" in op.operands or not op.inputs:
        return op
    schemas = schemas_of(op.name)
    fitting = next((s.arguments for s in schemas if _fits(s, op)), ())
    tensors = [(a, t) for a, t in zip(fitting, op.operands, strict=False) if isinstance(t, Tensor)]
    results = tuple(tensor for argument, tensor in tensors if argument.written and argument.keyword)
    written = {t.name for a, t in tensors if a.written and not a.keyword}
    if not fitting and op.base.endswith("_"):
        written = {op.inputs[0].name}
    if results or written:
        operands = tuple(value for value in op.operands if value not in results)
        return replace(op, operands=operands, results=results, written=frozenset(written))
    result_type = _result(op, tuple(_operands(*above)), grad)
    return (
        replace(op, results=(Tensor("made", *result_type, "r"),)) if result_type is not None else op
    )


def _fits(schema: Schema, op: Op) -> bool:
    """Return whether an overload has the call's number of arguments, and all its tensors."""
    pairs = zip(schema.arguments, op.operands, strict=False)
    right = all(argument.is_tensor or not isinstance(value, Tensor) for argument, value in pairs)
    return right and len(schema.arguments) == len(op.operands)


def _result(
    op: Op, above: Sequence[Value], grad: tuple[int, ...] | None
) -> tuple[str, tuple[int, ...]] | None:
    """Return the inferred type and shape of a call's result, ``None`` if unknown."""
    tensors = op.inputs
    dtype, shapes = tensors[0].dtype, [tensor.shape for tensor in tensors]
    if op.base == "cudnn_convolution_backward_weight":
        weight = above[2] if len(above) > 2 else None
        return (dtype, weight.shape) if isinstance(weight, Tensor) else None
    if op.base == "cudnn_convolution_backward_input":
        layer_input = above[0] if above else None
        return (dtype, layer_input.shape) if isinstance(layer_input, Tensor) else None
    if "convolution" in op.base:
        if grad is None and "backward" not in op.base:
            grad = _convolved(op)
        return (dtype, grad) if grad is not None and _fits_convolution(shapes, grad) else None
    if is_product(op.name):
        product = _product(op)
        return None if product is None else (dtype, product)
    if any(word in op.base for word in _SAME_TYPE_OPS):
        return dtype, shapes[0]
    shape = broadcast(shapes) if has_pointwise_form(op.name) else None
    kind = "bool" if op.base in _BOOLEAN_OPS else dtype
    return None if shape is None else (kind, shape)


def _plain_convolution(op: Op) -> Op:
    """Return a composite convolution as the ``aten.convolution`` that it calls, or the op."""
    if op.base not in _CONVOLUTIONS or len(op.operands) != CONVOLUTION_ARGUMENTS:
        return op
    *first, groups = op.operands
    return replace(op, name="aten.convolution", operands=(*first, False, (0,), groups))


def _convolved(op: Op) -> tuple[int, ...] | None:
    """Return the shape of a convolution's result by its recorded arguments, ``None`` if unknown."""
    schema = next((s for s in schemas_of(op.name) if _fits(s, op)), None)
    if schema is None or len(op.inputs) < 2:
        return None
    arguments = {a.name: v for a, v in zip(schema.arguments, op.operands, strict=True)}
    x, weight = op.inputs[:2]
    windows = weight.shape[2:]
    stride, padding, dilation = (
        _per_axis(arguments.get(name), len(windows)) for name in ("stride", "padding", "dilation")
    )
    is_plain = not arguments.get("transposed") and "transpose" not in op.base
    if not (is_plain and stride and padding and dilation) or len(x.shape) != len(weight.shape):
        return None
    axes = zip(x.shape[2:], windows, stride, padding, dilation, strict=True)
    sizes = tuple((size + 2 * p - d * (w - 1) - 1) // s + 1 for size, w, s, p, d in axes)
    return (x.shape[0], weight.shape[0], *sizes) if min(sizes, default=0) > 0 else None


def _per_axis(value: Value, axes: int) -> tuple[int, ...] | None:
    """Return an argument of a convolution for each axis, ``None`` if it was not recorded."""
    numbers = value if isinstance(value, tuple) else (value,)
    if not all(isinstance(n, int) and n >= 0 for n in numbers) or len(numbers) not in (1, axes):
        return None
    sizes: tuple[int, ...] = tuple(int(n) for n in numbers if isinstance(n, int))
    return sizes if len(sizes) == axes else sizes * axes


def _fits_convolution(shapes: Sequence[tuple[int, ...]], result: tuple[int, ...]) -> bool:
    """Return whether a shape may be the result of a convolution: batch and channels fit."""
    if len(shapes) < 2 or not len(shapes[0]) == len(shapes[1]) == len(result) > 2:
        return False
    x, weight = shapes[:2]
    return result[0] == x[0] and result[1] == weight[0] and x[1] % max(weight[1], 1) == 0


def _product(op: Op) -> tuple[int, ...] | None:
    """Return the shape of a product of matrices or of attention."""
    if "attention" in op.base:
        return op.inputs[0].shape if not op.base.endswith("backward") else None
    schema = next(iter(schemas_of(op.name)), None)
    names = [a.name for a in schema.arguments] if schema else []
    if "weight" in names:
        return (*op.inputs[0].shape[:-1], op.inputs[1].shape[0]) if len(op.inputs) > 1 else None
    first, second = op.inputs[-2:] if len(op.inputs) > 1 else (None, None)
    if first is None or second is None or len(second.shape) < 2:
        return None
    return (*first.shape[:-1], second.shape[-1])
