"""Windows over images: convolutions, pools, resampling and padding."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction
from math import prod

from irgraph.ir.tensor import Tensor
from irgraph.ops.call import Call, InvalidCallError
from irgraph.ops.meaning import OPAQUE, ArgumentKey, Axes, Axis, Meaning, Result, Slope
from irgraph.ops.operator import no_meaning, operators, uncounted
from irgraph.ops.patterns import linear_sets, pattern

DIGIT = re.compile(r"([123])d")
"""The part of a name that has the number of axes of its windows."""


def per_axis(call: Call, name: str, count: int, default: int) -> list[int]:
    """Return an argument with one number per axis; a single number applies to all."""
    numbers = list(call.numbers(name)) or [default]
    return numbers if len(numbers) == count else numbers[:1] * count


def window_slopes(
    images: Sequence[str], positions: Sequence[str], strides: Sequence[int]
) -> tuple[Slope, ...]:
    """Return how images and positions of windows grow together, axis by axis."""
    slopes: list[Slope] = []
    for image, position, stride in zip(images, positions, strides, strict=True):
        slopes.append(Slope(image, position, Fraction(1, stride)))
        slopes.append(Slope(position, image, Fraction(stride)))
    return tuple(slopes)


def _names(prefix: str, count: int) -> tuple[str, ...]:
    return tuple(f"{prefix}{i}" for i in range(count))


def _is_plain(call: Call) -> bool:
    """Return whether a convolution is neither transposed nor in groups."""
    return not call.flag("transposed") and call.number("groups", 1) == 1


def _convolution(call: Call) -> Meaning | None:
    """Return the meaning of a convolution: channels are summed, places are mixed."""
    image, weight = call.inputs[:2]
    rank = image.rank - 2
    if rank < 1 or weight.rank != image.rank:
        return None
    places, positions, taps = _names("s", rank), _names("t", rank), _names("k", rank)
    mixed = frozenset((*places, *positions, *taps))
    if not _is_plain(call):
        # channels of groups are shared in blocks; transposed weights lead with the image's channels
        axes: list[Axes] = [("n", OPAQUE, *places), (OPAQUE,) * weight.rank]
        axes += [(OPAQUE,) * tensor.rank for tensor in call.inputs[2:]]
        result = Result(("n", OPAQUE, *positions))
        data = frozenset({0}) if len(call.inputs) == 2 else frozenset({0, 2})
        return Meaning(tuple(axes), (result,), mixed, (data,), sizes_by_torch=True)
    operands: list[Axes] = [("n", "c", *places), ("o", "c", *taps)]
    operands += [("o",)] * len(call.inputs[2:])
    return Meaning(
        operands=tuple(operands),
        results=(Result(("n", "o", *positions)),) * len(call.outputs),
        mixed=mixed,
        linear=linear_sets(call, ("input self bias", "weight bias")),
        slopes=window_slopes(places, positions, per_axis(call, "stride", rank, 1)),
        fixed=frozenset(taps),
    )


def _convolution_gradient(call: Call) -> Meaning | None:
    """Return the meaning of the gradients of a convolution, each of its own operands."""
    image, weight = call.inputs[1:3]
    rank = image.rank - 2
    if rank < 1 or len(call.inputs) != 3:
        return None
    places, positions, taps = _names("s", rank), _names("t", rank), _names("k", rank)
    mixed = frozenset((*places, *positions, *taps))
    axes_of_image: Axes = ("n", "c", *places)
    axes_of_weight: Axes = ("o", "c", *taps)
    if not _is_plain(call):
        axes_of_image = ("n", OPAQUE, *places)
        axes_of_weight = (OPAQUE,) * weight.rank
    axes_of_gradient: Axes = (
        ("n", "o", *positions) if _is_plain(call) else ("n", OPAQUE, *positions)
    )
    choices = (
        Result(axes_of_image, frozenset({0, 2})),
        Result(axes_of_weight, frozenset({0, 1})),
        Result(("o",) if _is_plain(call) else (OPAQUE,), frozenset({0})),
    )
    present = [isinstance(result, Tensor) for result in call.op.results]
    arguments: dict[ArgumentKey, Axis] = {}
    if _is_plain(call) and call.numbers("bias_sizes") == (weight.shape[0],):
        arguments["bias_sizes", 0] = "o"
    return Meaning(
        operands=(axes_of_gradient, axes_of_image, axes_of_weight),
        results=tuple(c for c, is_present in zip(choices, present, strict=False) if is_present),
        mixed=mixed,
        linear=(frozenset({0}),),
        arguments=arguments,
        slopes=window_slopes(places, positions, per_axis(call, "stride", rank, 1))
        if _is_plain(call)
        else (),
        fixed=frozenset(taps),
        sizes_by_torch=not _is_plain(call),
    )


def convolution_flops(image: Tensor, weight: Tensor, result: Tensor, transposed: bool) -> int:
    """Return two operations for each tap of each position of each pair of channels."""
    positions = (image if transposed else result).shape[2:]
    return 2 * int(image.shape[0]) * prod(positions) * prod(weight.shape)


def _forward_flops(call: Call) -> int:
    image, weight = call.inputs[:2]
    result = call.outputs[0]
    transposed = call.arguments.get("transposed")
    if transposed is None:
        # a recording without arguments: derive it from the channels
        transposed = result.shape[1] != weight.shape[0]
    return convolution_flops(image, weight, result, bool(transposed))


def _gradient_flops(call: Call) -> int:
    """Return the operations of the gradients that are computed.

    The weight's is a convolution of all places with all positions. Unlike torch's own count, it
    has the channels of one group only.
    """
    gradient, image, weight = call.inputs[:3]
    transposed = bool(call.arguments["transposed"])
    mask = call.arguments["output_mask"]
    if not isinstance(mask, tuple):
        raise InvalidCallError("output_mask is not recorded")
    count = convolution_flops(gradient, weight, image, not transposed) if mask[0] else 0
    if mask[1]:
        positions = (image if transposed else gradient).shape[2:]
        channels = int(gradient.shape[1]) * int(image.shape[1])
        pairs = channels // call.number("groups", 1)
        count += 2 * int(image.shape[0]) * prod(positions) * prod(weight.shape[2:]) * pairs
    return count


def _cudnn_gradient_flops(call: Call) -> int:
    """Return the operations of one gradient, of the image or of the weight."""
    gradient, other = call.inputs[:2]
    weight = call.outputs[0] if call.op.base.endswith("weight") else other
    return 2 * int(gradient.shape[0]) * prod(gradient.shape[2:]) * prod(weight.shape)


def _window_rank(call: Call) -> int:
    """Return the number of axes along which the windows of a call move, from its name."""
    match = DIGIT.search(call.op.base)
    assert match is not None
    return int(match[1])


def _pool(call: Call) -> Meaning | None:
    """Return the meaning of a pool over windows, and of its gradient."""
    is_gradient = call.op.base.endswith("_backward")
    image = call.inputs[1] if is_gradient else call.inputs[0]
    rank = _window_rank(call)
    leading = image.rank - rank
    outer = _names("n", leading)
    places, positions = _names("s", rank), _names("t", rank)
    of_image: Axes = (*outer, *places)
    of_windows: Axes = (*outer, *positions)
    operands: tuple[Axes, ...]
    results: tuple[Axes, ...]
    if is_gradient:
        operands = (of_windows, of_image, *(of_windows,) * len(call.inputs[2:]))
        results = (of_image,)
    else:
        operands = (of_image,)
        results = (of_windows,) * len(call.outputs)
    kernel = per_axis(call, "kernel_size", rank, 1)
    explicit = per_axis(call, "stride", rank, 0)
    strides = [stride or size for stride, size in zip(explicit, kernel, strict=True)]
    is_linear = is_gradient or call.op.base.startswith("avg")
    return Meaning(
        operands=operands,
        results=tuple(map(Result, results)),
        mixed=frozenset((*places, *positions)),
        linear=(frozenset({0}),) if is_linear else (),
        slopes=window_slopes(places, positions, strides),
    )


def _adaptive_pool(call: Call) -> Meaning | None:
    """Return the meaning of a pool to a given size, and of its gradient."""
    is_gradient = call.op.base.endswith("_backward")
    image = call.inputs[1] if is_gradient else call.inputs[0]
    rank = _window_rank(call)
    outer, images = _names("n", image.rank - rank), _names("s", rank)
    places: Axes = (*outer, *images)
    pooled: Axes = (*outer, *(OPAQUE,) * rank)
    operands = (pooled, places, *(pooled,) * len(call.inputs[2:])) if is_gradient else (places,)
    result = places if is_gradient else pooled
    is_linear = is_gradient or "_avg_" in call.op.base
    return Meaning(
        operands=operands,
        results=(Result(result),) * len(call.outputs),
        mixed=frozenset(images),
        linear=(frozenset({0}),) if is_linear else (),
    )


def _resampled(call: Call) -> Meaning | None:
    """Return the meaning of resampling to a given size, and of its gradient: places are mixed."""
    rank = call.inputs[0].rank - 2
    if rank < 1:
        return None
    places, positions = _names("s", rank), _names("t", rank)
    axes: Axes = ("n", "c", *positions)
    sizes = call.numbers("input_size")
    arguments: dict[ArgumentKey, Axis] = {("input_size", i): axes[i] for i in range(len(sizes))}
    return Meaning(
        operands=(("n", "c", *places),),
        results=(Result(axes),),
        mixed=frozenset((*places, *positions)),
        linear=(frozenset({0}),),
        arguments=arguments,
        sizes_by_torch=True,
    )


def _extended(call: Call) -> Meaning | None:
    """Return the meaning of padding with elements of the operand, and of its gradient."""
    is_gradient = call.op.base.endswith("_backward")
    image = call.inputs[-1]
    rank = _window_rank(call)
    outer = _names("n", image.rank - rank)
    places, positions = _names("s", rank), _names("t", rank)
    of_image: Axes = (*outer, *places)
    padded: Axes = (*outer, *positions)
    return Meaning(
        operands=(padded, of_image) if is_gradient else (of_image,),
        results=(Result(of_image if is_gradient else padded),),
        mixed=frozenset((*places, *positions)),
        bounded=frozenset((*places, *positions)),
        linear=(frozenset({0}),),
        slopes=window_slopes(places, positions, [1] * rank),
    )


def _affine_grid(call: Call) -> Meaning | None:
    """Return the meaning of a grid of positions, of which each depends on its index."""
    positions = _names("t", len(call.numbers("size")) - 2)
    arguments: dict[ArgumentKey, Axis] = {("size", 0): "n"}
    arguments |= {("size", i): axis for i, axis in enumerate(positions, 2)}
    return Meaning(
        operands=(("n", OPAQUE, OPAQUE),),
        results=(Result(("n", *positions, OPAQUE)),),
        mixed=frozenset(positions),
        linear=(frozenset({0}),),
        arguments=arguments,
        sizes_by_torch=True,
    )


def _shuffled(call: Call) -> Meaning | None:
    """Return the meaning of channels that become pixels, or the reverse, within a sample."""
    axes: Axes = (*_names("n", call.inputs[0].rank - 3), OPAQUE, OPAQUE, OPAQUE)
    return Meaning((axes,), (Result(axes),), linear=(frozenset({0}),), sizes_by_torch=True)


def _padded(call: Call) -> Meaning | None:
    """Return the meaning of padding with a constant: padded axes grow as the operand's."""
    operand = call.inputs[0]
    pads = call.numbers("pad")
    axes: list[str] = []
    padded: list[str] = []
    for index in range(operand.rank):
        axes.append(f"d{index}")
        from_end = operand.rank - 1 - index
        is_padded = any(pads[2 * from_end : 2 * from_end + 2])
        padded.append(f"p{index}" if is_padded else f"d{index}")
    changed = [(a, p) for a, p in zip(axes, padded, strict=True) if a != p]
    value = call.arguments.get("value", 0)
    return Meaning(
        operands=(tuple(axes),),
        results=(Result(tuple(padded)),),
        mixed=frozenset(letter for pair in changed for letter in pair),
        linear=(frozenset({0}),) if value == 0 else (),
        slopes=window_slopes([a for a, _ in changed], [p for _, p in changed], [1] * len(changed)),
    )


CONVOLUTION = "n c *s!, o c *k!, o -> n o *t!"

SAMPLED = "n c *s!, n *t _ -> n c *t"
SAMPLED_GRADIENT = "n c *t, n c *s!, n *t _ -> n c *s!, n *t _"

OPERATORS = {
    **operators(
        _convolution,
        "convolution cudnn_convolution _convolution",
        text=CONVOLUTION,
        flops=_forward_flops,
    ),
    # these call one of the above, which counts
    **operators(_convolution, "conv1d conv2d conv3d", text=CONVOLUTION),
    **operators(
        _convolution_gradient,
        "convolution_backward",
        text="n o *t!, n c *s!, o c *k! -> n c *s!, o c *k!, o",
        flops=_gradient_flops,
    ),
    **operators(
        no_meaning,
        "cudnn_convolution_backward_input cudnn_convolution_backward_weight",
        flops=_cudnn_gradient_flops,
    ),
    **operators(
        no_meaning,
        "cudnn_convolution_transpose cudnn_convolution_backward _conv_depthwise2d conv_depthwise3d "
        "cudnn_convolution_transpose_backward convolution_overrideable "
        "convolution_backward_overrideable",
        flops=uncounted,
    ),
    **operators(
        _pool,
        "max_pool2d_with_indices max_pool2d_with_indices_backward avg_pool2d avg_pool2d_backward "
        "max_pool3d_with_indices max_pool3d_with_indices_backward avg_pool3d avg_pool3d_backward",
        text="*n *s! -> *n *t!",
    ),
    **operators(
        _adaptive_pool,
        "adaptive_avg_pool2d _adaptive_avg_pool2d _adaptive_avg_pool2d_backward "
        "_adaptive_avg_pool3d _adaptive_avg_pool3d_backward "
        "adaptive_max_pool2d adaptive_max_pool2d_backward",
        text="*n *s! -> *n *_",
    ),
    **operators(
        _extended,
        "reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d "
        "replication_pad3d reflection_pad1d_backward reflection_pad2d_backward "
        "replication_pad1d_backward replication_pad2d_backward",
        text="*n *s! -> *n *t!",
    ),
    **operators(_affine_grid, "affine_grid_generator", text="n _ _ -> n *t! _"),
    **operators(pattern(SAMPLED, "input"), "grid_sampler_2d grid_sampler_3d", text=SAMPLED),
    **operators(
        pattern(SAMPLED_GRADIENT, "grad_output"),
        "grid_sampler_2d_backward grid_sampler_3d_backward",
        text=SAMPLED_GRADIENT,
    ),
    **operators(_shuffled, "pixel_shuffle pixel_unshuffle", text="*n _ _ _ -> *n _ _ _"),
    **operators(
        _resampled,
        "upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_bilinear2d "
        "upsample_bicubic2d upsample_trilinear3d _upsample_bilinear2d_aa upsample_linear1d "
        "upsample_nearest2d_backward upsample_bilinear2d_backward upsample_bicubic2d_backward "
        "upsample_linear1d_backward upsample_nearest1d_backward upsample_nearest3d_backward "
        "upsample_trilinear3d_backward _upsample_bilinear2d_aa_backward",
        text="n c *s! -> n c *t!",
    ),
    **operators(_padded, "constant_pad_nd"),
}
