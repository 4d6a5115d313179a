"""Sliding windows over images, and the operators that pool their elements."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F  # noqa: N812
from msgspec import Struct

from irgraph.capture.common.torch_object import Torch
from irgraph.capture.onnx.bind import Convert, Ints, UnsupportedError


class Window(Struct, frozen=True):
    """A sliding window over an image; ``before`` and ``after`` are the padding of each axis."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]

    @property
    def rank(self) -> int:
        """Return the number of axes of the image."""
        return len(self.kernel)

    @classmethod
    def from_attributes(
        cls,
        x: Torch,
        kernel: Sequence[int],
        strides: Ints,
        dilations: Ints,
        pads: Ints,
        auto_pad: str,
    ) -> Window:
        """Return the window that an operator's attributes describe."""
        rank = len(kernel)
        steps, gaps = tuple(strides) or (1,) * rank, tuple(dilations) or (1,) * rank
        pads = tuple(pads) or (0,) * 2 * rank
        if not auto_pad.startswith("SAME"):
            return cls(tuple(kernel), steps, gaps, pads[:rank], pads[rank:])
        total = [
            max(0, (math.ceil(size / step) - 1) * step + (k - 1) * gap + 1 - size)
            for size, step, k, gap in zip(x.shape[2:], steps, kernel, gaps, strict=True)
        ]
        smaller, larger = tuple(n // 2 for n in total), tuple(n - n // 2 for n in total)
        ends = (smaller, larger) if auto_pad == "SAME_UPPER" else (larger, smaller)
        return cls(tuple(kernel), steps, gaps, *ends)


def pad_image(
    x: Torch, window: Window, value: float = 0.0, *, pool: bool = True
) -> tuple[Torch, tuple[int, ...]]:
    """Return the image, padded if its ends differ, and the remaining padding.

    Torch pads windows of pools by at most half of their size.
    """
    small = all(2 * a <= k for a, k in zip(window.before, window.kernel, strict=True))
    if window.before == window.after and (small or not pool):
        return x, window.before
    ends = list(zip(window.before, window.after, strict=True))
    padded_image = F.pad(x, [n for pair in reversed(ends) for n in pair], value=value)
    return padded_image, (0,) * window.rank


_MAX = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
_AVERAGE = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}


def max_pool(
    x: Torch,
    *,
    kernel_shape: Ints,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: Ints = (),
    pads: Ints = (),
    storage_order: int = 0,
    strides: Ints = (),
    outputs: int = 1,
) -> Torch | tuple[Torch, Torch]:
    """``MaxPool``, with the indices of the maxima as second output."""
    window = Window.from_attributes(x, kernel_shape, strides, dilations, pads, auto_pad)
    low = -math.inf if x.is_floating_point() else torch.iinfo(x.dtype).min
    image, padding = pad_image(x, window, low)
    args = (image, window.kernel, window.strides, padding, window.dilations, bool(ceil_mode))
    if outputs == 1:
        return _MAX[window.rank](*args)
    if image is not x or storage_order:
        raise UnsupportedError(
            f"its output Indices, with storage_order = {storage_order} or other "
            "padding at both ends, is not supported"
        )
    values, places = _MAX[window.rank](*args, return_indices=True)
    planes = torch.arange(x.shape[0] * x.shape[1]).view(*x.shape[:2], *(1,) * window.rank)
    return values, places + planes * math.prod(x.shape[2:])


def average_pool(
    x: Torch,
    *,
    kernel_shape: Ints,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    count_include_pad: int = 0,
    dilations: Ints = (),
    pads: Ints = (),
    strides: Ints = (),
) -> Torch:
    """``AveragePool``; a sum over a count if padding differs between both ends."""
    window = Window.from_attributes(x, kernel_shape, strides, dilations, pads, auto_pad)
    if set(window.dilations) != {1}:
        raise UnsupportedError(f"its attribute dilations = {list(dilations)} is not supported")
    image, padding = pad_image(x, window)
    pool, ceil = _AVERAGE[window.rank], bool(ceil_mode)
    if image is x:
        return pool(x, window.kernel, window.strides, padding, ceil, bool(count_include_pad))
    average = pool(image, window.kernel, window.strides, 0, ceil)
    if count_include_pad:
        return average
    ones, _ = pad_image(torch.ones((1, 1, *x.shape[2:]), dtype=x.dtype), window)
    return average / pool(ones, window.kernel, window.strides, 0, ceil)


def lp_pool(
    x: Torch,
    *,
    kernel_shape: Ints,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: Ints = (),
    p: int = 2,
    pads: Ints = (),
    strides: Ints = (),
) -> Torch:
    """``LpPool``: the root of a sum of powers."""
    window = Window.from_attributes(x, kernel_shape, strides, dilations, pads, auto_pad)
    if set(window.dilations) != {1} or ceil_mode:
        raise UnsupportedError(
            f"its attribute dilations = {list(dilations)} or ceil_mode is not supported"
        )
    image, padding = pad_image(torch.pow(torch.abs(x), p), window)
    mean = _AVERAGE[window.rank](image, window.kernel, window.strides, padding)
    return torch.pow(mean * math.prod(window.kernel), 1 / p)


def global_average(x: Torch) -> Torch:
    """``GlobalAveragePool``."""
    return x.mean(tuple(range(2, x.ndim)), keepdim=True)


def global_max(x: Torch) -> Torch:
    """``GlobalMaxPool``."""
    return torch.amax(x, tuple(range(2, x.ndim)), keepdim=True)


def max_unpool(
    x: Torch,
    places: Torch,
    output_shape: Ints | None = None,
    *,
    kernel_shape: Ints,
    pads: Ints = (),
    strides: Ints = (),
) -> Torch:
    """``MaxUnpool`` to the shape given by its window."""
    window = Window.from_attributes(x, kernel_shape, strides, (), pads, "NOTSET")
    sizes = [
        (n - 1) * s + k - a - b
        for n, s, k, a, b in zip(
            x.shape[2:], window.strides, window.kernel, window.before, window.after, strict=True
        )
    ]
    shape = (*x.shape[:2], *sizes)
    if output_shape is not None and tuple(output_shape) != shape:
        raise UnsupportedError(f"its input output_shape = {list(output_shape)} is not supported")
    flat = torch.zeros(math.prod(shape), dtype=x.dtype)
    return flat.scatter(0, places.flatten(), x.flatten()).view(shape)


POOLING: Mapping[str, Convert] = {
    "MaxPool": max_pool, "AveragePool": average_pool, "LpPool": lp_pool,
    "GlobalAveragePool": global_average, "GlobalMaxPool": global_max, "MaxUnpool": max_unpool,
}  # fmt: skip
