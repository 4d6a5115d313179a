"""Values of expressions: over one match, over a group of them, or over parameters alone."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Protocol

from irgraph.diagnostics import fail
from irgraph.ir.dim import Dim, combine
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
from irgraph.language.expressions.units import base_value
from irgraph.language.expressions.values import equal_values, format_count, spell
from irgraph.language.patterns.misses import Reason


class Pricer(Protocol):
    """Anything that can return the time of an op on the chosen device."""

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
"""The value of an expression or a part of one: a value of the IR, or an op."""


@dataclass(frozen=True)
class Scope:
    """The values of the names in an expression.

    Attributes:
        names: parameters, lets, ``count``, ops by label, and ``op``.
        values: the values that patterns bound.
        values_by_text: values of complete expressions by their text: a group's keys.
        pricer: returns times on the chosen device; ``None`` if no device is chosen.
        op_properties: properties of an op that depend on its graph: ``scope``, ``idle``,
            ``unread``, ``dead``, ``final``, ``time``.
    """

    names: Mapping[str, Datum] = field(default_factory=dict)
    values: Mapping[str, Value] = field(default_factory=dict)
    values_by_text: Mapping[str, Value] = field(default_factory=dict)
    pricer: Pricer | None = None
    op_properties: Mapping[str, Callable[[Op], Value]] = field(default_factory=dict)


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
    "//": operator.floordiv,
}


MAX_NUMBER = 1e300
"""Bound on the numbers that scripts compute with."""


def _equal(a: Datum, b: Datum) -> bool:
    if isinstance(a, Op) or isinstance(b, Op):
        return a is b
    return equal_values(a, b)


def evaluate(expression: Expression, scope: Scope) -> Value:
    """Return the value of an expression.

    Raises ``EvaluationError`` if it has none for this match, and ``IrgraphError`` if it uses
    ``time`` and no device is chosen.
    """
    value = _datum(expression, scope)
    if isinstance(value, Op):
        raise EvaluationError(f"{expression} is an op; use one of its properties")
    return value


def _datum(expression: Expression, scope: Scope) -> Datum:
    if scope.values_by_text and str(expression) in scope.values_by_text:
        return scope.values_by_text[str(expression)]
    if isinstance(expression, Literal):
        return base_value(expression.value)
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
    datum = _datum(expression.base, scope)
    if isinstance(datum, tuple):
        return tuple(_property(expression, item, scope) for item in datum)
    return _property(expression, datum, scope)


def _property(expression: Attribute, datum: Datum, scope: Scope) -> Value:
    if isinstance(datum, Op) and expression.name in scope.op_properties:
        return scope.op_properties[expression.name](datum)
    if isinstance(datum, Op) and expression.name == "time":
        hint = "choose one, as in --device v100"
        raise fail(f"{expression} needs a device", expression.place, hint=hint)
    if isinstance(datum, Op) and expression.name in OP_ATTRIBUTES:
        return OP_ATTRIBUTES[expression.name][1](datum)
    if isinstance(datum, Tensor) and expression.name in TENSOR_ATTRIBUTES:
        return TENSOR_ATTRIBUTES[expression.name][1](datum)
    description = "an op" if isinstance(datum, Op) else f"{spell(datum)}, which is not a tensor"
    raise EvaluationError(f"{expression.base} is {description}: it has no {expression.name}")


def _item(expression: Item, scope: Scope) -> Value:
    sequence, index = evaluate(expression.base, scope), evaluate(expression.index, scope)
    if not isinstance(sequence, tuple):
        raise EvaluationError(f"{expression.base} is not a list")
    if not isinstance(index, int) or not -len(sequence) <= index < len(sequence):
        items = format_count(len(sequence), "item")
        raise EvaluationError(f"{expression.index} is out of range: {expression.base} has {items}")
    return sequence[index]


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
        return not _truth(expression.operand, scope)
    return -_number(expression.operand, scope)


def _binary(expression: Binary, scope: Scope) -> Value:
    if expression.operator == "and":
        return _truth(expression.left, scope) and _truth(expression.right, scope)
    if expression.operator == "or":
        return _truth(expression.left, scope) or _truth(expression.right, scope)
    try:
        if expression.operator in COMPARISONS:
            sides = _datum(expression.left, scope), _datum(expression.right, scope)
            return COMPARISONS[expression.operator](*sides)
        numbers = _number(expression.left, scope), _number(expression.right, scope)
        value = ARITHMETIC[expression.operator](*numbers)
    except ZeroDivisionError:
        raise EvaluationError(f"{expression} divides by 0") from None
    except (TypeError, OverflowError):
        operands = _operands_text(expression, scope)
        raise EvaluationError(f"{expression} cannot be evaluated{operands}") from None
    if not abs(value) < MAX_NUMBER:
        raise EvaluationError(f"{expression} is too large")
    left, right = numbers
    if (
        expression.operator != "/"
        and any(isinstance(n, Dim) for n in numbers)
        and isinstance(left, int)
        and isinstance(right, int)
    ):
        return combine(expression.operator, left, right, value)
    return value


def failure_reason(condition: Expression | None, scope: Scope) -> Reason:
    """Return the part of a condition that is false, with its values; ``""`` if it holds."""
    if condition is None:
        return ""
    if isinstance(condition, Binary) and condition.operator == "and":
        return failure_reason(condition.left, scope) or failure_reason(condition.right, scope)
    try:
        true = _truth(condition, scope)
        return "" if true else lambda: f"{condition} is false{_operands_text(condition, scope)}"
    except EvaluationError as error:
        return str(error)


def _operands_text(condition: Expression, scope: Scope) -> str:
    if not isinstance(condition, Binary) or condition.operator not in COMPARISONS:
        return ""
    sides = [side for side in (condition.left, condition.right) if not isinstance(side, Literal)]
    if not sides:
        return ""
    return f": {' and '.join(f'{side} is {_operand_text(side, scope)}' for side in sides)}"


def _operand_text(side: Expression, scope: Scope) -> str:
    """Return an operand's value as messages show it; times in microseconds, to four digits."""
    value = _datum(side, scope)
    if isinstance(side, Attribute) and side.name == "time" and isinstance(value, float):
        return f"{value:.4g}us"
    return spell(value)
