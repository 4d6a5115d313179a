"""The arguments of an op as its schema orders them, defaults included."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import cast

from irgraph.facts import cached_calls
from irgraph.ir.effects import MAX_CACHED_OPS
from irgraph.ir.op import Op, Value
from irgraph.ir.schema import Argument, resolve, schemas_of
from irgraph.language.expressions.values import equal_values


@dataclass(frozen=True, slots=True)
class PassedArgument:
    """One argument of a call: its name in the schema (``""`` if unknown) and value.

    ``is_explicit`` is whether the op states the value; else it is the schema's default.
    """

    name: str
    value: Value
    is_explicit: bool = True


@cached_calls(MAX_CACHED_OPS)
def arguments(op: Op, extra: tuple[str, ...] = ()) -> Sequence[PassedArgument]:
    """Return all arguments of an op in schema order; without names if it has no schema.

    ``extra`` are the schemas that the model declares.
    """
    schema = resolve(op, extra)
    if schema is None:
        operands = [PassedArgument("", value) for value in op.operands]
        return (*operands, *(PassedArgument(name, value) for name, value in op.attributes.items()))
    passed = []
    for i, argument in enumerate(schema.arguments):
        if i < len(op.operands):
            passed.append(PassedArgument(argument.name, op.operands[i]))
        elif argument.name in op.attributes:
            passed.append(PassedArgument(argument.name, op.attributes[argument.name]))
        else:
            passed.append(PassedArgument(argument.name, default_of(argument), False))
    return tuple(passed)


def default_of(argument: Argument) -> Value:
    """Return an argument's default; ``None`` if it has none."""
    return None if argument.default is None else _value(argument.default)


@cache
def _value(text: str) -> Value:
    try:
        value: Value = _tuples(ast.literal_eval(text))
    except (ValueError, SyntaxError):
        return text  # an enumerator, such as contiguous_format
    return value


def _tuples(value: object) -> Value:
    if isinstance(value, list):
        return tuple(map(_tuples, value))
    return cast(Value, value)


def is_default(argument: Argument, value: Value) -> bool:
    """Return whether a value equals the argument's default."""
    if argument.default is None:
        return False
    default = default_of(argument)
    if isinstance(value, tuple) and not isinstance(default, tuple):
        return bool(value) and all(equal_values(item, default) for item in value)
    return equal_values(value, default)


def has_no_effect(op: Op, name: str, value: Value) -> bool:
    """Return whether omitting an argument would leave an op unchanged.

    This is so if the value is ``None`` or the default of any overload: an argument may be written
    out that is a default of another overload only.
    """
    if value is None:
        return True
    overloads = [a for s in schemas_of(op.name) for a in s.arguments if a.name == name]
    return any(is_default(argument, value) for argument in overloads)
