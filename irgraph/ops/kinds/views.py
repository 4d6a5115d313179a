"""Views and copies in another form: the axes of a result are axes of the operand."""

from __future__ import annotations

from irgraph.ops.call import Call
from irgraph.ops.meaning import ONE, ArgumentKey, Axes, Axis, Meaning, Result
from irgraph.ops.operator import operators
from irgraph.ops.patterns import view, view_meaning
from irgraph.ops.shapes import letters, without


def _unchanged(call: Call, axes: Axes) -> Axes:
    return axes


def _turned(call: Call) -> Meaning | None:
    """Return the meaning of ``t``: two axes change places."""
    axes = letters(call.inputs[0].rank)
    return view_meaning(axes, [axes[::-1]] * len(call.outputs)) if len(axes) <= 2 else None


def _reversed(call: Call, axes: Axes) -> Axes:
    return axes[::-1]


def _transposed(call: Call, axes: Axes) -> Axes:
    names = ("dim0", "dim1") if "dim0" in call.arguments else ("axis0", "axis1")
    first, second = (call.axis(name, len(axes)) for name in names)
    order = list(axes)
    if order:
        order[first], order[second] = order[second], order[first]
    return tuple(order)


def _permuted(call: Call, axes: Axes) -> Axes:
    return tuple(axes[i] for i in call.axes("dims", len(axes))) if axes else axes


def _unsqueezed(call: Call, axes: Axes) -> Axes:
    index = call.axis("dim", len(axes) + 1)
    return (*axes[:index], ONE, *axes[index:])


def _squeezed(call: Call) -> Meaning:
    """Return the meaning of ``squeeze``: axes of one element are dropped."""
    shape = call.inputs[0].shape
    removed = [i for i in call.axes("dim", len(shape)) if shape[i] == 1]
    axes: Axes = tuple(ONE if i in removed else f"d{i}" for i in range(len(shape)))
    return view_meaning(axes, [without(axes, removed)] * len(call.outputs))


def _expanded(call: Call) -> Meaning | None:
    """Return the meaning of ``expand``: axes of one element repeat, others stay."""
    operand = call.inputs[0]
    # a recording without arguments has the shape of its result
    sizes = call.numbers("size") or (call.outputs[0].shape if call.outputs else ())
    first = len(sizes) - operand.rank
    if first < 0 or min(sizes[:first], default=0) < 0:
        return None
    axes: list[Axis] = []
    arguments: dict[ArgumentKey, Axis] = {}
    follows: list[tuple[str, str, int]] = []
    single: set[str] = set()
    operand_axes: list[Axis] = [ONE] * operand.rank
    for index, size in enumerate(sizes):
        is_kept = index >= first and size in (-1, operand.shape[index - first])
        axis = f"d{index - first}" if is_kept else f"n{index}"
        if is_kept:
            operand_axes[index - first] = axis
        if is_kept and size == 1:
            # one element may be repeated alone, and its repetition follows the operand
            axis = f"n{index}"
            follows.append((f"d{index - first}", axis, 1))
        if size == 1:
            single |= {axis, f"d{index - first}"}
        axes.append(axis)
        if size >= 0 and "size" in call.arguments:
            arguments["size", index] = axis
    return Meaning(
        operands=(tuple(operand_axes),),
        results=(Result(tuple(axes)),) * len(call.outputs),
        mixed=frozenset(single),
        linear=(frozenset({0}),),
        arguments=arguments,
        multiples=tuple(follows),
        bounded=frozenset(single),
    )


OPERATORS = {
    **operators(
        view(_unchanged),
        "detach alias lift_fresh positive detach_copy alias_copy lift",
        text="*x -> *x",
    ),
    **operators(_turned, "t t_copy", text="a b -> b a"),
    **operators(view(_reversed), "numpy_T"),
    **operators(view(_transposed), "transpose swapaxes swapdims transpose_ transpose_copy"),
    **operators(view(_permuted), "permute permute_copy"),
    **operators(view(_unsqueezed), "unsqueeze unsqueeze_ unsqueeze_copy"),
    **operators(_squeezed, "squeeze squeeze_ squeeze_copy"),
    **operators(_expanded, "expand expand_copy"),
}
