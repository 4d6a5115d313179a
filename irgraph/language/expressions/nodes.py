"""Expressions of the transformation language; ``str`` spells them as scripts do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Self, TypeAlias, Union

from irgraph.diagnostics import SourceSpan
from irgraph.ir.op import Value
from irgraph.ir.quantity import Quantity
from irgraph.text.printer import literal

NOWHERE = SourceSpan("")
"""The place of a node that was made by a program, not read from a text."""

LEVELS = {
    "or": 1, "and": 2, "not": 3,
    "==": 4, "!=": 4, "<=": 4, ">=": 4, "<": 4, ">": 4, "~": 4,
    "+": 5, "-": 5, "*": 6, "/": 6, "//": 6,
}  # fmt: skip
"""Precedence of operators."""

UNARY = 7
ATOM = 8


@dataclass(frozen=True)
class Node:
    """A node of a script; comparisons ignore its place."""

    place: SourceSpan = field(default=NOWHERE, compare=False, repr=False, kw_only=True)

    @classmethod
    def read(cls, parts: Sequence[Any], place: SourceSpan) -> Self:
        """Return the node whose fields are the parts of its grammar rule, in order.

        An omitted part, ``None``, leaves its field at the default.
        """
        names = [f.name for f in fields(cls) if f.name != "place"]
        if len(names) != len(parts):
            field_names = ", ".join(names)
            raise TypeError(
                f"the grammar gives it {len(parts)} parts for its fields ({field_names})"
            )
        values = {name: part for name, part in zip(names, parts, strict=True) if part is not None}
        return cls(**values, place=place)

    def walk(self) -> Iterator[Node]:
        """Yield the node and all below it, outer before inner."""
        yield self
        for part in fields(self):
            yield from _nodes(getattr(self, part.name))


def _nodes(value: object) -> Iterator[Node]:
    if isinstance(value, Node):
        yield from value.walk()
    elif isinstance(value, tuple):
        for item in value:
            yield from _nodes(item)


@dataclass(frozen=True)
class Literal(Node):
    """A number, string, truth value, ``none``, element type, device, or number with a unit."""

    value: Value | Quantity

    def __str__(self) -> str:
        if isinstance(self.value, Quantity):
            return str(self.value)
        return literal(self.value)


@dataclass(frozen=True)
class Name(Node):
    """A parameter, a ``let``, an op's label, ``op`` or ``count``."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Variable(Node):
    """A value bound by a pattern: ``%w``."""

    name: str

    def __str__(self) -> str:
        return f"%{self.name}"


@dataclass(frozen=True)
class Attribute(Node):
    """A property of a tensor or an op: ``%w.nbytes``, ``op.phase``."""

    base: Expression
    name: str

    def __str__(self) -> str:
        return f"{_within(self.base, ATOM)}.{self.name}"


@dataclass(frozen=True)
class Item(Node):
    """An element of a list: ``%w.shape[1]``."""

    base: Expression
    index: Expression

    def __str__(self) -> str:
        return f"{_within(self.base, ATOM)}[{self.index}]"


@dataclass(frozen=True)
class Unary(Node):
    """``-x`` or ``not x``."""

    operator: str
    operand: Expression

    def __str__(self) -> str:
        if self.operator == "not":
            return f"not {_within(self.operand, LEVELS['not'])}"
        inner = _within(self.operand, UNARY)
        return f"-({inner})" if inner[:1] in "-0123456789" else f"-{inner}"


@dataclass(frozen=True)
class Binary(Node):
    """An operator of ``LEVELS`` between two expressions."""

    operator: str
    left: Expression
    right: Expression

    def __str__(self) -> str:
        level = LEVELS[self.operator]
        left = _within(self.left, level + (level == LEVELS["=="]))
        return f"{left} {self.operator} {_within(self.right, level + 1)}"


@dataclass(frozen=True)
class Splat(Node):
    """All values that a pattern bound to a name, one for each match: ``*%w``."""

    name: str
    written: bool = False

    def __str__(self) -> str:
        return f"*%{self.name}{'!' if self.written else ''}"


@dataclass(frozen=True)
class ListOf(Node):
    """A list of expressions and splats."""

    items: tuple[Expression | Splat, ...]

    def __str__(self) -> str:
        return f"[{', '.join(map(str, self.items))}]"


Expression: TypeAlias = Union[Literal, Name, Variable, Attribute, Item, Unary, Binary, ListOf]


def _level(expression: Expression) -> int:
    if isinstance(expression, Binary):
        return LEVELS[expression.operator]
    if isinstance(expression, Unary):
        return LEVELS["not"] if expression.operator == "not" else UNARY
    negative = isinstance(expression, Literal) and str(expression).startswith("-")
    return UNARY if negative else ATOM


def _within(expression: Expression, level: int) -> str:
    text = str(expression)
    return text if _level(expression) >= level else f"({text})"
