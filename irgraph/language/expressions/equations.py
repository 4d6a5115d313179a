"""Equations of a condition, each of which may determine a value of a pattern."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from typing import NamedTuple

from irgraph.language.expressions.nodes import Binary, Expression, Literal, Unary, Variable


class Equation(NamedTuple):
    """An equation that a condition requires.

    Attributes:
        names: all names of the pattern in it.
        solvable: names for which it has one solution, given the others.
    """

    names: frozenset[str]
    solvable: frozenset[str]

    def determined(self, unknown: Collection[str]) -> frozenset[str]:
        """Return the name that it determines: the only unknown one, if it is solvable."""
        unknown_names = self.names.intersection(unknown)
        return unknown_names & self.solvable if len(unknown_names) == 1 else frozenset()


def equations(condition: Expression | None) -> Iterator[Equation]:
    """Yield the equations that a condition requires."""
    if not isinstance(condition, Binary):
        return
    if condition.operator == "and":
        yield from equations(condition.left)
        yield from equations(condition.right)
    elif condition.operator == "==":
        counts = Counter(node.name for node in condition.walk() if isinstance(node, Variable))
        candidates = (*_addends(condition.left), *_addends(condition.right))
        solvable = frozenset(name for name in candidates if counts[name] == 1)
        yield Equation(frozenset(counts), solvable)


def _addends(expression: Expression) -> Iterator[str]:
    """Yield the names on which an expression depends by sums and constant factors alone."""
    if isinstance(expression, Variable):
        yield expression.name
    elif isinstance(expression, Unary) and expression.operator == "-":
        yield from _addends(expression.operand)
    elif isinstance(expression, Binary):
        left, right = expression.left, expression.right
        is_sum = expression.operator in ("+", "-")
        is_product = expression.operator == "*"
        if is_sum or (is_product and _is_factor(right)):
            yield from _addends(left)
        if is_sum or (is_product and _is_factor(left)):
            yield from _addends(right)


def _is_factor(expression: Expression) -> bool:
    """Return whether an expression is a number other than 0."""
    return isinstance(expression, Literal) and bool(expression.value)
