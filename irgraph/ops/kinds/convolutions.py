"""Convolutions, their gradients and their operations."""

from __future__ import annotations

from math import prod

from irgraph.ir.tensor import Shape, Tensor
from irgraph.ops.call import Call, InvalidCallError
from irgraph.ops.kinds.windows import Windows, per_axis
from irgraph.ops.meaning import IN_FIRST, OPAQUE, Arguments, Axes, Meaning, Result
from irgraph.ops.operator import no_meaning, operators, uncounted
from irgraph.ops.patterns import linear_sets, new_results
from irgraph.ops.shapes import letters


class _Convolution:
    """The axes of a convolution: channels are summed, places are mixed.

    Channels of groups are shared in blocks, and transposed weights lead with the image's channels:
    their axes are opaque.
    """

    def __init__(self, call: Call, rank: int) -> None:
        windows = Windows(0, rank)
        strides = per_axis(call, "stride", rank, 1)
        taps = letters(rank, "k")
        self.is_simple = not call.flag("transposed") and call.number("groups", 1) == 1
        self.mixed = windows.mixed.union(taps)
        self.fixed = frozenset(taps)
        self.slopes = windows.slopes(strides) if self.is_simple else ()
        self.image: Axes = ("n", OPAQUE, *windows.places)
        self.weight: Axes = (OPAQUE,) * (rank + 2)
        self.bias: Axes = (OPAQUE,)
        self.result: Axes = ("n", OPAQUE, *windows.positions)
        if self.is_simple:
            self.image = ("n", "c", *windows.places)
            self.weight = ("o", "c", *taps)
            self.bias = ("o",)
            self.result = ("n", "o", *windows.positions)


def _convolution(call: Call) -> Meaning | None:
    """Return the meaning of a convolution: channels are summed, places are mixed."""
    image, weight, *biases = call.inputs
    rank = image.rank - 2
    if rank < 1 or weight.rank != image.rank:
        return None
    axes = _Convolution(call, rank)
    sets = ["input self bias"]
    if axes.is_simple:
        sets.append("weight bias")
    return Meaning(
        operands=(axes.image, axes.weight, *(axes.bias,) * len(biases)),
        results=new_results(call, axes.result),
        mixed=axes.mixed,
        linear=linear_sets(call, sets),
        slopes=axes.slopes,
        fixed=axes.fixed if axes.is_simple else frozenset(),
        sizes_by_torch=not axes.is_simple,
    )


def _convolution_gradient(call: Call) -> Meaning | None:
    """Return the meaning of the gradients of a convolution, each of its own operands."""
    _, image, weight = call.inputs
    rank = image.rank - 2
    if rank < 1:
        return None
    axes = _Convolution(call, rank)
    choices = (
        Result(axes.image, frozenset({0, 2})),
        Result(axes.weight, frozenset({0, 1})),
        Result(axes.bias, frozenset({0})),
    )
    results: list[Result] = []
    for choice, result in zip(choices, call.op.results, strict=False):
        if isinstance(result, Tensor):
            results.append(choice)
    arguments: Arguments = {}
    if axes.is_simple and call.numbers("bias_sizes") == (weight.shape[0],):
        arguments["bias_sizes", 0] = "o"
    return Meaning(
        operands=(axes.result, axes.image, axes.weight),
        results=tuple(results),
        mixed=axes.mixed,
        linear=IN_FIRST,
        arguments=arguments,
        slopes=axes.slopes,
        fixed=axes.fixed,
        sizes_by_torch=not axes.is_simple,
    )


def convolution_flops(
    image: Tensor,
    weight: Tensor,
    result: Tensor,
    transposed: bool,
) -> int:
    """Return two operations for each tap of each position of each pair of channels."""
    windows = image if transposed else result
    return _products(windows, int(image.shape[0]), weight.shape)


def _products(windows: Tensor, samples: int, taps: Shape) -> int:
    """Return two operations for each tap of each position of windows."""
    positions = prod(windows.shape[2:])
    return 2 * samples * positions * prod(taps)


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
    count = 0
    if mask[0]:
        count += convolution_flops(gradient, weight, image, not transposed)
    if mask[1]:
        windows = image if transposed else gradient
        channels = int(gradient.shape[1]) * int(image.shape[1])
        pairs = channels // call.number("groups", 1)
        taps = (pairs, *weight.shape[2:])
        count += _products(windows, int(image.shape[0]), taps)
    return count


def _cudnn_gradient_flops(call: Call) -> int:
    """Return the operations of one gradient, of the image or of the weight."""
    gradient, other = call.inputs[:2]
    of_weight = call.op.base.endswith("weight")
    weight = call.outputs[0] if of_weight else other
    return _products(gradient, int(gradient.shape[0]), weight.shape)


CONVOLUTION = "n c *s!, o c *k!, o -> n o *t!"

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
}
