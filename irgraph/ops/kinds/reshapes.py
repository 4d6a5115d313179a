"""Reshapes: axes of the operand are split and merged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import gcd, prod

from irgraph.ir.tensor import Shape
from irgraph.ops.call import Call
from irgraph.ops.meaning import IN_FIRST, ONE, Arguments, Axis, AxisGroup, Meaning, Merged
from irgraph.ops.operator import Trait, operators
from irgraph.ops.patterns import new_results

SIZE_ARGUMENTS = ("size", "shape")
"""Arguments that are the shape of the result."""


def _reshaped(call: Call) -> Meaning | None:
    """Return the meaning of a reshape: runs of axes with equal products are split and merged."""
    operand = call.inputs[0]
    shape = _target_shape(call)
    if prod(shape) != prod(operand.shape) or call.arguments.get("dtype") is not None:
        return None
    groups = equal_size_groups(operand.shape, shape)
    letters = _Letters(operand.shape, shape, groups)
    names = frozenset(letters.sizes)
    result = tuple(map(_axis, letters.after))
    arguments: Arguments = {}
    for name in SIZE_ARGUMENTS:
        for index, size in enumerate(call.numbers(name)):
            if size >= 0:
                arguments[name, index] = result[index]
    return Meaning(
        operands=(tuple(map(_axis, letters.before)),),
        results=new_results(call, result),
        mixed=frozenset(name for name in names if name.startswith("r")),
        linear=IN_FIRST,
        arguments=arguments,
        groups=tuple(groups),
        sizes=letters.sizes,
        bounded=names,
    )


def _target_shape(call: Call) -> Shape:
    """Return the shape that the arguments demand, without them the shape of the result."""
    shape = call.inputs[0].shape
    for name in SIZE_ARGUMENTS:
        if name in call.arguments:
            return _without_unknown(call.numbers(name), prod(shape))
    rank = len(shape)
    if call.op.base == "flatten" and rank:
        first = call.axis("start_dim", rank)
        end = call.axis("end_dim", rank, -1) + 1
        merged = prod(shape[first:end])
        return (*shape[:first], merged, *shape[end:])
    # a reshape that changes nothing returns its operand
    return call.outputs[0].shape if call.outputs else shape


def _without_unknown(sizes: Shape, total: int) -> Shape:
    """Return sizes whose product is a number, of which -1 is one that follows from the others."""
    explicit = prod(size for size in sizes if size >= 0)
    unknown = total // (explicit or 1)
    return tuple(size if size >= 0 else unknown for size in sizes)


def _axis(names: Sequence[str]) -> Axis:
    if not names:
        return ONE
    return names[0] if len(names) == 1 else Merged(tuple(names))


@dataclass
class _Factors:
    """The size of an axis that has no letter yet, and the letters that it has, slowest first."""

    rest: int
    letters: list[str]


def _factors(shape: Shape, letters: list[list[str]], axes: Shape) -> list[_Factors]:
    """Return the sizes and letters of some axes, except axes of one element."""
    factors: list[_Factors] = []
    for axis in axes:
        if shape[axis] != 1:
            factors.append(_Factors(shape[axis], letters[axis]))
    return factors


class _Letters:
    """The letters of the axes of an operand and of its reshaped form, and their sizes.

    An axis that both have is a letter; one that is split or merged has several. Letters that begin
    with ``r`` are rests that do not divide each other, as 2 and 3 of ``[4, 6] -> [6, 4]``.
    """

    def __init__(
        self,
        before: Shape,
        after: Shape,
        groups: Sequence[AxisGroup],
    ) -> None:
        self.sizes: dict[str, int] = {}
        self.before: list[list[str]] = [[] for _ in before]
        self.after: list[list[str]] = [[] for _ in after]
        for number, (ins, outs) in enumerate(groups):
            name = f"g{number}"
            if len(ins) == len(outs) == 1:
                self.before[ins[0]] = self.after[outs[0]] = [name]
                self.sizes[name] = before[ins[0]]
                continue
            self._factorize(
                name,
                _factors(before, self.before, ins),
                _factors(after, self.after, outs),
            )

    def _factorize(
        self,
        group: str,
        left: list[_Factors],
        right: list[_Factors],
    ) -> None:
        """Assign letters to axes with equal products, as long as their sizes divide."""
        i = j = count = 0
        while i < len(left) and j < len(right):
            common = gcd(left[i].rest, right[j].rest)
            if common in (0, 1):
                break
            for axis in (left[i], right[j]):
                self._add(axis, f"{group}_{count}", common)
            count += 1
            i += left[i].rest == 1
            j += right[j].rest == 1
        for number, axis in enumerate((*left[i:], *right[j:])):
            self._add(axis, f"r{group}_{number}", axis.rest)

    def _add(self, axis: _Factors, letter: str, size: int) -> None:
        self.sizes[letter] = size
        axis.letters.append(letter)
        axis.rest //= size or 1


@dataclass
class _AxisRun:
    """A run of axes of one shape, from an index on, and the product of their sizes."""

    shape: Shape
    start: int
    axes: list[int] = field(default_factory=list)
    size: int = 1

    @property
    def end(self) -> int:
        """The index of the first axis behind the run."""
        return self.start + len(self.axes)

    @property
    def can_grow(self) -> bool:
        """Whether there is an axis behind the run."""
        return self.end < len(self.shape)

    def grow(self) -> None:
        """Add an axis if there is one."""
        if self.can_grow:
            self.size *= self.shape[self.end]
            self.axes.append(self.end)


def equal_size_groups(a: Shape, b: Shape) -> list[AxisGroup]:
    """Return the smallest runs of axes of two shapes with equal products of sizes."""
    groups: list[AxisGroup] = []
    before, after = _AxisRun(a, 0), _AxisRun(b, 0)
    while before.can_grow or after.can_grow:
        before = _AxisRun(a, before.end)
        after = _AxisRun(b, after.end)
        before.grow()
        after.grow()
        while before.size != after.size and (before.can_grow or after.can_grow):
            is_shorter = before.size < after.size and before.can_grow
            run = before if is_shorter or not after.can_grow else after
            run.grow()
        groups.append((tuple(before.axes), tuple(after.axes)))
    return _merge_unit_axes(groups)


def _merge_unit_axes(groups: Sequence[AxisGroup]) -> list[AxisGroup]:
    """Join lone axes of size 1 to the group before them."""
    merged: list[AxisGroup] = []
    for before, after in groups:
        is_lone = not before or not after
        if merged and is_lone:
            last_before, last_after = merged.pop()
            before = last_before + before
            after = last_after + after
        merged.append((before, after))
    return merged


RESHAPE = "(a b) c -> a (b c)"

OPERATORS = {
    **operators(
        _reshaped, "view _unsafe_view _reshape_alias view_copy _reshape_copy", text=RESHAPE
    ),
    **operators(_reshaped, "flatten", text=RESHAPE, traits=[Trait.VIEW_OR_COPY]),
    **operators(
        _reshaped,
        "reshape",
        text=RESHAPE,
        traits=[Trait.VIEW_OR_COPY, Trait.COPY_KERNEL],
    ),
}
