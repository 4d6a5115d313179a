"""Rules of declarations whose axes do not depend on other arguments than the tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from irgraph.ir.schema import resolve
from irgraph.ir.tensor import Tensor
from irgraph.ops.call import Call
from irgraph.ops.meaning import (
    IN_FIRST,
    ONE,
    Axes,
    Letters,
    LinearSets,
    Meaning,
    Piece,
    Result,
    letters_in,
)
from irgraph.ops.notation import expand, is_repeated, parse
from irgraph.ops.shapes import letters

Rule: TypeAlias = Callable[[Call], "Meaning | None"]
"""Returns the meaning of a call, ``None`` if it has none that a declaration can state."""

Counts: TypeAlias = dict[str, int]
"""The number of axes of each ``*x``."""


def pattern(
    text: str,
    *linear: str,
    reads: Sequence[str] = (),
) -> Rule:
    """Return the rule of a text.

    Args:
        text: axes of the schema's tensor arguments, in order; absent arguments are left out.
        linear: each a set of argument names, separated by blanks, in which the results are linear.
        reads: for each result the argument names that it is a function of (default: all).
    """
    declaration = parse(text)

    def rule(call: Call) -> Meaning | None:
        counts: Counts = {}
        operands = _operands(call, declaration.operands, counts)
        axes_of_results = _results(call, declaration.results, counts)
        if operands is None or axes_of_results is None:
            return None
        results = [Result(axes) for axes in axes_of_results]
        if reads:
            sources = (call.positions(*names.split()) for names in reads)
            results = list(map(Result, axes_of_results, sources))
        return Meaning(
            operands=tuple(operands),
            results=tuple(results),
            mixed=mixed_letters(declaration.mixed, counts),
            linear=linear_sets(call, linear),
        )

    return rule


def view(axes_of: Callable[[Call, Axes], Axes]) -> Rule:
    """Return the rule of a view with one result, whose axes a function gives from the operand's."""

    def rule(call: Call) -> Meaning:
        axes = letters(call.inputs[0].rank)
        result = axes_of(call, axes)
        return view_meaning(axes, [result] * len(call.outputs))

    return rule


def view_meaning(
    axes: Axes,
    results: Sequence[Axes],
    *,
    pieces: Sequence[Piece] = (),
    **facts: object,
) -> Meaning:
    """Return the meaning of a view of one operand: linear, and no letter is summed.

    ``pieces`` has the part of the operand that each result shows; by default all of it.
    """
    whole_axes = {axis for axis in axes if isinstance(axis, str)}
    missing = whole_axes.difference(letters_in(*results), {ONE})
    shown: Sequence[Piece | None] = pieces or [None] * len(results)
    pairs = zip(results, shown, strict=True)
    return Meaning(
        operands=(axes,),
        results=tuple(Result(result, piece=piece) for result, piece in pairs),
        mixed=frozenset(missing),
        linear=IN_FIRST,
        rearranges=True,
        **facts,  # type: ignore[arg-type]
    )


def new_results(call: Call, axes: Axes) -> tuple[Result, ...]:
    """Return a result with the same axes for each new tensor of a call."""
    return (Result(axes),) * len(call.outputs)


def all_results(call: Call, axes: Axes) -> tuple[Result, ...]:
    """Return a result with the same axes for each new tensor and each operand that is written."""
    count = len(call.outputs) + len(call.written)
    return (Result(axes),) * count


def tensor_names(call: Call) -> list[str]:
    """Return the names of the schema's tensor arguments, absent ones included, in order."""
    schema = resolve(call.op)
    if schema is not None:
        return [argument.name for argument in schema.arguments if argument.is_tensor]
    arguments = call.arguments.items()
    return [name for name, value in arguments if isinstance(value, Tensor)]


def _operands(
    call: Call,
    declared: Sequence[Axes],
    counts: Counts,
) -> list[Axes] | None:
    """Return the axes of the operands; ``None`` if they differ from the declared ones in rank."""
    operands: list[Axes] = []
    for name, axes in zip(tensor_names(call), declared, strict=False):
        tensor = call.tensor(name)
        if tensor is None:
            continue
        expanded = expand(axes, tensor.rank, counts)
        if expanded is None:
            return None
        operands.append(expanded)
    return operands if len(operands) == len(call.inputs) else None


def _results(
    call: Call,
    declared: Sequence[Axes],
    counts: Counts,
) -> list[Axes] | None:
    """Return the axes of the new tensors; ``None`` if their ranks differ from the declared ones."""
    results: list[Axes] = []
    for axes, result in zip(declared, call.op.results, strict=False):
        if not isinstance(result, Tensor):
            continue
        expanded = expand(axes, result.rank, counts)
        if expanded is None:
            return None
        results.append(expanded)
    return results if len(results) == len(call.outputs) else None


def mixed_letters(declared: Letters, counts: Counts) -> Letters:
    """Return the mixed letters of a declaration, ``*x`` expanded."""
    mixed: set[str] = set()
    for letter in declared:
        if is_repeated(letter):
            count = counts.get(letter, 0)
            mixed.update(letters(count, letter[1:]))
        else:
            mixed.add(letter)
    return frozenset(mixed)


def linear_sets(call: Call, sets: Sequence[str]) -> LinearSets:
    """Return sets of argument names as sets of positions among the inputs."""
    positions = [call.positions(*names.split()) for names in sets]
    return tuple(dict.fromkeys(filter(None, positions)))
