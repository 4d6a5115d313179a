"""Aligns the holes of an op pattern with the arguments and results of an op."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from irgraph.ir.op import Op, Value
from irgraph.ir.tensor import Tensor
from irgraph.language.expressions.nodes import Splat
from irgraph.language.expressions.values import format_count, spell
from irgraph.language.patterns.arguments import PassedArgument, has_no_effect
from irgraph.language.patterns.index import Index
from irgraph.language.patterns.misses import Reason
from irgraph.language.patterns.nodes import Hole, OpPattern, Rest

Goal = tuple[Hole, Value]
"""A hole and the value that it must match."""


@dataclass(frozen=True, slots=True)
class Alignment:
    """Holes with their values, and the arguments that ``...`` or an omitted list skips."""

    goals: tuple[Goal, ...] = ()
    hidden: tuple[PassedArgument, ...] = ()


class FormMismatchError(Exception):
    """An op cannot be aligned with a pattern; ``reason`` says why."""

    def __init__(self, reason: Reason) -> None:
        self.reason = reason


def align(index: Index, pattern: OpPattern, position: int) -> Alignment:
    """Align an op's results and arguments with a pattern, or raise ``FormMismatchError``."""
    goals: list[Goal] = []
    if pattern.results is not None:
        goals = pair_holes(pattern.results, list(index.results(position)), "result")
    arguments = index.arguments(position)
    if pattern.holes is None:
        return Alignment(tuple(goals), tuple(arguments))
    positional, named_holes = pattern.positional_holes, pattern.named_holes
    count = len(positional)
    if count > len(arguments):
        raise FormMismatchError(
            lambda: f"it has {format_count(len(arguments), 'argument')}, the pattern has {count}"
        )
    goals += [(hole, argument.value) for hole, argument in zip(positional, arguments, strict=False)]
    remaining = arguments[count:]
    hidden = tuple(remaining)
    if named_holes:
        goals += _pair_named(named_holes, remaining)
        hidden = tuple(argument for argument in remaining if argument.name not in named_holes)
    if not pattern.is_open:
        for argument in required_arguments(index.ops[position], hidden):
            prefix = f"{argument.name} = " if argument.name else ""
            raise FormMismatchError(f"it also has {prefix}{spell(argument.value)}")
    return Alignment(tuple(goals), hidden)


def _pair_named(named_holes: Mapping[str, Hole], arguments: Sequence[PassedArgument]) -> list[Goal]:
    by_name = {argument.name: argument.value for argument in arguments}
    for name in named_holes:
        if name not in by_name:
            raise FormMismatchError(f"it has no argument {name!r}")
    return [(hole, by_name[name]) for name, hole in named_holes.items()]


def required_arguments(op: Op, hidden: Sequence[PassedArgument]) -> list[PassedArgument]:
    """Return the skipped arguments that affect the op."""
    return [
        argument
        for argument in hidden
        if argument.is_explicit and not has_no_effect(op, argument.name, argument.value)
    ]


def pair_holes(holes: Sequence[Hole], values: Sequence[Value], noun: str) -> list[Goal]:
    """Pair holes with values; ``...`` or a splat matches the remaining values."""
    variadic = next((i for i, hole in enumerate(holes) if isinstance(hole, (Rest, Splat))), None)
    if variadic is None:
        if len(holes) != len(values):
            raise FormMismatchError(
                lambda: f"it has {format_count(len(values), noun)}, the pattern has {len(holes)}"
            )
        return list(zip(holes, values, strict=True))
    after = len(holes) - variadic - 1
    end = len(values) - after
    if end < variadic:
        minimum = variadic + after
        raise FormMismatchError(
            f"it has {format_count(len(values), noun)}, the pattern needs at least {minimum}"
        )
    goals: list[Goal] = list(zip(holes[:variadic], values, strict=False))
    if isinstance(holes[variadic], Splat):
        goals.append((holes[variadic], tuple(values[variadic:end])))
    return goals + list(zip(holes[variadic + 1 :], values[end:], strict=True))


def is_written(value: Value, op: Op) -> bool:
    """Return whether an op writes a tensor, or every tensor of a list, in place."""
    tensors = value if isinstance(value, tuple) else (value,)
    names = [tensor.name for tensor in tensors if isinstance(tensor, Tensor)]
    return bool(names) and len(names) == len(tensors) and op.written.issuperset(names)
