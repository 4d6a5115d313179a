"""Views and copies in another form: the axes of a result are axes of the operand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import gcd
from typing import TypeAlias

from irgraph.ops.call import Call
from irgraph.ops.meaning import (
    ONE,
    OPAQUE,
    ArgumentKey,
    Axes,
    Axis,
    Joined,
    Meaning,
    Merged,
    Result,
)
from irgraph.ops.operator import operators
from irgraph.ops.patterns import Rule
from irgraph.ops.shapes import letters, replaced, without

AxisGroup: TypeAlias = tuple[Sequence[int], Sequence[int]]
"""Indices of axes before and after a reshape, with equal products of sizes."""


def view(axes_of: Callable[[Call, Axes], Axes]) -> Rule:
    """Return the rule of a view with one result, whose axes a function gives from the operand's."""

    def rule(call: Call) -> Meaning:
        axes = letters(call.inputs[0].rank)
        return view_meaning(axes, [axes_of(call, axes)] * len(call.outputs))

    return rule


def view_meaning(axes: Axes, results: Sequence[Axes], **facts: object) -> Meaning:
    """Return the meaning of a view of one operand: linear, and no letter is summed."""
    missing = {a for a in axes if isinstance(a, str)} - {a for r in results for a in _letters(r)}
    return Meaning(
        operands=(axes,),
        results=tuple(map(Result, results)),
        mixed=frozenset(missing),
        linear=(frozenset({0}),),
        **facts,  # type: ignore[arg-type]
    )


def _letters(axes: Axes) -> set[str]:
    return {
        letter for axis in axes for letter in ((axis,) if isinstance(axis, str) else axis.letters)
    }


def _unchanged(call: Call, axes: Axes) -> Axes:
    return axes


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


def _selected(call: Call, axes: Axes) -> Axes:
    return without(axes, {call.axis("dim", len(axes))})


def _unsqueezed(call: Call, axes: Axes) -> Axes:
    index = call.axis("dim", len(axes) + 1)
    return (*axes[:index], ONE, *axes[index:])


def _squeezed(call: Call, axes: Axes) -> Axes:
    shape = call.inputs[0].shape
    chosen = call.axes("dim", len(axes))
    return without(axes, (i for i in chosen if shape[i] == 1))


def _expanded(call: Call) -> Meaning:
    """Return the meaning of ``expand``: axes of one element repeat, others stay."""
    operand, result = call.inputs[0], call.outputs[0]
    first = result.rank - operand.rank
    axes: list[Axis] = []
    arguments: dict[ArgumentKey, Axis] = {}
    sizes = call.numbers("size")
    for index, size in enumerate(result.shape):
        is_kept = index >= first and operand.shape[index - first] == size
        axis = f"d{index - first}" if is_kept else f"n{index}"
        axes.append(axis)
        if index < len(sizes) and sizes[index] == size:
            arguments["size", index] = axis
    operand_axes = tuple(f"d{i}" if f"d{i}" in axes else ONE for i in range(operand.rank))
    return Meaning(
        operands=(operand_axes,),
        results=(Result(tuple(axes)),),
        linear=(frozenset({0}),),
        arguments=arguments,
    )


SIZE_ARGUMENTS = ("size", "shape", "sizes")


def _reshaped(call: Call) -> Meaning:
    """Return the meaning of a reshape: runs of axes with equal products are split and merged."""
    operand = call.inputs[0]
    # a reshape that changes nothing returns its operand
    result = call.outputs[0] if call.outputs else operand
    groups = equal_size_groups(operand.shape, result.shape)
    before, after = reshaped_axes(operand.shape, result.shape, groups)
    arguments: dict[ArgumentKey, Axis] = {}
    for name in SIZE_ARGUMENTS:
        for index, size in enumerate(call.numbers(name)[: result.rank]):
            if size >= 0:
                arguments[name, index] = after[index]
    return Meaning(
        operands=(before,),
        results=(Result(after),) * len(call.outputs),
        mixed=frozenset(letter for letter in _letters((*before, *after)) if letter.startswith("r")),
        linear=(frozenset({0}),),
        arguments=arguments,
        groups=tuple((tuple(ins), tuple(outs)) for ins, outs in groups),
    )


def reshaped_axes(
    before: Sequence[int], after: Sequence[int], groups: Sequence[AxisGroup]
) -> tuple[Axes, Axes]:
    """Return the axes of an operand and of its reshaped form.

    An axis that both have is a letter; one that is split or merged is ``(a b)``. Letters that
    begin with ``r`` are rests that do not divide each other, as 2 and 3 of ``[4, 6] -> [6, 4]``.
    """
    operand: list[list[str]] = [[] for _ in before]
    result: list[list[str]] = [[] for _ in after]
    for number, (ins, outs) in enumerate(groups):
        if len(ins) == len(outs) == 1:
            operand[ins[0]] = result[outs[0]] = [f"g{number}"]
            continue
        left = [_Factors(before[i], operand[i]) for i in ins if before[i] != 1]
        right = [_Factors(after[i], result[i]) for i in outs if after[i] != 1]
        _factorize(f"g{number}", left, right)
    return tuple(map(_axis, operand)), tuple(map(_axis, result))


def _axis(names: Sequence[str]) -> Axis:
    if not names:
        return ONE
    return names[0] if len(names) == 1 else Merged(tuple(names))


@dataclass
class _Factors:
    """The size of an axis that has no letter yet, and the letters that it has, slowest first."""

    rest: int
    letters: list[str]


def _factorize(group: str, left: list[_Factors], right: list[_Factors]) -> None:
    """Append the letters that two lists of axes share, as long as their sizes divide."""
    i = j = count = 0
    while i < len(left) and j < len(right):
        common = gcd(left[i].rest, right[j].rest)
        if common == 1:
            break
        for axis in (left[i], right[j]):
            axis.letters.append(f"{group}_{count}")
            axis.rest //= common
        count += 1
        i += left[i].rest == 1
        j += right[j].rest == 1
    for number, axis in enumerate((*left[i:], *right[j:])):
        axis.letters.append(f"r{group}_{number}")


def equal_size_groups(a: Sequence[int], b: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Return the smallest runs of axes of two shapes with equal products of sizes."""
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(a) or j < len(b):
        before = [i] if i < len(a) else []
        after = [j] if j < len(b) else []
        before_size, after_size = _product(a, before), _product(b, after)
        i, j = i + len(before), j + len(after)
        while before_size != after_size and (i < len(a) or j < len(b)):
            if (before_size < after_size and i < len(a)) or j >= len(b):
                before.append(i)
                i += 1
            else:
                after.append(j)
                j += 1
            before_size, after_size = _product(a, before), _product(b, after)
        groups.append((before, after))
    return _merge_unit_axes(groups)


def _merge_unit_axes(
    groups: list[tuple[list[int], list[int]]],
) -> list[tuple[list[int], list[int]]]:
    """Join lone axes of size 1 to the group before them."""
    result: list[tuple[list[int], list[int]]] = []
    for before, after in groups:
        if result and not (before and after):
            result[-1] = (result[-1][0] + before, result[-1][1] + after)
        else:
            result.append((before, after))
    return result


def _product(shape: Sequence[int], axes: Sequence[int]) -> int:
    product = 1
    for i in axes:
        product *= shape[i]
    return product


def _sliced(call: Call) -> Meaning:
    """Return the meaning of ``slice`` and ``narrow``: one axis is a piece of the operand's."""
    operand, result = call.inputs[0], call.outputs[0]
    axes = letters(operand.rank)
    index = call.axis("dim", operand.rank)
    if operand.rank and operand.shape[index] == result.shape[index]:
        return view_meaning(axes, [axes])
    return view_meaning(axes, [replaced(axes, index, "piece")])


def _split(call: Call) -> Meaning:
    """Return the meaning of ``split``: the pieces join to the operand's axis."""
    rank = call.inputs[0].rank
    index = call.axis("dim", rank)
    size = call.number("split_size", -1)
    pieces = [
        "piece" if result.shape[index] == size else f"piece{number}"
        for number, result in enumerate(call.outputs)
    ]
    axes = letters(rank)
    operand = (*axes[:index], Joined(tuple(pieces)), *axes[index + 1 :])
    arguments: dict[ArgumentKey, Axis] = {("split_size", -1): "piece"} if size >= 0 else {}
    for number in range(len(call.numbers("split_sizes"))):
        arguments["split_sizes", number] = pieces[number]
    return view_meaning(operand, [replaced(axes, index, p) for p in pieces], arguments=arguments)


def _joined(call: Call) -> Meaning | None:
    """Return the meaning of ``cat``: the pieces join to the result's axis."""
    result = call.outputs[0]
    index = call.axis("dim", result.rank)
    axes = letters(result.rank)
    operands: list[Axes] = []
    pieces: list[str] = []
    for number, tensor in enumerate(call.inputs):
        if tensor.rank != result.rank:
            # torch accepts an empty tensor of one axis and leaves it out
            operands.append((OPAQUE,) * tensor.rank)
            continue
        pieces.append(f"piece{number}")
        operands.append(replaced(axes, index, pieces[-1]))
    joined = (*axes[:index], Joined(tuple(pieces)), *axes[index + 1 :])
    return Meaning(
        operands=tuple(operands),
        results=(Result(joined),),
        linear=(frozenset(range(len(operands))),),
    )


def _stacked(call: Call) -> Meaning:
    """Return the meaning of ``stack``: a new axis has an element for each operand."""
    rank = call.inputs[0].rank
    index = call.axis("dim", rank + 1)
    axes = letters(rank)
    return Meaning(
        operands=(axes,) * len(call.inputs),
        results=(Result((*axes[:index], OPAQUE, *axes[index:])),),
        linear=(frozenset(range(len(call.inputs))),),
    )


OPERATORS = {
    **operators(view(_unchanged), "detach alias view_as lift_fresh positive", text="* -> *"),
    **operators(view(_reversed), "t numpy_T", text="a b -> b a"),
    **operators(view(_transposed), "transpose swapaxes transpose_"),
    **operators(view(_permuted), "permute"),
    **operators(view(_selected), "select unbind"),
    **operators(view(_unsqueezed), "unsqueeze unsqueeze_"),
    **operators(view(_squeezed), "squeeze squeeze_"),
    **operators(_expanded, "expand"),
    **operators(_reshaped, "view _unsafe_view reshape _reshape_alias flatten unflatten"),
    **operators(_sliced, "slice narrow"),
    **operators(_split, "split split_with_sizes chunk"),
    **operators(_joined, "cat concat"),
    **operators(_stacked, "stack"),
}
