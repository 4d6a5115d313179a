"""Kinds of expressions, as far as a script alone determines them: checked before anything runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from irgraph.diagnostics import Diagnostic, suggestion
from irgraph.ir.dtypes import OTHER_NAMES
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
from irgraph.language.expressions.units import kind_of

ANY = "any"
"""The kind of what is known only when a script runs."""

WRONG = "wrong"
"""The kind of an erroneous expression; no further problem is reported about it."""

CALLED = {
    "number": "a number", "bool": "a boolean", "text": "a string", "time": "a time",
    "bytes": "a size in bytes", "fraction": "a fraction", "dtype": "a dtype",
    "device": "a device", "list": "a list", "op": "an op", "none": "none",
}  # fmt: skip
"""Names of the kinds in messages."""

PARAMETER_TYPES = {
    "int": "number", "float": "number", "bool": "bool", "string": "text", "time": "time",
    "bytes": "bytes", "fraction": "fraction", "dtype": "dtype", "device": "device", "list": "list",
}  # fmt: skip
"""Types that a pass may declare for its parameters, and the kinds of values that they take."""

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
}
TENSOR_KINDS = {name: kind for name, (kind, _) in TENSOR_ATTRIBUTES.items()}
USUAL = {**OTHER_NAMES, "True": "true", "False": "false", "None": "none", "null": "none"}
"""Keywords of other languages, and their spelling in this one."""

OPEN = (ANY, WRONG)
MEASURES = {"step.time": "time", "gpu.active": "time", "gpu.utilization": "fraction"}
"""What a sweep may report of a step, and what each measures."""

NUMERIC = ("number", "time", "bytes", "fraction")


@dataclass
class Kinds:
    """Finds the kinds of expressions and notes what is wrong with them.

    Attributes:
        names: kinds of parameters, lets, labels (``op``) and ``count``.
        variables: what a pattern binds, and how often it uses each name.
        problems: what was found wrong.
        keys: texts of the group's keys, allowed as a whole; ``None`` outside of ``having``.
    """

    names: Mapping[str, str]
    variables: Mapping[str, int] = field(default_factory=dict)
    problems: list[Diagnostic] = field(default_factory=list)
    keys: frozenset[str] | None = None

    def note(self, message: str, at: Expression | Splat, hint: str = "") -> str:
        """Note a problem and return ``WRONG``."""
        self.problems.append(Diagnostic(message, at.place, hint=hint))
        return WRONG

    def of(self, expression: Expression) -> str:
        """Return the kind of an expression."""
        if self.keys is not None and str(expression) in self.keys:
            return MEASURES.get(str(expression), ANY)
        finders: dict[type, Callable[..., str]] = {
            Literal: lambda e: kind_of(e.value),
            Name: self._name,
            Variable: self._variable,
            Attribute: self._attribute,
            Item: self._item,
            ListOf: self._list,
            Unary: self._unary,
            Binary: self._binary,
        }
        return finders[type(expression)](expression)

    def need(self, kind: str, expression: Expression, what: str, hint: str = "") -> None:
        """Note where an expression is of another kind; ``what`` is how to call the one expected."""
        found = self.of(expression)
        if found not in (kind, *OPEN):
            self.note(f"expected {what}, not {CALLED[found]}", expression, hint)

    def truth(self, expression: Expression) -> None:
        """Note where a condition is not a boolean."""
        hint = "compare it with something, as in %x.rank == 2"
        self.need("bool", expression, "a condition", hint)

    def _name(self, name: Name) -> str:
        if name.name in self.names:
            return self.names[name.name]
        if name.name == "op":
            hint = "label the op you mean, as in b: aten.relu(...), and use b.phase"
            return self.note("'op' is defined only where the pattern is a single op", name, hint)
        if name.name == "count":
            hint = "as in group by %m having count >= 2"
            return self.note("'count' is defined only in 'having'", name, hint)
        alike = suggestion(name.name, self.names)
        known = USUAL.get(name.name) or (f"%{name}" if name.name in self.variables else "")
        if known:
            return self.note(f"{name} is not defined; did you mean {known}?", name)
        hint = "" if alike else f"define it first: let {name} = 4"
        return self.note(f"{name} is not defined{alike}", name, hint)

    def _variable(self, variable: Variable) -> str:
        if self.keys is not None:
            keys = ", ".join(sorted(self.keys)) or "nothing"
            return self.note(
                f"{variable} differs within a group; 'having' may use count and the keys ({keys})",
                variable,
            )
        if variable.name not in self.variables:
            return self.note(*unbound(variable.name, self.variables, variable))
        return ANY

    def _attribute(self, expression: Attribute) -> str:
        if str(expression.of) == "torch" and expression.name in USUAL:
            usual = USUAL[expression.name]
            return self.note(f"{expression} is not defined; did you mean {usual}?", expression)
        of = self.of(expression.of)
        if of == WRONG:
            return WRONG
        if of not in ("op", ANY):
            return self.note(f"{CALLED[of]} has no properties", expression)
        known = OP_KINDS if of == "op" else TENSOR_KINDS
        if expression.name in known:
            return known[expression.name]
        what = "an op" if of == "op" else "a tensor"
        hint = suggestion(expression.name, known) or f"; it has {', '.join(known)}"
        return self.note(f"{what} has no property .{expression.name}{hint}", expression)

    def _item(self, expression: Item) -> str:
        of, index = self.of(expression.of), self.of(expression.index)
        if of not in ("list", *OPEN):
            self.note(f"{CALLED[of]} cannot be indexed", expression, "lists can: %x.shape[0]")
        if index not in ("number", *OPEN):
            self.note(f"expected an index, not {CALLED[index]}", expression.index)
        is_shape = isinstance(expression.of, Attribute) and expression.of.name == "shape"
        return "number" if is_shape else ANY

    def _list(self, expression: ListOf) -> str:
        for item in expression.items:
            if isinstance(item, Splat):
                hint = f"as in into [{item}] = aten._foreach_neg([*%x])"
                self.note(f"{item} is allowed only in a template", item, hint)
            else:
                self.of(item)
        return "list"

    def _unary(self, expression: Unary) -> str:
        if expression.operator == "not":
            self.truth(expression.of)
            return "bool"
        kind = self.of(expression.of)
        if kind not in (*NUMERIC, *OPEN):
            hint = "use not" if kind == "bool" else ""
            return self.note(f"{CALLED[kind]} cannot be negated", expression, hint)
        return kind

    def _binary(self, expression: Binary) -> str:
        if expression.operator in ("and", "or"):
            self.truth(expression.left)
            self.truth(expression.right)
            return "bool"
        left, right = self.of(expression.left), self.of(expression.right)
        if expression.operator in ("+", "-", "*", "/"):
            return self._arithmetic(expression, left, right)
        if not _comparable(left, right) and not _is_zero(expression):
            hint = f"write {CALLED[left]}, as in {EXAMPLES[left]}" if left in EXAMPLES else ""
            message = f"{CALLED[left]} cannot be compared with {CALLED[right]}"
            self.note(message, expression, hint)
        elif expression.operator == "~" and left not in ("text", *OPEN):
            self.note("'~' matches a string with a glob", expression, 'as in op.module ~ "bot.*"')
        return "bool"

    def _arithmetic(self, expression: Binary, left: str, right: str) -> str:
        for kind, side in ((left, expression.left), (right, expression.right)):
            if kind not in (*NUMERIC, *OPEN):
                return self.note(f"expected a number, not {CALLED[kind]}", side)
        if left in OPEN or right in OPEN:
            return ANY
        if expression.operator in ("+", "-"):
            if left != right:
                what = f"{CALLED[left]} and {CALLED[right]}"
                unit = left if left in EXAMPLES and left != "number" else right
                hint = f"give both a unit, as in {EXAMPLES[unit]}" if unit in EXAMPLES else ""
                return self.note(f"{what} cannot be added or subtracted", expression, hint)
            return left
        return _product(expression.operator, left, right)


At = TypeVar("At")


def unbound(name: str, names: Iterable[str], at: At) -> tuple[str, At, str]:
    """Return what to note about a name that a pattern does not bind: message, place and hint."""
    alike = suggestion(name, names)
    bound = ", ".join(f"%{known}" for known in sorted(names))
    hint = "" if alike else f"it binds {bound}" if bound else "write its operands, as in (%x, ...)"
    return f"the pattern does not bind %{name}{alike}", at, hint


def _product(operator: str, left: str, right: str) -> str:
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


def _comparable(left: str, right: str) -> bool:
    if left == right or {left, right} & {*OPEN, "none"}:
        return True
    return {left, right} <= {"number", "fraction"}
