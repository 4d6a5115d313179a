"""Reshapes: axes of the operand are split and merged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd, prod
from typing import TypeAlias

from irgraph.ops.call import Call
from irgraph.ops.meaning import ONE, ArgumentKey, Axes, Axis, Meaning, Merged, Result, letters_of
from irgraph.ops.operator import Trait, operators

Shape: TypeAlias = Sequence[int]

AxisGroup: TypeAlias = tuple[Sequence[int], Sequence[int]]
"""Indices of axes before and after a reshape, with equal products of sizes."""

SIZE_ARGUMENTS = ("size", "shape")
"""Arguments that are the shape of the result."""


def _reshaped(call: Call) -> Meaning | None:
    """Return the meaning of a reshape: runs of axes with equal products are split and merged."""
    operand = call.inputs[0]
    shape = _target_shape(call)
    if prod(shape) != prod(operand.shape) or call.arguments.get("dtype") is not None:
        return None
    groups = equal_size_groups(operand.shape, shape)
    before, after, sizes = reshaped_axes(operand.shape, shape, groups)
    arguments: dict[ArgumentKey, Axis] = {}
    for name in SIZE_ARGUMENTS:
        for index, size in enumerate(call.numbers(name)):
            if size >= 0:
                arguments[name, index] = after[index]
    letters = {letter for axis in (*before, *after) for letter in letters_of(axis)}
    return Meaning(
        operands=(before,),
        results=(Result(after),) * len(call.outputs),
        mixed=frozenset(letter for letter in letters if letter.startswith("r")),
        linear=(frozenset({0}),),
        arguments=arguments,
        groups=tuple((tuple(ins), tuple(outs)) for ins, outs in groups),
        sizes=sizes,
        bounded=frozenset(letters),
    )


def _target_shape(call: Call) -> Shape:
    """Return the shape that the arguments demand, without them the shape of the result."""
    shape = call.inputs[0].shape
    for name in SIZE_ARGUMENTS:
        if name in call.arguments:
            return _without_unknown(call.numbers(name), prod(shape))
    rank = len(shape)
    if call.op.base == "flatten" and rank:
        first, last = call.axis("start_dim", rank), call.axis("end_dim", rank, -1)
        return (*shape[:first], prod(shape[first : last + 1]), *shape[last + 1 :])
    # a reshape that changes nothing returns its operand
    return call.outputs[0].shape if call.outputs else shape


def _without_unknown(sizes: Sequence[int], total: int) -> Shape:
    """Return sizes whose product is a number, of which -1 is one that follows from the others."""
    explicit = prod(size for size in sizes if size >= 0)
    return tuple(size if size >= 0 else total // (explicit or 1) for size in sizes)


def reshaped_axes(
    before: Shape, after: Shape, groups: Sequence[AxisGroup]
) -> tuple[Axes, Axes, dict[str, int]]:
    """Return the axes of an operand and of its reshaped form, and the sizes of their letters.

    An axis that both have is a letter; one that is split or merged is ``(a b)``. Letters that
    begin with ``r`` are rests that do not divide each other, as 2 and 3 of ``[4, 6] -> [6, 4]``.
    """
    sizes: dict[str, int] = {}
    operand: list[list[str]] = [[] for _ in before]
    result: list[list[str]] = [[] for _ in after]
    for number, (ins, outs) in enumerate(groups):
        if len(ins) == len(outs) == 1:
            operand[ins[0]] = result[outs[0]] = [f"g{number}"]
            sizes[f"g{number}"] = before[ins[0]]
            continue
        left = [_Factors(before[i], operand[i]) for i in ins if before[i] != 1]
        right = [_Factors(after[i], result[i]) for i in outs if after[i] != 1]
        _factorize(f"g{number}", left, right, sizes)
    return tuple(map(_axis, operand)), tuple(map(_axis, result)), sizes


def _axis(names: Sequence[str]) -> Axis:
    if not names:
        return ONE
    return names[0] if len(names) == 1 else Merged(tuple(names))


@dataclass
class _Factors:
    """The size of an axis that has no letter yet, and the letters that it has, slowest first."""

    rest: int
    letters: list[str]


def _factorize(
    group: str, left: list[_Factors], right: list[_Factors], sizes: dict[str, int]
) -> None:
    """Assign letters to two lists of axes with equal products, as long as their sizes divide."""
    i = j = count = 0
    while i < len(left) and j < len(right):
        common = gcd(left[i].rest, right[j].rest)
        if common in (0, 1):
            break
        letter = f"{group}_{count}"
        sizes[letter] = common
        for axis in (left[i], right[j]):
            axis.letters.append(letter)
            axis.rest //= common
        count += 1
        i += left[i].rest == 1
        j += right[j].rest == 1
    for number, axis in enumerate((*left[i:], *right[j:])):
        letter = f"r{group}_{number}"
        sizes[letter] = axis.rest
        axis.letters.append(letter)


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


RESHAPE = "(a b) c -> a (b c)"

OPERATORS = {
    **operators(
        _reshaped, "view _unsafe_view _reshape_alias view_copy _reshape_copy", text=RESHAPE
    ),
    **operators(_reshaped, "reshape flatten", text=RESHAPE, traits=[Trait.VIEW_OR_COPY]),
}
