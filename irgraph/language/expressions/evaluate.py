"""Values of expressions: over one match, over a group of them, or over parameters alone."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Protocol

from irgraph.diagnostics import fail
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op, Value
from irgraph.ir.tensor import Tensor
from irgraph.language.expressions.attributes import OP_ATTRIBUTES, TENSOR_ATTRIBUTES
from irgraph.language.expressions.nodes import (
    Attribute,
    Binary,
    Expression,
    Item,
    ListOf,
    Literal,
    Name,
    Splat,
    Unary,
    Variable,
)
from irgraph.language.expressions.units import plain
from irgraph.language.expressions.values import counted, same_value, spell
from irgraph.language.patterns.misses import Reason


class Pricer(Protocol):
    """Anything that knows how long an op takes on the chosen device."""

    def time(self, graph: Graph, op: Op) -> float:
        """Return the device time of an op of a graph in microseconds."""


class Target(Pricer, Protocol):
    """A device that can also predict a whole step."""

    def measure(self, graph: Graph) -> Mapping[str, float]:
        """Return ``step.time`` and the other figures that a sweep may report."""

    def doubts(self, graph: Graph) -> Sequence[str]:
        """Return caveats about those figures, a line each."""


class EvaluationError(Exception):
    """An expression has no value for this match; the message says why."""


Datum = Value | Op
"""What an expression may stand for during evaluation."""


@dataclass(frozen=True)
class Scope:
    """What the names in an expression stand for.

    Attributes:
        names: parameters, lets, ``count``, ops by label, and ``op``.
        values: what patterns bound.
        known: values of whole expressions by their text: a group's keys.
        pricer: knows times on the chosen device; ``None`` where none is chosen.
        asked: what is asked of a graph about an op: ``scope``, ``idle``, ``unread``, ``dead``,
            ``time``.
    """

    names: Mapping[str, Datum] = field(default_factory=dict)
    values: Mapping[str, Value] = field(default_factory=dict)
    known: Mapping[str, Value] = field(default_factory=dict)
    pricer: Pricer | None = None
    asked: Mapping[str, Callable[[Op], Value]] = field(default_factory=dict)


COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "==": lambda a, b: _equal(a, b),
    "!=": lambda a, b: not _equal(a, b),
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "~": lambda a, b: fnmatchcase(str(a), str(b)),
}

ARITHMETIC: dict[str, Callable[[float, float], float]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
}


LARGEST = 1e300
"""Bound on the numbers that scripts compute with."""


def _equal(a: Datum, b: Datum) -> bool:
    if isinstance(a, Op) or isinstance(b, Op):
        return a is b
    return same_value(a, b)


def evaluate(expression: Expression, scope: Scope) -> Value:
    """Return the value of an expression.

    Raises ``EvaluationError`` where it has none for this match, and ``IrgraphError`` where it asks
    for ``time`` although no device is chosen.
    """
    value = _datum(expression, scope)
    if isinstance(value, Op):
        raise EvaluationError(f"{expression} is an op; use one of its properties")
    return value


def _datum(expression: Expression, scope: Scope) -> Datum:
    if scope.known and str(expression) in scope.known:
        return scope.known[str(expression)]
    if isinstance(expression, Literal):
        return plain(expression.value)
    if isinstance(expression, Name):
        return _lookup(expression, scope)
    if isinstance(expression, Variable):
        if expression.name not in scope.values:
            raise EvaluationError(f"{expression} is undefined here")
        return scope.values[expression.name]
    if isinstance(expression, Attribute):
        return _attribute(expression, scope)
    if isinstance(expression, Item):
        return _item(expression, scope)
    if isinstance(expression, ListOf):
        return tuple(_element(item, scope) for item in expression.items)
    if isinstance(expression, Unary):
        return _unary(expression, scope)
    return _binary(expression, scope)


def _element(item: Expression | Splat, scope: Scope) -> Value:
    if isinstance(item, Splat):
        raise EvaluationError(f"{item} stands for many values")
    return evaluate(item, scope)


def _lookup(name: Name, scope: Scope) -> Datum:
    if name.name not in scope.names:
        raise EvaluationError(f"{name} is undefined here")
    return scope.names[name.name]


def _attribute(expression: Attribute, scope: Scope) -> Value:
    of = _datum(expression.of, scope)
    if isinstance(of, tuple):
        return tuple(_property(expression, item, scope) for item in of)
    return _property(expression, of, scope)


def _property(expression: Attribute, of: Datum, scope: Scope) -> Value:
    if isinstance(of, Op) and expression.name in scope.asked:
        return scope.asked[expression.name](of)
    if isinstance(of, Op) and expression.name == "time":
        hint = "choose one, as in --device v100"
        raise fail(f"{expression} needs a device", expression.place, hint=hint)
    if isinstance(of, Op) and expression.name in OP_ATTRIBUTES:
        return OP_ATTRIBUTES[expression.name][1](of)
    if isinstance(of, Tensor) and expression.name in TENSOR_ATTRIBUTES:
        return TENSOR_ATTRIBUTES[expression.name][1](of)
    what = "an op" if isinstance(of, Op) else f"{spell(of)}, which is not a tensor"
    raise EvaluationError(f"{expression.of} is {what}: it has no {expression.name}")


def _item(expression: Item, scope: Scope) -> Value:
    of, index = evaluate(expression.of, scope), evaluate(expression.index, scope)
    if not isinstance(of, tuple):
        raise EvaluationError(f"{expression.of} is not a list")
    if not isinstance(index, int) or not -len(of) <= index < len(of):
        items = counted(len(of), "item")
        raise EvaluationError(f"{expression.index} is out of range: {expression.of} has {items}")
    return of[index]


def _number(expression: Expression, scope: Scope) -> float:
    value = evaluate(expression, scope)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise EvaluationError(f"{expression} is {spell(value)}, not a number")
    return value


def _truth(expression: Expression, scope: Scope) -> bool:
    value = evaluate(expression, scope)
    if not isinstance(value, bool):
        raise EvaluationError(f"{expression} is {spell(value)}, not a boolean")
    return value


def _unary(expression: Unary, scope: Scope) -> Value:
    if expression.operator == "not":
        return not _truth(expression.of, scope)
    return -_number(expression.of, scope)


def _binary(expression: Binary, scope: Scope) -> Value:
    if expression.operator == "and":
        return _truth(expression.left, scope) and _truth(expression.right, scope)
    if expression.operator == "or":
        return _truth(expression.left, scope) or _truth(expression.right, scope)
    try:
        if expression.operator in COMPARISONS:
            left, right = _datum(expression.left, scope), _datum(expression.right, scope)
            return COMPARISONS[expression.operator](left, right)
        numbers = _number(expression.left, scope), _number(expression.right, scope)
        value = ARITHMETIC[expression.operator](*numbers)
    except (TypeError, ZeroDivisionError, OverflowError) as error:
        raise EvaluationError(f"{expression} cannot be evaluated: {error}") from None
    if not abs(value) < LARGEST:
        raise EvaluationError(f"{expression} is too large")
    return value


def holds(condition: Expression | None, scope: Scope) -> Reason:
    """Return nothing where a condition holds, else the part that is false, with its values."""
    if condition is None:
        return ""
    if isinstance(condition, Binary) and condition.operator == "and":
        return holds(condition.left, scope) or holds(condition.right, scope)
    try:
        true = _truth(condition, scope)
        return "" if true else lambda: f"{condition} is false{_sides(condition, scope)}"
    except EvaluationError as error:
        return str(error)


def _sides(condition: Expression, scope: Scope) -> str:
    if not isinstance(condition, Binary) or condition.operator not in COMPARISONS:
        return ""
    sides = [side for side in (condition.left, condition.right) if not isinstance(side, Literal)]
    if not sides:
        return ""
    return f": {' and '.join(f'{side} is {_shown(side, scope)}' for side in sides)}"


def _shown(side: Expression, scope: Scope) -> str:
    """Return a value as messages show it; times as they are written, in four digits."""
    value = _datum(side, scope)
    if isinstance(side, Attribute) and side.name == "time" and isinstance(value, float):
        return f"{value:.4g}us"
    return spell(value)
