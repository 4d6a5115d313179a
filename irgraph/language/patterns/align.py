"""Pairs the placeholders of one op pattern with the arguments and results of one op."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from irgraph.ir.op import Op, Value
from irgraph.ir.tensor import Tensor
from irgraph.language.expressions.nodes import Splat
from irgraph.language.expressions.values import counted, spell
from irgraph.language.patterns.arguments import PassedArgument, has_no_effect
from irgraph.language.patterns.index import Index
from irgraph.language.patterns.misses import Reason
from irgraph.language.patterns.nodes import Hole, OpPattern, Rest

Goal = tuple[Hole, Value]
"""A placeholder and the value that must match it."""


@dataclass(frozen=True, slots=True)
class Alignment:
    """Placeholders with their values, and the arguments that ``...`` (or no list at all) skips."""

    goals: tuple[Goal, ...] = ()
    hidden: tuple[PassedArgument, ...] = ()


class FormMismatchError(Exception):
    """An op does not have the form of a pattern; ``why`` gives the reason."""

    def __init__(self, why: Reason) -> None:
        self.why = why


def align(index: Index, pattern: OpPattern, here: int) -> Alignment:
    """Pair a pattern's holes with an op's results and arguments; raise ``MisfitError``."""
    goals: list[Goal] = []
    if pattern.results is not None:
        goals = pair_holes(pattern.results, list(index.results(here)), "result")
    passed = index.arguments(here)
    if pattern.holes is None:
        return Alignment(tuple(goals), tuple(passed))
    fixed, named = pattern.placed, pattern.named
    if len(fixed) > len(passed):
        raise FormMismatchError(
            lambda: f"it has {counted(len(passed), 'argument')}, the pattern has {len(fixed)}"
        )
    goals += [(hole, argument.value) for hole, argument in zip(fixed, passed, strict=False)]
    others = passed[len(fixed) :]
    hidden = tuple(others)
    if named:
        goals += _named(named, others)
        hidden = tuple(argument for argument in others if argument.name not in named)
    if not pattern.open:
        for argument in required_arguments(index.ops[here], hidden):
            what = f"{argument.name} = " if argument.name else ""
            raise FormMismatchError(f"it also has {what}{spell(argument.value)}")
    return Alignment(tuple(goals), hidden)


def _named(named: Mapping[str, Hole], passed: Sequence[PassedArgument]) -> list[Goal]:
    by_name = {argument.name: argument.value for argument in passed}
    for name in named:
        if name not in by_name:
            raise FormMismatchError(f"it has no argument {name!r}")
    return [(hole, by_name[name]) for name, hole in named.items()]


def required_arguments(op: Op, hidden: Sequence[PassedArgument]) -> list[PassedArgument]:
    """Return those of an op's arguments that it would not be the same without."""
    return [
        argument
        for argument in hidden
        if argument.given and not has_no_effect(op, argument.name, argument.value)
    ]


def pair_holes(holes: Sequence[Hole], values: Sequence[Value], what: str) -> list[Goal]:
    """Pair placeholders with values; ``...`` and a splat take the remaining ones."""
    at = next((i for i, hole in enumerate(holes) if isinstance(hole, (Rest, Splat))), None)
    if at is None:
        if len(holes) != len(values):
            raise FormMismatchError(
                lambda: f"it has {counted(len(values), what)}, the pattern has {len(holes)}"
            )
        return list(zip(holes, values, strict=True))
    after = len(holes) - at - 1
    end = len(values) - after
    if end < at:
        least = at + after
        raise FormMismatchError(
            f"it has {counted(len(values), what)}, the pattern needs at least {least}"
        )
    goals: list[Goal] = list(zip(holes[:at], values, strict=False))
    if isinstance(holes[at], Splat):
        goals.append((holes[at], tuple(values[at:end])))
    return goals + list(zip(holes[at + 1 :], values[end:], strict=True))


def is_written(value: Value, op: Op) -> bool:
    """Return whether an op writes a tensor, or all tensors of a list, in place."""
    tensors = value if isinstance(value, tuple) else (value,)
    names = [tensor.name for tensor in tensors if isinstance(tensor, Tensor)]
    return bool(names) and len(names) == len(tensors) and op.written.issuperset(names)
