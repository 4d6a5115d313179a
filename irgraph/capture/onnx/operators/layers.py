"""Operators that are layers: convolutions, norms, dropout, sampling of images."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
import torch.nn.functional as F  # noqa: N812

from irgraph.capture.common.torch_object import Torch
from irgraph.capture.onnx.bind import Convert, Floats, Ints, Number, UnsupportedError
from irgraph.capture.onnx.operators.pooling import Window, pad_image

_CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_CONV_TRANSPOSE = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


def conv(
    x: Torch,
    weight: Torch,
    bias: Torch = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Ints = (),
    group: int = 1,
    kernel_shape: Ints = (),
    pads: Ints = (),
    strides: Ints = (),
) -> Torch:
    """``Conv``; padding that differs between both ends is applied before."""
    window = Window.from_attributes(x, weight.shape[2:], strides, dilations, pads, auto_pad)
    x, padding = pad_image(x, window, pool=False)
    return _CONV[window.rank](x, weight, bias, window.strides, padding, window.dilations, group)


def conv_transpose(
    x: Torch,
    weight: Torch,
    bias: Torch = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Ints = (),
    group: int = 1,
    kernel_shape: Ints = (),
    output_padding: Ints = (),
    output_shape: Ints = (),
    pads: Ints = (),
    strides: Ints = (),
) -> Torch:
    """``ConvTranspose``; if its padding differs between both ends the result is cropped."""
    window = Window.from_attributes(x, weight.shape[2:], strides, dilations, pads, "NOTSET")
    extra = tuple(output_padding) or (0,) * window.rank
    target = tuple(output_shape)
    if auto_pad.startswith("SAME") and not target:
        target = tuple(n * s for n, s in zip(x.shape[2:], window.strides, strict=True))
    before, after = window.before, window.after
    if target:
        before, after = _cropped_padding(x, window, extra, target[-window.rank :], auto_pad)
    apply = _CONV_TRANSPOSE[window.rank]
    if before == after and min(before) >= 0:
        return apply(x, weight, bias, window.strides, before, extra, group, window.dilations)
    full = apply(x, weight, bias, window.strides, 0, 0, group, window.dilations)
    ends = [(-a, m - b) for a, b, m in zip(before, after, extra, strict=True)]
    return F.pad(full, [n for pair in reversed(ends) for n in pair])


def _cropped_padding(
    x: Torch, window: Window, extra: Sequence[int], target: Sequence[int], auto_pad: str
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the padding with which a transposed convolution has a given output shape."""
    total = [
        (n - 1) * s + m + (k - 1) * d + 1 - w
        for n, s, m, k, d, w in zip(
            x.shape[2:], window.strides, extra, window.kernel, window.dilations, target, strict=True
        )
    ]
    smaller = tuple(n // 2 for n in total)
    larger = tuple(n - n // 2 for n in total)
    return (smaller, larger) if auto_pad == "SAME_UPPER" else (larger, smaller)


def batch_norm(
    x: Torch,
    scale: Torch,
    bias: Torch,
    mean: Torch,
    var: Torch,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    training_mode: int = 0,
) -> Torch:
    """``BatchNormalization`` as in inference."""
    if training_mode:
        raise UnsupportedError("its attribute training_mode = 1 is not supported")
    return F.batch_norm(
        x, mean, var, scale, bias, False, round(1 - momentum, 6), _shortest_decimal(epsilon)
    )


def layer_norm(
    x: Torch,
    scale: Torch,
    bias: Torch = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
    outputs: int = 1,
) -> Torch:
    """``LayerNormalization`` over the last axes."""
    shape = _normalized_shape(x, scale, axis, stash_type)
    if bias is not None and bias.shape != scale.shape:
        raise UnsupportedError("its bias has another shape than its scale")
    if outputs == 1:
        return F.layer_norm(x, shape, scale, bias, _shortest_decimal(epsilon))
    return torch.native_layer_norm(x, shape, scale, bias, _shortest_decimal(epsilon))


def rms_norm(
    x: Torch, scale: Torch, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> Torch:
    """``RMSNormalization`` over the last axes."""
    return F.rms_norm(
        x, _normalized_shape(x, scale, axis, stash_type), scale, _shortest_decimal(epsilon)
    )


def _normalized_shape(x: Torch, scale: Torch, axis: int, stash_type: int) -> list[int]:
    shape = list(x.shape[axis % x.ndim :])
    if list(scale.shape) != shape:
        raise UnsupportedError(f"its scale is {list(scale.shape)}, not {shape}")
    if stash_type != 1:
        raise UnsupportedError(f"its attribute stash_type = {stash_type} is not supported")
    return shape


def group_norm(
    x: Torch,
    scale: Torch,
    bias: Torch,
    *,
    num_groups: int,
    epsilon: float = 1e-5,
    stash_type: int = 1,
) -> Torch:
    """``GroupNormalization`` with a scale for each channel (opset 21)."""
    if scale.shape != x.shape[1:2] or stash_type != 1:
        raise UnsupportedError(f"its scale is {list(scale.shape)}, stash_type = {stash_type}")
    return F.group_norm(x, num_groups, scale, bias, _shortest_decimal(epsilon))


def instance_norm(x: Torch, scale: Torch, bias: Torch, *, epsilon: float = 1e-5) -> Torch:
    """``InstanceNormalization``."""
    return F.instance_norm(x, None, None, scale, bias, True, 0.1, _shortest_decimal(epsilon))


def local_response_norm(
    x: Torch, *, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0
) -> Torch:
    """``LRN`` over an odd number of channels."""
    if size % 2 == 0:
        raise UnsupportedError(f"its attribute size = {size} is even")
    return F.local_response_norm(
        x, size, _shortest_decimal(alpha), _shortest_decimal(beta), _shortest_decimal(bias)
    )


def dropout(
    x: Torch,
    ratio: Number = 0.5,
    training_mode: Number = 0,
    *,
    seed: int | None = None,
    outputs: int = 1,
) -> Torch | tuple[Torch, Torch]:
    """``Dropout``: the identity in inference."""
    if training_mode and ratio and seed is not None:
        raise UnsupportedError(f"its attribute seed = {seed} is not supported: torch draws others")
    if not training_mode or not ratio:
        return x if outputs == 1 else (x, torch.ones_like(x, dtype=torch.bool))
    return F.dropout(x, ratio) if outputs == 1 else torch.native_dropout(x, ratio, True)


def resize(
    x: Torch,
    roi: Floats = (),
    scales: Floats | None = None,
    sizes: Ints | None = None,
    *,
    antialias: int = 0,
    axes: Ints = (),
    coordinate_transformation_mode: str = "half_pixel",
    cubic_coeff_a: float = -0.75,
    exclude_outside: int = 0,
    extrapolation_value: float = 0.0,
    keep_aspect_ratio_policy: str = "stretch",
    mode: str = "nearest",
    nearest_mode: str = "round_prefer_floor",
) -> Torch:
    """``Resize`` of images in the forms that torch supports.

    ``roi`` and ``extrapolation_value`` only affect ``tf_crop_and_resize``, which is refused.
    """
    refused = {
        "antialias": antialias,
        "exclude_outside": exclude_outside,
        "cubic_coeff_a": mode == "cubic" and cubic_coeff_a != -0.75 and cubic_coeff_a,
        "keep_aspect_ratio_policy": sizes and keep_aspect_ratio_policy.removeprefix("stretch"),
    }
    for name, value in refused.items():
        if value:
            raise UnsupportedError(f"its attribute {name} = {value} is not supported")
    factors = _factors(x, scales, sizes, axes)
    target = [math.floor(n * f + 1e-6) for n, f in zip(x.shape, factors, strict=True)]
    if target[:2] != list(x.shape[:2]):
        raise UnsupportedError("it resizes the axes of the batch or the channels")
    transform = coordinate_transformation_mode
    if mode == "nearest":
        kind, options = _nearest_mode(x.shape, target, factors, transform, nearest_mode), {}
    else:
        kind, options = (
            _interpolation_mode(mode, transform, x.ndim, target),
            {"align_corners": transform == "align_corners"},
        )
    is_exact = all(abs(n * f - t) < 1e-6 for n, f, t in zip(x.shape, factors, target, strict=True))
    if is_exact:
        return F.interpolate(x, target[2:], mode=kind, **options)
    if transform == "align_corners" or mode == "nearest":
        raise UnsupportedError(f"its input scales = {list(scales or ())} gives no whole sizes")
    return F.interpolate(
        x, scale_factor=factors[2:], mode=kind, recompute_scale_factor=False, **options
    )


def _factors(x: Torch, scales: Floats | None, sizes: Ints | None, axes: Ints) -> list[float]:
    """Return the scale factor of each axis."""
    factors = [1.0] * x.ndim
    places = [axis % x.ndim for axis in axes] or range(x.ndim)
    for i, axis in enumerate(places):
        if sizes:
            factors[axis] = sizes[i] / x.shape[axis]
        elif scales is not None:
            factors[axis] = scales[i]
    return factors


_SOURCE_POSITION: Mapping[str, Callable[[int, int, int, float], float]] = {
    "half_pixel": lambda i, old, new, f: (i + 0.5) / f - 0.5,
    "pytorch_half_pixel": lambda i, old, new, f: (i + 0.5) / f - 0.5 if new > 1 else 0.0,
    "asymmetric": lambda i, old, new, f: i / f,
    "align_corners": lambda i, old, new, f: i * (old - 1) / (new - 1) if new > 1 else 0.0,
}
"""Position in the image of an element of the result, from its index, both sizes and the factor."""

_ROUND: Mapping[str, Callable[[float], int]] = {
    "floor": math.floor,
    "ceil": math.ceil,
    "round_prefer_floor": lambda x: math.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: math.floor(x + 0.5),
}

_TORCH_INDEX: Mapping[str, Callable[[int, float], int]] = {
    "nearest": lambda i, f: math.floor(i / f),
    "nearest-exact": lambda i, f: math.floor((i + 0.5) / f),
}


def _nearest_mode(
    old: Sequence[int], new: Sequence[int], factors: Sequence[float], transform: str, rule: str
) -> str:
    """Return torch's interpolation mode that selects the same elements."""
    position, round_position = _SOURCE_POSITION.get(transform), _ROUND[rule]
    for kind, torch_index in _TORCH_INDEX.items():
        if position is not None and all(
            min(max(round_position(position(i, a, b, f)), 0), a - 1)
            == min(torch_index(i, b / a), a - 1)
            for a, b, f in zip(old[2:], new[2:], factors[2:], strict=True)
            for i in range(b)
        ):
            return kind
    words = f"coordinate_transformation_mode = {transform}, nearest_mode = {rule}"
    raise UnsupportedError(f"its attributes {words} take other elements than torch does")


def _interpolation_mode(mode: str, transform: str, rank: int, new: Sequence[int]) -> str:
    """Return torch's interpolation mode for linear or cubic interpolation."""
    half = transform == "half_pixel" or (transform == "pytorch_half_pixel" and 1 not in new[2:])
    kinds = {
        ("linear", 3): "linear",
        ("linear", 4): "bilinear",
        ("linear", 5): "trilinear",
        ("cubic", 4): "bicubic",
    }
    if (half or transform == "align_corners") and (mode, rank) in kinds:
        return kinds[mode, rank]
    words = f"mode = {mode}, coordinate_transformation_mode = {transform}"
    raise UnsupportedError(f"its attributes {words} of {rank} axes are not supported")


def upsample(x: Torch, scales: Floats, *, mode: str = "nearest") -> Torch:
    """``Upsample``, which is deprecated."""
    transform = "asymmetric"
    return resize(
        x, (), scales, mode=mode, nearest_mode="floor", coordinate_transformation_mode=transform
    )


def grid_sample(
    x: Torch,
    grid: Torch,
    *,
    mode: str = "linear",
    padding_mode: str = "zeros",
    align_corners: int = 0,
) -> Torch:
    """``GridSample``."""
    words = {"linear": "bilinear", "cubic": "bicubic"}
    return F.grid_sample(x, grid, words.get(mode, mode), padding_mode, bool(align_corners))


def affine_grid(theta: Torch, size: Ints, *, align_corners: int = 0) -> Torch:
    """``AffineGrid``."""
    return F.affine_grid(theta, list(size), bool(align_corners))


def column_to_image(
    x: Torch,
    image_shape: Ints,
    block_shape: Ints,
    *,
    dilations: Ints = (),
    pads: Ints = (),
    strides: Ints = (),
) -> Torch:
    """``Col2Im`` of images with equal padding at both ends."""
    rank = len(image_shape)
    pads = tuple(pads) or (0,) * 2 * rank
    if rank != 2 or pads[:rank] != pads[rank:]:
        raise UnsupportedError(
            f"its attribute pads = {list(pads)} or its {rank} axes are not supported"
        )
    ones = (1,) * rank
    return F.fold(
        x, image_shape, block_shape, tuple(dilations) or ones, pads[:rank], tuple(strides) or ones
    )


def _shortest_decimal(value: float) -> float:
    """Return the shortest decimal that equals a number in f32, the type of attributes."""
    return float(f"{value:.7g}")


LAYERS: Mapping[str, Convert] = {
    "Conv": conv, "ConvTranspose": conv_transpose, "BatchNormalization": batch_norm,
    "LayerNormalization": layer_norm, "RMSNormalization": rms_norm,
    "GroupNormalization": group_norm, "InstanceNormalization": instance_norm,
    "LRN": local_response_norm, "Dropout": dropout, "Resize": resize, "Upsample": upsample,
    "GridSample": grid_sample, "AffineGrid": affine_grid, "Col2Im": column_to_image,
}  # fmt: skip
