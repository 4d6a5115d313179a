"""ONNX operators that are layers, move data, or only look at it otherwise: their ops in torch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from irgraph.capture.onnx.build import Site
from irgraph.capture.onnx.operators import Emit
from irgraph.ir.op import Value
from irgraph.ir.tensor import Tensor, row_major


def _strides(x: Tensor) -> tuple[int, ...]:
    return x.strides or row_major(x.shape)


def _pads(site: Site, kernel: Sequence[int], x: Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return padding before and behind each axis of the image."""
    rank = len(kernel)
    how = site.attribute("auto_pad", "NOTSET")
    if how in ("NOTSET", "VALID"):
        pads = site.attribute("pads", (0,) * 2 * rank) if how == "NOTSET" else (0,) * 2 * rank
        return tuple(pads[:rank]), tuple(pads[rank:])
    steps = site.attribute("strides", (1,) * rank)
    spread = site.attribute("dilations", (1,) * rank)
    whole = [
        max(0, (math.ceil(size / step) - 1) * step + (k - 1) * gap + 1 - size)
        for size, step, k, gap in zip(x.shape[2:], steps, kernel, spread, strict=True)
    ]
    less = tuple(n // 2 for n in whole)
    more = tuple(n - n // 2 for n in whole)
    return (less, more) if how == "SAME_UPPER" else (more, less)


def _padded(
    site: Site, x: Tensor, before: Sequence[int], behind: Sequence[int], value: float = 0.0
) -> tuple[Tensor, tuple[int, ...]]:
    """Return the image, padded where its two sides differ, and the padding that is left."""
    if tuple(before) == tuple(behind):
        return x, tuple(before)
    shape = (
        *x.shape[:2],
        *(n + a + b for n, a, b in zip(x.shape[2:], before, behind, strict=True)),
    )
    made = site.build.fresh("padded", x.dtype, shape)
    pad = tuple(n for a, b in reversed(list(zip(before, behind, strict=True))) for n in (a, b))
    said: dict[str, Value] = {"value": value} if value else {}
    site.emit("constant_pad_nd", (x,), (made,), pad=pad, **said)
    return made, (0,) * len(before)


def convolution(site: Site) -> None:
    """``Conv`` and ``ConvTranspose``."""
    x, weight, bias = site.input(0), site.input(1), site.optional(2)
    rank = x.rank - 2
    kernel = site.attribute("kernel_shape", weight.shape[2:])
    transposed = site.node.op == "ConvTranspose"
    before, behind = _pads(site, kernel, x)
    if transposed:
        padding = before
    else:
        x, padding = _padded(site, x, before, behind)
    said: dict[str, Value] = {} if bias is not None else {"bias": None}
    site.emit(
        "convolution",
        (x, weight) if bias is None else (x, weight, bias),
        (site.out(),),
        **said,
        stride=tuple(site.attribute("strides", (1,) * rank)),
        padding=padding,
        dilation=tuple(site.attribute("dilations", (1,) * rank)),
        transposed=transposed,
        output_padding=tuple(site.attribute("output_padding", (0,) * rank)),
        groups=int(site.attribute("group", 1)),
    )


def pool(site: Site) -> bool | None:
    """``MaxPool`` and ``AveragePool`` of images."""
    x = site.input(0)
    kernel = tuple(site.attribute("kernel_shape"))
    if len(kernel) != 2 or len(site.node.outputs) > 2:
        return False
    is_max = site.node.op == "MaxPool"
    before, behind = _pads(site, kernel, x)
    x, padding = _padded(site, x, before, behind, float("-inf") if is_max else 0.0)
    said: dict[str, Value] = {
        "kernel_size": kernel,
        "stride": tuple(site.attribute("strides", (1,) * 2)),
    }
    if any(padding):
        said["padding"] = padding
    if is_max and set(site.attribute("dilations", (1, 1))) != {1}:
        said["dilation"] = tuple(site.attribute("dilations"))
    if site.attribute("ceil_mode", 0):
        said["ceil_mode"] = True
    if not is_max and not site.attribute("count_include_pad", 0) and any(padding):
        said["count_include_pad"] = False
    made = site.out()
    if is_max:
        indices = site.build.fresh("indices", "i64", made.shape)
        site.emit("max_pool2d_with_indices", (x,), (made, indices), **said)
    else:
        site.emit("avg_pool2d", (x,), (made,), **said)
    return None


def global_pool(site: Site) -> None:
    """Pools whole images: a mean or maximum over their axes."""
    x = site.input(0)
    name = "mean" if site.node.op == "GlobalAveragePool" else "amax"
    site.emit(name, (x,), (site.out(),), dim=tuple(range(2, x.rank)), keepdim=True)


def batch_norm(site: Site) -> bool | None:
    """``BatchNormalization`` as in inference."""
    if site.attribute("training_mode", 0):
        return False
    operands = tuple(site.input(i) for i in range(5))
    empty = [site.build.fresh(word, "f32", (0,)) for word in ("saved_mean", "saved_invstd")]
    site.emit(
        "native_batch_norm", operands, (site.out(), *empty), training=False,
        momentum=round(1 - float(site.attribute("momentum", 0.9)), 6),
        eps=float(site.attribute("epsilon", 1e-5)),
    )  # fmt: skip
    return None


def layer_norm(site: Site) -> None:
    """``LayerNormalization`` and ``RMSNormalization`` over the last axes."""
    x = site.input(0)
    axis = int(site.attribute("axis", -1)) % x.rank
    outer = (*x.shape[:axis], *(1,) * (x.rank - axis))
    eps = float(site.attribute("epsilon", 1e-5))
    if site.node.op == "RMSNormalization":
        rstd = site.build.fresh("rstd", "f32", outer)
        site.emit(
            "_fused_rms_norm", (x,), (site.out(), rstd), normalized_shape=x.shape[axis:],
            weight=site.optional(1), eps=eps,
        )  # fmt: skip
        return
    results = [site.out()]
    for i, word in ((1, "mean"), (2, "rstd")):
        named = i < len(site.node.outputs) and site.node.outputs[i]
        results.append(site.out(i) if named else site.build.fresh(word, "f32", outer))
    site.emit(
        "native_layer_norm", (x,), results, normalized_shape=x.shape[axis:],
        weight=site.optional(1), bias=site.optional(2), eps=eps,
    )  # fmt: skip


def group_norm(site: Site) -> None:
    """``GroupNormalization`` and ``InstanceNormalization``."""
    x = site.input(0)
    groups = int(site.attribute("num_groups", x.shape[1]))
    stats = [site.build.fresh(word, "f32", (x.shape[0], groups)) for word in ("mean", "rstd")]
    site.emit(
        "native_group_norm", (x, site.input(1), site.input(2)), (site.out(), *stats),
        N=x.shape[0], C=x.shape[1], HxW=math.prod(x.shape[2:]), group=groups,
        eps=float(site.attribute("epsilon", 1e-5)),
    )  # fmt: skip


def attention(site: Site) -> bool | None:
    """``Attention`` (opset 23) of four-dimensional tensors, without a cache."""
    q, k, v = site.input(0), site.input(1), site.input(2)
    if q.rank != 4 or len([name for name in site.node.outputs if name]) > 1 or site.given(4):
        return False
    said: dict[str, Value] = {}
    if site.attribute("is_causal", 0):
        said["is_causal"] = True
    if site.attribute("scale") is not None:
        said["scale"] = float(site.attribute("scale"))
    mask = site.optional(3)
    operands = (q, k, v) if mask is None else (q, k, v, mask)
    site.emit("scaled_dot_product_attention", operands, (site.out(),), **said)
    return None


def same(site: Site) -> None:
    """What does nothing in inference."""
    site.hand_on(site.input(0))


def reshaped(site: Site) -> None:
    """``Reshape`` and the like: a view where the bytes lie in order, else a copy."""
    x, shape = site.input(0), site.shape()
    if shape == x.shape:
        site.hand_on(x)
    elif x.contiguous:
        site.emit("view", (x,), (site.view(x, shape),), size=shape)
    elif [n for n in shape if n != 1] == [n for n in x.shape if n != 1]:
        steps = iter([step for n, step in zip(x.shape, _strides(x), strict=True) if n != 1])
        strides = [1 if n == 1 else next(steps) for n in shape]
        site.emit("view", (x,), (site.view(x, shape, strides),), size=shape)
    else:
        site.emit("reshape", (x,), (site.out(),), shape=shape)


def transposed(site: Site) -> None:
    """``Transpose``: a view."""
    x = site.input(0)
    dims = tuple(site.attribute("perm", tuple(reversed(range(x.rank)))))
    steps = _strides(x)
    made = site.view(x, [x.shape[i] for i in dims], [steps[i] for i in dims])
    site.emit("permute", (x,), (made,), dims=dims)


def expanded(site: Site) -> None:
    """``Expand``: a view with steps of zero."""
    x, shape = site.input(0), site.shape()
    steps = (0,) * (len(shape) - x.rank) + tuple(
        0 if old != new else step
        for old, new, step in zip(x.shape, shape[len(shape) - x.rank :], _strides(x), strict=True)
    )
    site.emit("expand", (x,), (site.view(x, shape, steps),), size=shape)


def sliced(site: Site) -> bool | None:
    """``Slice`` by constants: a view for each axis."""
    x = site.input(0)
    starts, ends = site.list(1), site.list(2)
    if starts is None or ends is None:
        return False
    axes = site.list(3) or tuple(range(len(starts)))
    steps = site.list(4) or (1,) * len(starts)
    if min(steps) < 1:
        return False
    for i, (start, end, axis, step) in enumerate(zip(starts, ends, axes, steps, strict=True)):
        axis %= x.rank
        first, last, _ = slice(start, end, step).indices(x.shape[axis])
        size = max(0, -(-(last - first) // step))
        shape = (*x.shape[:axis], size, *x.shape[axis + 1 :])
        old = _strides(x)
        strides = (*old[:axis], old[axis] * step, *old[axis + 1 :])
        offset = first * old[axis]
        if i == len(starts) - 1:
            made = site.view(x, shape, strides, offset)
        else:
            made = site.build.view(x, "slice", shape, strides, offset)
        said: dict[str, Value] = {"step": step} if step != 1 else {}
        site.emit("slice", (x,), (made,), dim=axis, start=first, end=last, **said)
        x = made
    return None


def split(site: Site) -> None:
    """``Split``: views."""
    x = site.input(0)
    axis = int(site.attribute("axis", 0)) % x.rank
    steps, place, made, sizes = _strides(x), 0, [], []
    for i in range(len(site.node.outputs)):
        shape = site.shape(i)
        made.append(site.view(x, shape, steps, place * steps[axis], output=i))
        sizes.append(shape[axis])
        place += shape[axis]
    site.emit("split_with_sizes", (x,), (tuple(made),), split_sizes=tuple(sizes), dim=axis)


def gather(site: Site) -> None:
    """``Gather``: a row's view by a constant, a lookup in a table, or a copy along an axis."""
    x = site.input(0)
    axis = int(site.attribute("axis", 0)) % x.rank
    index = site.scalar(1)
    if index is not None and site.value(1).ndim == 0:
        steps, at = _strides(x), int(index) % x.shape[axis]
        shape = (*x.shape[:axis], *x.shape[axis + 1 :])
        left = (*steps[:axis], *steps[axis + 1 :])
        made = site.view(x, shape, left, at * steps[axis])
        site.emit("select", (x,), (made,), dim=axis, index=at)
    elif axis == 0 and x.rank == 2:
        site.emit("embedding", (x, site.input(1)), (site.out(),))
    else:
        site.emit("index_select", (x,), (site.out(),), dim=axis, index=site.input(1))


def gather_elements(site: Site) -> None:
    """``GatherElements``."""
    x = site.input(0)
    axis = int(site.attribute("axis", 0)) % x.rank
    site.emit("gather", (x,), (site.out(),), dim=axis, index=site.input(1))


def concat(site: Site) -> None:
    """``Concat`` along one axis."""
    parts = tuple(site.input(i) for i in range(len(site.node.inputs)))
    axis = int(site.attribute("axis")) % parts[0].rank
    said: dict[str, Value] = {"dim": axis} if axis else {}
    site.emit("cat", (parts,), (site.out(),), **said)


def pad(site: Site) -> bool | None:
    """``Pad`` by a constant."""
    x = site.input(0)
    pads = site.list(1)
    if pads is None or site.attribute("mode", "constant") != "constant":
        return False
    axes = site.list(3) or tuple(range(x.rank))
    both = {axis % x.rank: (pads[i], pads[i + len(axes)]) for i, axis in enumerate(axes)}
    order = [n for axis in reversed(range(x.rank)) for n in both.get(axis, (0, 0))]
    value = site.scalar(2)
    said: dict[str, Value] = {"value": value} if value else {}
    site.emit("constant_pad_nd", (x,), (site.out(),), pad=tuple(order), **said)
    return None


def tile(site: Site) -> bool | None:
    """``Tile`` by constants."""
    repeats = site.list(1)
    if repeats is None:
        return False
    site.emit("repeat", (site.input(0),), (site.out(),), repeats=repeats)
    return None


def filled(site: Site) -> None:
    """``ConstantOfShape``: a new tensor of one value."""
    made = site.out()
    value = site.attribute("value")
    number = 0.0
    if value is not None:
        from onnx import numpy_helper

        number = float(numpy_helper.to_array(value).reshape(-1)[0])
    site.emit("full", (), (made,), size=made.shape, fill_value=number)


def resized(site: Site) -> bool | None:
    """``Resize`` of images, to the nearest or linearly."""
    x, shape = site.input(0), site.shape()
    how = site.attribute("mode", "nearest")
    if x.rank != 4 or x.shape[:2] != shape[:2] or how not in ("nearest", "linear"):
        return False
    name = "upsample_nearest2d" if how == "nearest" else "upsample_bilinear2d"
    said: dict[str, Value] = {"output_size": shape[2:]}
    if how == "linear":
        corners = site.attribute("coordinate_transformation_mode", "") == "align_corners"
        said["align_corners"] = corners
    site.emit(name, (x,), (site.out(),), **said)
    return None


LAYERS: Mapping[str, Emit] = {
    "Conv": convolution, "ConvTranspose": convolution, "MaxPool": pool, "AveragePool": pool,
    "GlobalAveragePool": global_pool, "GlobalMaxPool": global_pool,
    "BatchNormalization": batch_norm, "LayerNormalization": layer_norm,
    "RMSNormalization": layer_norm, "GroupNormalization": group_norm,
    "InstanceNormalization": group_norm, "Attention": attention,
    "Identity": same, "Dropout": same, "Reshape": reshaped, "Flatten": reshaped,
    "Squeeze": reshaped, "Unsqueeze": reshaped, "Transpose": transposed, "Expand": expanded,
    "Slice": sliced, "Split": split, "Gather": gather, "GatherElements": gather_elements,
    "Concat": concat, "Pad": pad, "Tile": tile, "ConstantOfShape": filled, "Resize": resized,
}  # fmt: skip
"""What adds the ops of each operator."""
