"""Operators that move data or return views."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F  # noqa: N812

from irgraph.capture.common.torch_object import Torch
from irgraph.capture.onnx.bind import Convert, Ints, Number, Operand, UnsupportedError
from irgraph.capture.onnx.operators.elementwise import as_int64


def identity(x: Torch) -> Torch:
    """``Identity``."""
    return x


def reshape(x: Torch, shape: Ints, *, allowzero: int = 0) -> Torch:
    """``Reshape``; a size of 0 is the original size, unless ``allowzero`` is set."""
    sizes = [x.shape[i] if n == 0 and not allowzero else n for i, n in enumerate(shape)]
    return x.reshape(sizes)


def flatten(x: Torch, *, axis: int = 1) -> Torch:
    """``Flatten`` to a matrix."""
    position = axis % x.ndim if axis < 0 else axis
    return x.reshape(math.prod(x.shape[:position]), math.prod(x.shape[position:]))


def squeeze(x: Torch, axes: Ints | None = None) -> Torch:
    """``Squeeze``."""
    return x.squeeze(tuple(axes) if axes else tuple(i for i, n in enumerate(x.shape) if n == 1))


def unsqueeze(x: Torch, axes: Ints) -> Torch:
    """``Unsqueeze``, by the axes of its result."""
    for axis in sorted(axis % (x.ndim + len(axes)) for axis in axes):
        x = x.unsqueeze(axis)
    return x


def transpose(x: Torch, *, perm: Ints = ()) -> Torch:
    """``Transpose``: a view."""
    return x.permute(tuple(perm) or tuple(reversed(range(x.ndim))))


def expand(x: Torch, shape: Ints) -> Torch:
    """``Expand``: a view."""
    return x.expand(torch.broadcast_shapes(x.shape, tuple(shape)))


def slice_(
    x: Torch, starts: Ints, ends: Ints, axes: Ints | None = None, steps: Ints | None = None
) -> Torch:
    """``Slice``: views, of a mirrored copy if a step is negative."""
    for i, (start, end) in enumerate(zip(starts, ends, strict=True)):
        axis = (axes[i] if axes is not None else i) % x.ndim
        step = steps[i] if steps is not None else 1
        first, last, _ = slice(start, end, step).indices(x.shape[axis])
        if step < 0:
            size = x.shape[axis]
            x, first, last = x.flip(axis), size - 1 - first, size - 1 - last
        x = torch.ops.aten.slice(x, axis, first, last, abs(step))
    return x


def split(
    x: Torch,
    split: Ints | None = None,
    *,
    axis: int = 0,
    num_outputs: int = 0,
    outputs: int,
) -> tuple[Torch, ...]:
    """``Split``: views."""
    if split is None:
        size = -(-x.shape[axis] // outputs)
        split = [size] * (outputs - 1) + [x.shape[axis] - size * (outputs - 1)]
    return tuple(torch.split(x, list(split), axis))


def gather(x: Torch, indices: Operand, *, axis: int = 0) -> Torch:
    """``Gather``: a row's view by a constant, a lookup in a table, or a copy along an axis."""
    axis %= x.ndim
    if not isinstance(indices, torch.Tensor):
        return x.select(axis, indices)
    if axis == 0 and x.ndim == 2:
        return F.embedding(indices, x)
    if indices.ndim == 1:
        return x.index_select(axis, indices)
    return x[(slice(None),) * axis + (as_int64(indices),)]


def gather_elements(x: Torch, indices: Torch, *, axis: int = 0) -> Torch:
    """``GatherElements``."""
    return torch.gather(x, axis, as_int64(indices))


def gather_nd(x: Torch, indices: Torch, *, batch_dims: int = 0) -> Torch:
    """``GatherND``."""
    leads = [
        torch.arange(n).view([-1] + [1] * (indices.ndim - 2 - i))
        for i, n in enumerate(x.shape[:batch_dims])
    ]
    return x[(*leads, *as_int64(indices).unbind(-1))]


_SCATTER = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


def scatter_elements(
    x: Torch, indices: Torch, updates: Torch, *, axis: int = 0, reduction: str = "none"
) -> Torch:
    """``ScatterElements`` and ``Scatter``."""
    if reduction == "none":
        return x.scatter(axis, as_int64(indices), updates)
    return x.scatter_reduce(axis, as_int64(indices), updates, _SCATTER[reduction])


def scatter_nd(x: Torch, indices: Torch, updates: Torch, *, reduction: str = "none") -> Torch:
    """``ScatterND`` that replaces or adds."""
    if reduction not in ("none", "add"):
        raise UnsupportedError(f"its attribute reduction = {reduction} is not supported")
    return x.index_put(as_int64(indices).unbind(-1), updates, accumulate=reduction == "add")


def concat(*xs: Torch, axis: int) -> Torch:
    """``Concat`` along one axis."""
    return torch.cat(xs, axis)


def pad(
    x: Torch, pads: Ints, value: Number = 0, axes: Ints | None = None, *, mode: str = "constant"
) -> Torch:
    """``Pad``; repeating and mirroring modes support as many axes as torch does."""
    count = len(pads) // 2
    places = [axis % x.ndim for axis in axes] if axes is not None else list(range(count))
    pads_by_axis = {axis: (pads[i], pads[i + count]) for i, axis in enumerate(places)}
    order = [n for axis in reversed(range(x.ndim)) for n in pads_by_axis.get(axis, (0, 0))]
    if mode == "constant":
        return F.pad(x, order, value=value)
    word = {"edge": "replicate", "wrap": "circular"}.get(mode, mode)
    while order[-2:] == [0, 0]:
        del order[-2:]
    return F.pad(x, order, mode=word)


def tile(x: Torch, repeats: Ints) -> Torch:
    """``Tile``."""
    return x.repeat(tuple(repeats))


def depth_to_space(x: Torch, *, blocksize: int, mode: str = "DCR") -> Torch:
    """``DepthToSpace``."""
    if mode == "CRD":
        return F.pixel_shuffle(x, blocksize)
    n, c, h, w = x.shape
    split = x.reshape(n, blocksize, blocksize, c // blocksize**2, h, w).permute(0, 3, 4, 1, 5, 2)
    return split.reshape(n, c // blocksize**2, h * blocksize, w * blocksize)


def space_to_depth(x: Torch, *, blocksize: int, mode: str = "DCR") -> Torch:
    """``SpaceToDepth``."""
    if mode == "CRD":
        return F.pixel_unshuffle(x, blocksize)
    n, c, h, w = x.shape
    split = x.reshape(n, c, h // blocksize, blocksize, w // blocksize, blocksize)
    return split.permute(0, 3, 5, 1, 2, 4).reshape(n, -1, h // blocksize, w // blocksize)


def one_hot(indices: Torch, depth: Number, values: Torch, *, axis: int = -1) -> Torch:
    """``OneHot`` between any two values."""
    axis %= indices.ndim + 1
    places = torch.arange(int(depth)).view([-1] + [1] * (indices.ndim - axis))
    wrapped = torch.where(indices < 0, indices + int(depth), indices)
    is_hot = wrapped.unsqueeze(axis) == places
    return torch.where(is_hot, values[1], values[0])


def tensor_scatter(
    x: Torch,
    update: Torch,
    write_indices: Ints | None = None,
    *,
    axis: int = -2,
    mode: str = "linear",
) -> Torch:
    """``TensorScatter`` that writes at the same index for the whole batch."""
    starts = {0} if write_indices is None else set(write_indices)
    if len(starts) > 1 or mode != "linear":
        raise UnsupportedError(f"its attribute mode = {mode} with several places is not supported")
    start, size = starts.pop(), update.shape[axis]
    return torch.slice_scatter(x, update, axis % x.ndim, start, start + size)


MOVEMENT: Mapping[str, Convert] = {
    "Identity": identity, "Reshape": reshape, "Flatten": flatten, "Squeeze": squeeze,
    "Unsqueeze": unsqueeze, "Transpose": transpose, "Expand": expand, "Slice": slice_,
    "Split": split, "Gather": gather, "GatherElements": gather_elements, "GatherND": gather_nd,
    "ScatterElements": scatter_elements, "Scatter": scatter_elements, "ScatterND": scatter_nd,
    "Concat": concat, "Pad": pad, "Tile": tile, "DepthToSpace": depth_to_space,
    "SpaceToDepth": space_to_depth, "OneHot": one_hot, "TensorScatter": tensor_scatter,
}  # fmt: skip
