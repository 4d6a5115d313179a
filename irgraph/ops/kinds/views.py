"""Views and copies in another form: the axes of a result are axes of the operand."""

from __future__ import annotations

from irgraph.ops.call import Call
from irgraph.ops.meaning import IN_FIRST, ONE, Arguments, Axes, Axis, Meaning, Multiple
from irgraph.ops.operator import operators
from irgraph.ops.patterns import new_results, view, view_meaning
from irgraph.ops.shapes import letters, with_ones, without


def _unchanged(call: Call, axes: Axes) -> Axes:
    return axes


def _turned(call: Call) -> Meaning | None:
    """Return the meaning of ``t``: two axes change places."""
    axes = letters(call.inputs[0].rank)
    if len(axes) > 2:
        return None
    return view_meaning(axes, [axes[::-1]] * len(call.outputs))


def _reversed(call: Call, axes: Axes) -> Axes:
    return axes[::-1]


def _transposed(call: Call, axes: Axes) -> Axes:
    word = "dim" if "dim0" in call.arguments else "axis"
    first = call.axis(f"{word}0", len(axes))
    second = call.axis(f"{word}1", len(axes))
    order = list(axes)
    if order:
        order[first] = axes[second]
        order[second] = axes[first]
    return tuple(order)


def _permuted(call: Call, axes: Axes) -> Axes:
    indices = call.axes("dims", len(axes))
    return tuple(axes[index] for index in indices)


def _unsqueezed(call: Call, axes: Axes) -> Axes:
    index = call.axis("dim", len(axes) + 1)
    before, after = axes[:index], axes[index:]
    return (*before, ONE, *after)


def _squeezed(call: Call) -> Meaning:
    """Return the meaning of ``squeeze``: axes of one element are dropped."""
    shape = call.inputs[0].shape
    rank = len(shape)
    chosen = call.axes("dim", rank)
    removed = {index for index in chosen if shape[index] == 1}
    is_removed = [index in removed for index in range(rank)]
    axes = with_ones(letters(rank), is_removed)
    return view_meaning(axes, [without(axes, removed)] * len(call.outputs))


class _Expansion:
    """The axes of an expanded operand and of its result.

    Attributes:
        operand: the operand's axes.
        result: the result's axes.
        copies: letters of axes of one element, and of their copies, which follow them.
        single: letters of axes of one element.
    """

    def __init__(self, rank: int) -> None:
        self.operand: list[Axis] = [ONE] * rank
        self.result: list[str] = []
        self.copies: list[Multiple] = []
        self.single: set[str] = set()

    def add(self, source: int, size: int, is_same: bool) -> None:
        """Add an axis of the result, and the index of the operand's axis in its position."""
        letter = f"d{source}"
        new_letter = f"n{len(self.result)}"
        if is_same:
            self.operand[source] = letter
        if size == 1:
            self.single |= {letter, new_letter}
        if is_same and size == 1:
            # one element may be repeated alone, and its repetition follows the operand
            self.copies.append((letter, new_letter, 1))
        self.result.append(letter if is_same and size != 1 else new_letter)


def _expanded(call: Call) -> Meaning | None:
    """Return the meaning of ``expand``: axes of one element repeat, others stay."""
    operand = call.inputs[0]
    sizes = call.numbers("size")
    if not sizes and call.outputs:
        # a recording without arguments has the shape of its result
        sizes = call.outputs[0].shape
    first = len(sizes) - operand.rank
    if first < 0 or min(sizes[:first], default=0) < 0:
        return None
    expansion = _Expansion(operand.rank)
    arguments: Arguments = {}
    for index, size in enumerate(sizes):
        source = index - first
        is_same = source >= 0 and (size == -1 or size == operand.shape[source])
        expansion.add(source, size, is_same)
        if size >= 0 and "size" in call.arguments:
            arguments["size", index] = expansion.result[-1]
    single = frozenset(expansion.single)
    return Meaning(
        operands=(tuple(expansion.operand),),
        results=new_results(call, tuple(expansion.result)),
        mixed=single,
        linear=IN_FIRST,
        arguments=arguments,
        multiples=tuple(expansion.copies),
        bounded=single,
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
