"""Normalisation of layers, groups and batches, forward and backward."""

from __future__ import annotations

from collections.abc import Sequence

from irgraph.ir.tensor import Tensor
from irgraph.ops.call import Call
from irgraph.ops.meaning import ONE, OPAQUE, ArgumentKey, Axes, Axis, Meaning, Merged, Result
from irgraph.ops.operator import Operator, Trait, operators
from irgraph.ops.patterns import linear_sets, pattern
from irgraph.ops.shapes import letters

STATISTICS = ("mean", "rstd")
"""Arguments with one element for each row."""


def _layer_norm(call: Call) -> Meaning | None:
    """Return the meaning of a norm over the last axes, and of its gradients."""
    is_gradient = call.op.base.endswith("_backward")
    image = call.inputs[1] if is_gradient else call.inputs[0]
    sizes = call.numbers("normalized_shape")
    axes = letters(image.rank)
    first = image.rank - len(sizes)
    if first < 0 or (is_gradient and not first):
        return None
    weight = axes[first:]
    statistic: Axes = (*axes[:first], *(ONE,) * len(sizes))
    by_name = {"weight": weight, "bias": weight, **dict.fromkeys(STATISTICS, statistic)}
    operands = [by_name.get(name, axes) for name, span in call.spans.items() for _ in span]
    choices = (axes, weight, weight) if is_gradient else (axes, statistic, statistic)
    results = [
        Result(declared)
        for declared, result in zip(choices, call.op.results, strict=False)
        if isinstance(result, Tensor)
    ]
    return Meaning(
        operands=tuple(operands),
        results=tuple(results),
        mixed=frozenset(map(str, weight)),
        linear=linear_sets(call, ("grad_out",)) if is_gradient else (),
        arguments={("normalized_shape", i): axis for i, axis in enumerate(weight)},
    )


def _batch_norm(call: Call) -> Meaning | None:
    """Return the meaning of a norm over samples and places of each channel, and its gradients.

    Tensors of one axis have an element for each channel. In training samples and places are mixed.
    """
    images = [t for t in (*call.inputs, *call.outputs) if t.rank > 1]
    if not images:
        return None
    rank = images[0].rank
    channels = images[0].shape[1]
    axes: Axes = ("n", "c", *(f"s{i}" for i in range(rank - 2)))

    def of(tensor: Tensor) -> Axes:
        if tensor.rank == rank:
            return axes
        return (
            ("c",) if tensor.rank == 1 and tensor.shape[0] == channels else (OPAQUE,) * tensor.rank
        )

    trains = any(call.flag(name) for name in ("training", "train", "use_input_stats"))
    is_gradient = call.op.base.endswith("_backward")
    mixes = trains or call.op.base.startswith("cudnn")
    if mixes and not is_gradient and images[0].numel == channels:
        # one element has no variance
        return None
    mixed = frozenset({"n", *map(str, axes[2:])} if mixes else ())
    return Meaning(
        operands=tuple(map(of, call.inputs)),
        results=tuple(Result(of(tensor)) for tensor in call.outputs),
        mixed=mixed,
        bounded=mixed,
        linear=linear_sets(call, ("grad_out", "grad_output")) if is_gradient else (),
    )


def _group_norm(call: Call) -> Meaning | None:
    """Return the meaning of a norm over groups of channels and all places of each sample."""
    is_gradient = call.op.base.endswith("_backward")
    image = call.inputs[1] if is_gradient else call.inputs[0]
    groups = call.number("group", 1)
    if image.rank < 2 or groups < 1 or image.shape[1] % groups:
        return None
    channels = Merged(("g", "c"))
    axes: Axes = ("n", channels, *(f"s{i}" for i in range(image.rank - 2)))
    by_rank: dict[int, Axes] = {2: ("n", "g"), 1: (channels,)}

    def of(tensor: Tensor) -> Axes:
        if tensor.shape == image.shape:
            return axes
        return by_rank.get(tensor.rank, (OPAQUE,) * tensor.rank)

    sizes: dict[ArgumentKey, Axis] = {("N", -1): "n", ("C", -1): channels, ("group", -1): "g"}
    return Meaning(
        operands=tuple(map(of, call.inputs)),
        results=tuple(Result(of(tensor)) for tensor in call.outputs),
        mixed=frozenset({"c", *map(str, axes[2:])}),
        linear=linear_sets(call, ("grad_out",)) if is_gradient else (),
        arguments={key: axis for key, axis in sizes.items() if key[0] in call.arguments},
        fixed=frozenset({"c"}),
        sizes={"c": image.shape[1] // groups},
        sizes_by_torch=True,
    )


def _declared(name: str, text: str, linear: Sequence[str] = ()) -> dict[str, Operator]:
    """Return the declaration of a part of a batch norm, whose axes a text states."""
    return operators(pattern(text, *linear), name, text=text)


OPERATORS = {
    **operators(
        _layer_norm,
        "layer_norm native_layer_norm native_layer_norm_backward _fused_rms_norm "
        "_fused_rms_norm_backward",
        text="*x d!, d!, d! -> *x d!, *x 1, *x 1",
    ),
    **operators(
        _batch_norm,
        "native_batch_norm native_batch_norm_backward cudnn_batch_norm cudnn_batch_norm_backward "
        "_native_batch_norm_legit batch_norm _batch_norm_with_update batch_norm_backward",
        text="n! c *s!, c, c, c, c -> n! c *s!, c, c",
        traits=[Trait.BATCH_NORM],
    ),
    **_declared("batch_norm_stats", "n! c *s! -> c, c"),
    **_declared("batch_norm_gather_stats_with_counts", "n! c *s!, r! c, r! c, c, c, r! -> c, c"),
    **_declared("batch_norm_elemt", "n c *s, c, c, c, c -> n c *s"),
    **_declared(
        "batch_norm_backward_reduce",
        "n c *s, n c *s, c, c, c -> c, c, c, c",
        linear=("grad_out",),
    ),
    **_declared(
        "batch_norm_backward_elemt",
        "n c *s, n c *s, c, c, c, c, c, r! -> n c *s",
        linear=("grad_out sum_dy sum_dy_xmu",),
    ),
    **operators(
        _group_norm,
        "native_group_norm native_group_norm_backward",
        text="n (g c!) *s!, (g c!), (g c!) -> n (g c!) *s!, n g, n g",
        traits=[Trait.CONTIGUOUS],
    ),
}
