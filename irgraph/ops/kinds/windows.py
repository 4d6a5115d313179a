"""Windows over images: pools, resampling and padding."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction

from msgspec.structs import replace

from irgraph.ir.tensor import Tensor
from irgraph.ops.call import Call
from irgraph.ops.meaning import (
    IN_FIRST,
    OPAQUE,
    Arguments,
    Axes,
    Letters,
    Meaning,
    Result,
    Slope,
)
from irgraph.ops.operator import operators
from irgraph.ops.patterns import new_results, pattern
from irgraph.ops.shapes import letters

DIGIT = re.compile(r"([123])d")
"""The part of a name that has the number of axes of its windows."""


def per_axis(
    call: Call,
    name: str,
    count: int,
    default: int,
) -> list[int]:
    """Return an argument with one number per axis; a single number applies to all."""
    numbers = call.numbers(name) or (default,)
    if len(numbers) != count:
        numbers = numbers[:1] * count
    return list(numbers)


def window_slopes(
    images: Sequence[str],
    positions: Sequence[str],
    strides: Sequence[int],
) -> tuple[Slope, ...]:
    """Return how images and positions of windows grow together, axis by axis."""
    slopes: list[Slope] = []
    for image, position, stride in zip(images, positions, strides, strict=True):
        slopes.append(Slope(image, position, Fraction(1, stride)))
        slopes.append(Slope(position, image, Fraction(stride)))
    return tuple(slopes)


class Windows:
    """Letters of the axes of images and of the positions of windows over them.

    Attributes:
        samples: letters of the axes before the axes of images.
        places: letters of the axes of images.
        positions: letters of the axes of windows' positions.
        images: the axes of samples and of images.
        windows: the axes of results of windows.
    """

    def __init__(self, outer_rank: int, rank: int) -> None:
        self.samples = letters(outer_rank, "n")
        self.places = letters(rank, "s")
        self.positions = letters(rank, "t")
        self.images = (*self.samples, *self.places)
        self.windows = (*self.samples, *self.positions)

    @property
    def mixed(self) -> Letters:
        """The letters along which windows mix elements."""
        return frozenset((*self.places, *self.positions))

    def slopes(self, strides: Sequence[int]) -> tuple[Slope, ...]:
        """Return how images and positions grow together."""
        return window_slopes(self.places, self.positions, strides)


def _window_axes(call: Call, image: Tensor) -> Windows:
    """Return the axes of windows that move along as many axes as the digit of a call's name."""
    match = DIGIT.search(call.op.base)
    assert match is not None
    rank = int(match[1])
    return Windows(image.rank - rank, rank)


def _image(call: Call) -> Tensor:
    """Return the image, which gradients have after the gradient of the result."""
    return call.inputs[1] if call.is_gradient else call.inputs[0]


def _pool(call: Call) -> Meaning | None:
    """Return the meaning of a pool over windows, and of its gradient."""
    axes = _window_axes(call, _image(call))
    rank = len(axes.places)
    kernel = per_axis(call, "kernel_size", rank, 1)
    strides = per_axis(call, "stride", rank, 0)
    steps = [stride or size for stride, size in zip(strides, kernel, strict=True)]
    is_linear = call.is_gradient or call.op.base.startswith("avg")
    meaning = Meaning(
        operands=(axes.images,),
        results=new_results(call, axes.windows),
        mixed=axes.mixed,
        linear=IN_FIRST if is_linear else (),
        slopes=axes.slopes(steps),
    )
    return _gradient_of(meaning, call) if call.is_gradient else meaning


def _gradient_of(meaning: Meaning, call: Call) -> Meaning:
    """Return the meaning of a gradient, given the meaning of windows over an image.

    Other operands, such as indices of maxima, have the axes of the windows.
    """
    (image,) = meaning.operands
    windows = meaning.results[0].axes
    others = (windows,) * len(call.inputs[2:])
    return replace(
        meaning,
        operands=(windows, image, *others),
        results=new_results(call, image),
    )


def _adaptive_pool(call: Call) -> Meaning | None:
    """Return the meaning of a pool to a given size, and of its gradient."""
    axes = _window_axes(call, _image(call))
    sizes = (OPAQUE,) * len(axes.places)
    is_linear = call.is_gradient or "_avg_" in call.op.base
    meaning = Meaning(
        operands=(axes.images,),
        results=new_results(call, (*axes.samples, *sizes)),
        mixed=frozenset(axes.places),
        linear=IN_FIRST if is_linear else (),
    )
    return _gradient_of(meaning, call) if call.is_gradient else meaning


def _resampled(call: Call) -> Meaning | None:
    """Return the meaning of resampling to a given size, and of its gradient: places are mixed."""
    rank = call.inputs[0].rank - 2
    if rank < 1:
        return None
    windows = Windows(0, rank)
    result = ("n", "c", *windows.positions)
    arguments: Arguments = {}
    for index in range(len(call.numbers("input_size"))):
        arguments["input_size", index] = result[index]
    return Meaning(
        operands=(("n", "c", *windows.places),),
        results=(Result(result),),
        mixed=windows.mixed,
        linear=IN_FIRST,
        arguments=arguments,
        sizes_by_torch=True,
    )


def _extended(call: Call) -> Meaning | None:
    """Return the meaning of padding with elements of the operand, and of its gradient."""
    axes = _window_axes(call, call.inputs[-1])
    steps = [1] * len(axes.places)
    meaning = Meaning(
        operands=(axes.images,),
        results=(Result(axes.windows),),
        mixed=axes.mixed,
        bounded=axes.mixed,
        linear=IN_FIRST,
        slopes=axes.slopes(steps),
    )
    return _gradient_of(meaning, call) if call.is_gradient else meaning


def _affine_grid(call: Call) -> Meaning | None:
    """Return the meaning of a grid of positions, of which each depends on its index."""
    rank = len(call.numbers("size")) - 2
    positions = letters(rank, "t")
    arguments: Arguments = {("size", 0): "n"}
    for index, axis in enumerate(positions, 2):
        arguments["size", index] = axis
    return Meaning(
        operands=(("n", OPAQUE, OPAQUE),),
        results=(Result(("n", *positions, OPAQUE)),),
        mixed=frozenset(positions),
        linear=IN_FIRST,
        arguments=arguments,
        sizes_by_torch=True,
    )


def _shuffled(call: Call) -> Meaning | None:
    """Return the meaning of channels that become pixels, or the reverse, within a sample."""
    samples = letters(call.inputs[0].rank - 3, "n")
    axes: Axes = (*samples, OPAQUE, OPAQUE, OPAQUE)
    return Meaning((axes,), (Result(axes),), linear=IN_FIRST, sizes_by_torch=True)


def _padded(call: Call) -> Meaning | None:
    """Return the meaning of padding with a constant: padded axes grow as the operand's."""
    rank = call.inputs[0].rank
    pads = call.numbers("pad")
    axes = letters(rank)
    result = list(axes)
    slopes: list[Slope] = []
    for index, axis in enumerate(axes):
        first = 2 * (rank - 1 - index)
        if any(pads[first : first + 2]):
            result[index] = f"p{index}"
            slopes += window_slopes([axis], [result[index]], [1])
    changed = frozenset(axes).symmetric_difference(result)
    is_linear = call.arguments.get("value", 0) == 0
    return Meaning(
        operands=(axes,),
        results=(Result(tuple(result)),),
        mixed=changed,
        linear=IN_FIRST if is_linear else (),
        slopes=tuple(slopes),
    )


SAMPLED = "n c *s!, n *t _ -> n c *t"
SAMPLED_GRADIENT = "n c *t, n c *s!, n *t _ -> n c *s!, n *t _"

OPERATORS = {
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
