"""Forms of calls: the flags that choose a call's kernel, and the numbers on which its time depends.

Calls of one form run the same kernels at other sizes. A form depends on the axes of a tensor only
as far as its kernel does: dense element-wise operands count as one axis, and so do neighbouring
axes of a reduction that are all summed, or all kept.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

from msgspec import Struct

from costmodels.families.elementwise import POINTWISE
from costmodels.formulas.machine import Machine
from costmodels.lookups.popularity import Zipf
from irgraph.ir.op import Op, Value
from irgraph.ir.tensor import Tensor, row_major
from irgraph.ir.tf32 import FIRST_FACTORS
from irgraph.ops.book import names_with
from irgraph.ops.operator import Trait

Number: TypeAlias = Any
"""A size: an ``int``, or its values at many points."""

MAX_TENSORS = 3
"""Number of operands whose sides are numbers of a form; a list counts by its first tensor."""

FLAGS = (
    "mode", "sparse", "is_causal", "transposed", "stride", "dilation", "kernel_size",
    "per_sample_weights",
)  # fmt: skip
"""Attributes that choose a kernel."""

UNSET = (None, False, 0, ())
"""Values of flags that choose no other kernel."""

BAG = "embedding_bag"
"""Name of all lookups of bags: with and without gradients, they run one kernel."""

COPY = "copy"
"""Name of all calls that run the kernel that copies elements."""

ROW_OPS = (
    "_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data", "sum",
    "mean", "max", "min", "amax", "cumsum", "sort", "topk", "native_layer_norm",
    "native_layer_norm_backward", "native_batch_norm", "native_batch_norm_backward",
)  # fmt: skip
"""Ops that combine the elements along some axes."""

WINDOWS = ("convolution", "pool", "upsample")
"""Parts of the names of ops that slide windows over images."""


class CallForm(Struct, frozen=True):
    """The form of a call.

    Attributes:
        words: the properties that choose its kernel: name, types, layouts and flags, in order.
        sizes: the numbers on which its time depends, in the order of ``words``' kind.
        product: batch, rows, columns and depth of its matrix product, if it is one.
    """

    words: tuple[str, ...]
    sizes: tuple[Number, ...]
    product: tuple[Number, Number, Number, Number] | None = None

    @property
    def key(self) -> str:
        """The words as one text."""
        return " ".join(self.words)


def call_form(op: Op, machine: Machine) -> CallForm | None:
    """Return the form of a call, ``None`` if it has no tensors."""
    base = op.base
    tensors = _leading_tensors(op)
    if not tensors:
        return None
    if base in FIRST_FACTORS:
        return _product_form(op, machine)
    if any(word in base for word in WINDOWS):
        return _window_form(op, tensors, machine)
    if base in ROW_OPS:
        return _row_form(op, tensors)
    if base.startswith("_scaled_dot_product"):
        return _attention_form(op, tensors)
    if op.name in names_with(Trait.COPY_KERNEL):
        return _copy_form(op, tensors, machine)
    if base.rstrip("_") in POINTWISE and len(op.inputs) <= MAX_TENSORS:
        return _pointwise_form(op, tensors)
    return _table_form(op, tensors, machine)


def _leading_tensors(op: Op) -> list[Tensor]:
    """Return the first tensors among an op's operands, and its first result."""
    leading = [v[0] if isinstance(v, tuple) and v else v for v in op.operands]
    tensors = [t for t in leading if isinstance(t, Tensor)][:MAX_TENSORS]
    return [*tensors, *op.outputs[:1]]


def _name(op: Op) -> str:
    if op.name in names_with(Trait.BAGS):
        return BAG
    return COPY if op.name in names_with(Trait.COPY_KERNEL) else op.base


def _flags(op: Op) -> list[str]:
    """Return the attributes that choose a kernel, as texts."""
    pairs = ((name, op.attributes.get(name)) for name in FLAGS)
    return [f"{name}={_flag_text(value)}" for name, value in pairs if value not in UNSET]


def _flag_text(value: Value) -> str:
    """Return the text of a flag; equal numbers of all axes count as one."""
    if isinstance(value, Tensor):
        return value.dtype
    if isinstance(value, tuple) and value:
        return str(value[0]) if len(set(value)) == 1 else str(value)
    return str(value)


def _types(tensors: Sequence[Tensor]) -> str:
    return ">".join(dict.fromkeys(t.dtype for t in tensors))


# ---------------------------------------------------------------------------------- products


def _letter(tensor: Tensor) -> str:
    """Return ``n`` for rows in order, ``t`` for columns in order, ``x`` for other layouts."""
    if tensor.contiguous:
        return "n"
    strides = tensor.strides or ()
    if len(strides) < 2 or 1 not in strides[-2:]:
        return "x"
    return "n" if strides[-1] == 1 else "t"


def _product_form(op: Op, machine: Machine) -> CallForm | None:
    start = FIRST_FACTORS[op.base]
    pair = op.operands[start : start + 2]
    if len(pair) < 2 or not all(isinstance(t, Tensor) and t.rank >= 2 for t in pair):
        return None
    first, second = (t for t in pair if isinstance(t, Tensor))
    depth = first.shape[-1]
    if op.base == "linear":
        batch, rows, columns = 1, first.numel // max(depth, 1), second.shape[0]
        letters = f"{'n' if _letter(second) == 't' else 't'}{_letter(first)}"
    else:
        batch = first.shape[0] if first.rank == 3 else 1
        rows, columns = first.shape[-2], second.shape[-1]
        letters = f"{_letter(second)}{_letter(first)}"
    addend = op.operands[0] if start else None
    added = isinstance(addend, Tensor) and addend.rank == first.rank
    dtype = "tf32" if first.dtype == "f32" and machine.sheet.tf32 else first.dtype
    words = ["product", dtype, letters, "batched" if first.rank == 3 else "single"]
    words += ["added"] if added else []
    return CallForm(tuple(words), (batch, rows, columns, depth), (batch, rows, columns, depth))


# ----------------------------------------------------------------------------------- windows


def _window_form(op: Op, tensors: Sequence[Tensor], machine: Machine) -> CallForm | None:
    images = [t for t in tensors if t.rank >= 3]
    if len(images) < 2:
        return None
    data, result = images[0], images[-1]
    backward = op.base.endswith("backward")
    dtype = data.dtype
    words = [op.base, dtype, f"{data.rank}d", _image_layout(data), *_flags(op)]
    if "convolution" not in op.base:
        channels = (data.shape[0], data.shape[1])
        return CallForm(tuple(words), (*channels, *_image(data), *_image(result)))
    weight = images[2] if backward and len(images) > 2 else images[1]
    if backward:
        data, result = images[1], images[0]
        words.append(f"gradients={op.attributes.get('output_mask')}")
    if dtype == "f32":
        words[1] = machine.sheet.convolution_dtype
    groups = op.attributes.get("groups", 1)
    groups = groups if isinstance(groups, int) else 1
    words.append("dense" if groups == 1 else "depthwise" if weight.shape[1] == 1 else "grouped")
    outer, inner = result.shape[1] // groups, data.shape[1] // groups
    window = math.prod(weight.shape[2:])
    pixels = math.prod(result.shape[2:]) * data.shape[0]
    words.append("point" if window == 1 else "window")
    image = (data.shape[0], data.shape[1], result.shape[1], result.shape[-1])
    sizes = (*image, window, groups, inner, outer, pixels)
    return CallForm(tuple(words), sizes, (groups, pixels, outer, inner * window))


def _image_layout(image: Tensor) -> str:
    if image.contiguous:
        return "first"
    return "last" if image.dense and image.strides and image.strides[1] == 1 else "strided"


def _image(image: Tensor) -> tuple[Number, Number]:
    """Return the rows and the columns of an image."""
    return math.prod(image.shape[2:-1]), image.shape[-1]


# -------------------------------------------------------------------------------------- rows


def _row_form(op: Op, tensors: Sequence[Tensor]) -> CallForm:
    """Return the form of an op that combines axes; neighbours of one kind are merged."""
    data = tensors[0]
    combined = _combined_axes(op, data)
    letters = ""
    sizes: list[Number] = []
    for axis, size in enumerate(data.shape):
        letter = "r" if axis in combined else "k"
        if letters.endswith(letter):
            sizes[-1] = sizes[-1] * size
        else:
            letters, sizes = letters + letter, [*sizes, size]
    others = [t for t in tensors[:-1] if t.shape == data.shape]
    layout = "dense" if all(t.contiguous for t in (data, *others)) else "strided"
    words = (op.base, data.dtype, letters, layout)
    return CallForm(words, (*sizes, data.numel, len(op.inputs)))


def _combined_axes(op: Op, data: Tensor) -> set[int]:
    """Return the axes that an op combines."""
    if "batch_norm" in op.base:
        return set(range(data.rank)) - {1}
    shape = op.attributes.get("normalized_shape")
    if isinstance(shape, tuple):
        return set(range(data.rank - len(shape), data.rank))
    axes = op.attributes.get("dim", -1 if op.base in ("sort", "topk") else None)
    if axes is None or axes == ():
        return set(range(data.rank))
    pair = axes if isinstance(axes, tuple) else (axes,)
    return {axis % max(data.rank, 1) for axis in pair if isinstance(axis, int)}


def _attention_form(op: Op, tensors: Sequence[Tensor]) -> CallForm | None:
    heads = [t for t in tensors if t.rank == 4]
    if len(heads) < 3:
        return None
    query, key = heads[0], heads[1]
    if op.base.endswith("backward"):
        query, key = heads[1], heads[2]
    batch, count, length, width = query.shape
    words = (op.base, query.dtype, *_flags(op))
    queries_per_key, keys = count / max(key.shape[1], 1), key.shape[-2]
    sizes = (batch, count, length, width, keys, queries_per_key)
    return CallForm(words, sizes, (batch * count, length, keys, width))


# ------------------------------------------------------------------------------ element-wise


def _copy_form(op: Op, tensors: Sequence[Tensor], machine: Machine) -> CallForm:
    source, result = tensors[-1 if op.base == "copy_" and len(tensors) < 2 else 0], tensors[-1]
    if op.base == "copy_" and len(tensors) > 1:
        source, result = tensors[1], tensors[0]
    ends = [("host" if t.device == "cpu" else "device") for t in (source, result)]
    pinned = "pinned" if "host" in ends and machine.pinned else "plain"
    words = ("copy", f"{source.dtype}>{result.dtype}", ">".join(ends), pinned)
    same = source.strides == result.strides or (source.contiguous and result.contiguous)
    if same and source.dense:
        return CallForm((*words, "dense"), (source.numel,))
    order, sizes = _order(source)
    return CallForm((*words, order if result.contiguous else "strided"), (*sizes, source.numel))


def _order(tensor: Tensor) -> tuple[str, tuple[Number, ...]]:
    """Return the order of a tensor's axes in memory, and their sizes; axes in sequence are one."""
    strides = row_major(tensor.shape) if tensor.strides is None else tensor.strides
    if not tensor.dense:
        return "strided", (tensor.numel,)
    axes = [axis for axis, size in enumerate(tensor.shape) if size != 1]
    order = sorted(axes, key=lambda axis: -strides[axis])
    groups: list[list[int]] = []
    for axis in axes:
        follows = groups and order.index(axis) == order.index(groups[-1][-1]) + 1
        groups = [*groups[:-1], [*groups[-1], axis]] if follows else [*groups, [axis]]
    ranks = sorted(range(len(groups)), key=lambda group: order.index(groups[group][0]))
    text = "".join(str(ranks.index(group)) for group in range(len(groups)))
    return text, tuple(math.prod(tensor.shape[axis] for axis in group) for group in groups)


def _pointwise_form(op: Op, tensors: Sequence[Tensor]) -> CallForm:
    largest = tensors[-1] if op.outputs else tensors[0]
    operands = [t for t in (*op.inputs, *op.outputs) if t.rank]
    words = [op.base, _types(operands), str(len(op.inputs))]
    same = [t for t in operands if t.shape == largest.shape]
    if len(same) < len(operands):
        return _broadcast_form(words, operands, largest)
    layouts = {None if t.contiguous else t.strides for t in same}
    is_dense = len(layouts) == 1 and all(t.dense for t in same)
    return CallForm((*words, "dense" if is_dense else "strided"), (largest.numel,))


def _broadcast_form(words: list[str], operands: Sequence[Tensor], largest: Tensor) -> CallForm:
    """Return the form of operands of which some repeat."""
    smaller = [t for t in operands if t.shape != largest.shape]
    suffix = all(t.rank <= 1 for t in smaller) and all(t.contiguous for t in operands)
    words = [*words, "row" if suffix else "broadcast"]
    return CallForm(tuple(words), (largest.numel, smaller[0].numel))


# ------------------------------------------------------------------------------------ others


def _table_form(op: Op, tensors: Sequence[Tensor], machine: Machine) -> CallForm:
    """Return the form of any other op: the sides of its first tensors, and their number."""
    sizes: list[Number] = []
    for tensor in tensors:
        last = tensor.shape[-1] if tensor.rank else 1
        sizes += [tensor.numel // max(last, 1), last]
    layout = "dense" if all(t.contiguous for t in op.inputs) else "strided"
    words = (_name(op), tensors[0].dtype, layout, str(len(tensors)), *_flags(op))
    total = sum(t.numel for t in op.inputs)
    exponent = _exponent(op, tensors, machine)
    return CallForm(words, (*sizes, len(op.inputs), total, 1 + exponent))


def _exponent(op: Op, tensors: Sequence[Tensor], machine: Machine) -> float:
    """Return the Zipf exponent of a table's lookups, 0 if they are uniform."""
    indices = next((t for t in op.inputs if t.dtype in ("i64", "i32")), None)
    if indices is None or not tensors[0].rank:
        return 0.0
    rows = op.attributes.get("num_weights", tensors[0].shape[0])
    law = machine.indices.distribution_of(indices, rows if isinstance(rows, int) else 0)
    return law.exponent if isinstance(law, Zipf) else 0.0
