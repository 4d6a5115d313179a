"""Rules of declarations whose axes do not depend on other arguments than the tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from irgraph.ir.schema import resolve
from irgraph.ir.tensor import Tensor
from irgraph.ops.call import Call
from irgraph.ops.meaning import ONE, OPAQUE, Axes, Meaning, Piece, Result, letters_of
from irgraph.ops.notation import expand, is_repeated, parse
from irgraph.ops.shapes import letters

Rule: TypeAlias = Callable[[Call], "Meaning | None"]
"""Returns the meaning of a call, ``None`` if it has none that a declaration can state."""


def pattern(text: str, *linear: str, reads: Sequence[str] = ()) -> Rule:
    """Return the rule of a text.

    Args:
        text: axes of the schema's tensor arguments, in order; absent arguments are left out.
        linear: each a set of argument names, separated by blanks, in which the results are linear.
        reads: for each result the argument names that it is a function of (default: all).
    """
    declaration = parse(text)

    def rule(call: Call) -> Meaning | None:
        names = tensor_names(call)
        counts: dict[str, int] = {}
        operands: list[Axes] = []
        for name, axes in zip(names, declaration.operands, strict=False):
            tensor = call.tensor(name)
            if tensor is None:
                continue
            expanded = expand(axes, tensor.rank, counts)
            if expanded is None:
                return None
            operands.append(expanded)
        results = _results(call, declaration.results, counts)
        if results is None or len(operands) != len(call.inputs):
            return None
        return Meaning(
            operands=tuple(operands),
            results=tuple(
                Result(axes, _indices(call, reads[i]) if reads else None)
                for i, axes in enumerate(results)
            ),
            mixed=mixed_letters(declaration.mixed, counts),
            linear=linear_sets(call, linear),
        )

    return rule


def view(axes_of: Callable[[Call, Axes], Axes]) -> Rule:
    """Return the rule of a view with one result, whose axes a function gives from the operand's."""

    def rule(call: Call) -> Meaning:
        axes = letters(call.inputs[0].rank)
        return view_meaning(axes, [axes_of(call, axes)] * len(call.outputs))

    return rule


def view_meaning(
    axes: Axes, results: Sequence[Axes], *, pieces: Sequence[Piece] = (), **facts: object
) -> Meaning:
    """Return the meaning of a view of one operand: linear, and no letter is summed.

    ``pieces`` has the part of the operand that each result shows; by default all of it.
    """
    remaining = {letter for result in results for axis in result for letter in letters_of(axis)}
    missing = {axis for axis in axes if isinstance(axis, str)} - remaining - {ONE}
    shown = pieces or (None,) * len(results)
    return Meaning(
        operands=(axes,),
        results=tuple(Result(a, None, p) for a, p in zip(results, shown, strict=True)),
        mixed=frozenset(missing),
        linear=(frozenset({0}),),
        rearranges=True,
        **facts,  # type: ignore[arg-type]
    )


def tensor_names(call: Call) -> list[str]:
    """Return the names of the schema's tensor arguments, absent ones included, in order."""
    schema = resolve(call.op)
    if schema is None:
        return [name for name, value in call.arguments.items() if isinstance(value, Tensor)]
    return [argument.name for argument in schema.arguments if argument.is_tensor]


def _results(call: Call, declared: Sequence[Axes], counts: dict[str, int]) -> list[Axes] | None:
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


def mixed_letters(declared: frozenset[str], counts: dict[str, int]) -> frozenset[str]:
    """Return the mixed letters of a declaration, ``*x`` expanded."""
    letters: set[str] = set()
    for letter in declared:
        if is_repeated(letter):
            letters |= {f"{letter[1:]}{i}" for i in range(counts.get(letter, 0))}
        else:
            letters.add(letter)
    return frozenset(letters)


def linear_sets(call: Call, sets: Sequence[str]) -> tuple[frozenset[int], ...]:
    """Return sets of argument names as sets of positions among the inputs."""
    positions = (_indices(call, names) for names in sets)
    return tuple(dict.fromkeys(indices for indices in positions if indices))


def _indices(call: Call, names: str) -> frozenset[int]:
    spans = (call.spans.get(name, range(0)) for name in names.split())
    return frozenset(position for span in spans for position in span)


def opaque(tensor: Tensor) -> Axes:
    """Return the axes of a tensor of which nothing is known."""
    return (OPAQUE,) * tensor.rank
