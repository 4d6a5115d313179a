"""The arguments of an op as its schema orders them, defaults included."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import cast

from irgraph.ir.effects import MAX_CACHED_OPS
from irgraph.ir.op import Op, Value
from irgraph.ir.schema import Argument, resolve, schemas_of
from irgraph.language.expressions.values import same_value


@dataclass(frozen=True, slots=True)
class PassedArgument:
    """One argument of a call: its name in the schema (``""`` if unknown) and value.

    ``given`` is whether the op states it, rather than leaving it at its default.
    """

    name: str
    value: Value
    given: bool = True


@lru_cache(maxsize=MAX_CACHED_OPS)
def arguments(op: Op, extra: tuple[str, ...] = ()) -> Sequence[PassedArgument]:
    """Return all arguments of an op in schema order; operands without names where none is known.

    ``extra`` are the schemas that the model declares.
    """
    schema = resolve(op, extra)
    if schema is None:
        loose = [PassedArgument("", value) for value in op.operands]
        return (*loose, *(PassedArgument(name, value) for name, value in op.attributes.items()))
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
    """Return an argument's default; ``None`` where it has none."""
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
        return bool(value) and all(same_value(item, default) for item in value)
    return same_value(value, default)


def has_no_effect(op: Op, name: str, value: Value) -> bool:
    """Return whether an op would be the same without this argument.

    It is if the value is the default of any overload (one that is written out where another
    overload has it as default), or absent.
    """
    if value is None:
        return True
    found = [a for s in schemas_of(op.name) for a in s.arguments if a.name == name]
    return any(is_default(argument, value) for argument in found)
