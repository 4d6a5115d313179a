"""Kinds of expressions, as far as a script alone determines them: checked before anything runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from irgraph.diagnostics import Diagnostic, suggestion
from irgraph.ir.dtypes import ITEMSIZE, OTHER_NAMES
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
from irgraph.language.expressions.units import literal_kind

ANY = "any"
"""The kind of an expression whose kind is known only when the script runs."""

WRONG = "wrong"
"""The kind of an erroneous expression; no further problem is reported about it."""

KIND_NAMES = {
    "number": "a number", "bool": "a boolean", "text": "a string", "time": "a time",
    "bytes": "a size in bytes", "fraction": "a fraction", "dtype": "a dtype",
    "device": "a device", "list": "a list", "op": "an op", "none": "none",
}  # fmt: skip
"""Names of the kinds in messages."""

PARAMETER_TYPES = {
    "int": "number", "float": "number", "bool": "bool", "string": "text", "time": "time",
    "bytes": "bytes", "fraction": "fraction", "dtype": "dtype", "device": "device", "list": "list",
}  # fmt: skip
"""Types that a pass may declare for its parameters, and the kind of value that each accepts."""

EXAMPLES = {
    "number": "4", "bool": "true", "text": '"bot_mlp"', "time": "20us", "bytes": "4GiB",
    "fraction": "10%", "dtype": "bf16", "device": "@gpu0", "list": "[1, 2]",
}  # fmt: skip

OP_KINDS = {
    **{name: kind for name, (kind, _) in OP_ATTRIBUTES.items()},
    "time": "time",
    "scope": "text",
    "idle": "bool",
    "unread": "bool",
    "dead": "bool",
    "final": "bool",
}
TENSOR_KINDS = {name: kind for name, (kind, _) in TENSOR_ATTRIBUTES.items()}
FOREIGN_KEYWORDS = {**OTHER_NAMES, "True": "true", "False": "false", "None": "none", "null": "none"}
"""Keywords of other languages, and their spelling in this one."""

UNKNOWN_KINDS = (ANY, WRONG)
MEASURES = {"step.time": "time", "gpu.active": "time", "gpu.utilization": "fraction"}
"""Figures of a step that a sweep may report, and the kind of each."""

NUMERIC = ("number", "time", "bytes", "fraction")


@dataclass
class Kinds:
    """Infers the kinds of expressions and notes the problems in them.

    Attributes:
        names: kinds of parameters, lets, labels (``op``) and ``count``.
        variables: the names that a pattern binds, and the number of uses of each.
        problems: the problems noted so far.
        keys: texts of the group's keys, allowed as a whole; ``None`` outside of ``having``.
    """

    names: Mapping[str, str]
    variables: Mapping[str, int] = field(default_factory=dict)
    problems: list[Diagnostic] = field(default_factory=list)
    keys: frozenset[str] | None = None

    def note(self, message: str, node: Expression | Splat, hint: str = "") -> str:
        """Note a problem and return ``WRONG``."""
        self.problems.append(Diagnostic(message, node.place, hint=hint))
        return WRONG

    def infer(self, expression: Expression) -> str:
        """Return the kind of an expression."""
        if self.keys is not None and str(expression) in self.keys:
            return MEASURES.get(str(expression), ANY)
        finders: dict[type, Callable[..., str]] = {
            Literal: lambda e: literal_kind(e.value),
            Name: self._name,
            Variable: self._variable,
            Attribute: self._attribute,
            Item: self._item,
            ListOf: self._list,
            Unary: self._unary,
            Binary: self._binary,
        }
        return finders[type(expression)](expression)

    def require(self, kind: str, expression: Expression, expected: str, hint: str = "") -> None:
        """Note an expression of another kind; ``expected`` is the text of the expected kind."""
        actual = self.infer(expression)
        if actual not in (kind, *UNKNOWN_KINDS):
            self.note(f"expected {expected}, not {KIND_NAMES[actual]}", expression, hint)

    def require_condition(self, expression: Expression) -> None:
        """Note a condition that is not a boolean."""
        hint = "compare it with something, as in %x.rank == 2"
        self.require("bool", expression, "a condition", hint)

    def _name(self, name: Name) -> str:
        if name.name in self.names:
            return self.names[name.name]
        if name.name == "op":
            hint = "label the op you mean, as in b: aten.relu(...), and use b.phase"
            return self.note("'op' is defined only where the pattern is a single op", name, hint)
        if name.name == "count":
            hint = "as in group by %m having count >= 2"
            return self.note("'count' is defined only in 'having'", name, hint)
        similar = suggestion(name.name, (*self.names, *ITEMSIZE))
        replacement = FOREIGN_KEYWORDS.get(name.name) or (
            f"%{name}" if name.name in self.variables else ""
        )
        if replacement:
            return self.note(f"{name} is not defined; did you mean {replacement}?", name)
        hint = "" if similar else f"define it first: let {name} = 4"
        return self.note(f"{name} is not defined{similar}", name, hint)

    def _variable(self, variable: Variable) -> str:
        if self.keys is not None:
            keys = ", ".join(sorted(self.keys)) or "nothing"
            return self.note(
                f"{variable} differs within a group; 'having' may use count and the keys ({keys})",
                variable,
            )
        if variable.name not in self.variables:
            return self.note(*unbound_name_problem(variable.name, self.variables, variable))
        return ANY

    def _attribute(self, expression: Attribute) -> str:
        if str(expression.base) == "torch" and expression.name in FOREIGN_KEYWORDS:
            spelling = FOREIGN_KEYWORDS[expression.name]
            return self.note(f"{expression} is not defined; did you mean {spelling}?", expression)
        base_kind = self.infer(expression.base)
        if base_kind == WRONG:
            return WRONG
        if base_kind not in ("op", ANY):
            return self.note(f"{KIND_NAMES[base_kind]} has no properties", expression)
        properties = OP_KINDS if base_kind == "op" else TENSOR_KINDS
        if expression.name in properties:
            return properties[expression.name]
        owner = "an op" if base_kind == "op" else "a tensor"
        hint = suggestion(expression.name, properties) or f"; it has {', '.join(properties)}"
        return self.note(f"{owner} has no property .{expression.name}{hint}", expression)

    def _item(self, expression: Item) -> str:
        base_kind, index_kind = self.infer(expression.base), self.infer(expression.index)
        if base_kind not in ("list", *UNKNOWN_KINDS):
            self.note(
                f"{KIND_NAMES[base_kind]} cannot be indexed", expression, "lists can: %x.shape[0]"
            )
        if index_kind not in ("number", *UNKNOWN_KINDS):
            self.note(f"expected an index, not {KIND_NAMES[index_kind]}", expression.index)
        is_shape = isinstance(expression.base, Attribute) and expression.base.name == "shape"
        return "number" if is_shape else ANY

    def _list(self, expression: ListOf) -> str:
        for item in expression.items:
            if isinstance(item, Splat):
                hint = f"as in into [{item}] = aten._foreach_neg([*%x])"
                self.note(f"{item} is allowed only in a template", item, hint)
            else:
                self.infer(item)
        return "list"

    def _unary(self, expression: Unary) -> str:
        if expression.operator == "not":
            self.require_condition(expression.operand)
            return "bool"
        kind = self.infer(expression.operand)
        if kind not in (*NUMERIC, *UNKNOWN_KINDS):
            hint = "use not" if kind == "bool" else ""
            return self.note(f"{KIND_NAMES[kind]} cannot be negated", expression, hint)
        return kind

    def _binary(self, expression: Binary) -> str:
        if expression.operator in ("and", "or"):
            self.require_condition(expression.left)
            self.require_condition(expression.right)
            return "bool"
        left, right = self.infer(expression.left), self.infer(expression.right)
        if expression.operator in ("+", "-", "*", "/", "//"):
            return self._arithmetic(expression, left, right)
        if not _are_comparable(left, right) and not _is_zero(expression):
            hint = f"write {KIND_NAMES[left]}, as in {EXAMPLES[left]}" if left in EXAMPLES else ""
            message = f"{KIND_NAMES[left]} cannot be compared with {KIND_NAMES[right]}"
            self.note(message, expression, hint)
        elif expression.operator == "~" and left not in ("text", *UNKNOWN_KINDS):
            self.note("'~' matches a string with a glob", expression, 'as in op.module ~ "bot.*"')
        return "bool"

    def _arithmetic(self, expression: Binary, left: str, right: str) -> str:
        for kind, side in ((left, expression.left), (right, expression.right)):
            if kind not in (*NUMERIC, *UNKNOWN_KINDS):
                return self.note(f"expected a number, not {KIND_NAMES[kind]}", side)
        if left in UNKNOWN_KINDS or right in UNKNOWN_KINDS:
            return ANY
        if expression.operator in ("+", "-"):
            if left != right:
                operands = f"{KIND_NAMES[left]} and {KIND_NAMES[right]}"
                unit = left if left in EXAMPLES and left != "number" else right
                hint = f"give both a unit, as in {EXAMPLES[unit]}" if unit in EXAMPLES else ""
                return self.note(f"{operands} cannot be added or subtracted", expression, hint)
            return left
        kind = _product_kind(expression.operator, left, right)
        if expression.operator == "//" and kind in ("time", "fraction"):
            message = f"'//' gives a whole number, not {KIND_NAMES[kind]}"
            return self.note(message, expression, "write '/'")
        return kind


Location = TypeVar("Location")


def unbound_name_problem(
    name: str, names: Iterable[str], location: Location
) -> tuple[str, Location, str]:
    """Return the problem of a name that a pattern does not bind: message, location and hint."""
    similar = suggestion(name, names)
    bound = ", ".join(f"%{bound_name}" for bound_name in sorted(names))
    hint = (
        "" if similar else f"it binds {bound}" if bound else "write its operands, as in (%x, ...)"
    )
    return f"the pattern does not bind %{name}{similar}", location, hint


def _product_kind(operator: str, left: str, right: str) -> str:
    plain = ("number", "fraction")
    if right in plain:
        return left
    if operator == "*" and left in plain:
        return right
    return "number" if left == right else ANY


def _is_zero(expression: Binary) -> bool:
    """Return whether a side is 0, which is the same in every unit."""
    sides = (expression.left, expression.right)
    return any(
        isinstance(side, Literal) and side.value == 0 and side.value is not False for side in sides
    )


def _are_comparable(left: str, right: str) -> bool:
    if left == right or {left, right} & {*UNKNOWN_KINDS, "none"}:
        return True
    return {left, right} <= {"number", "fraction"}
