"""The statements of the language: one file each, found by the name of its grammar rule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from functools import cache
from importlib import import_module
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import grammars
from irgraph.diagnostics import SourceSpan, suggestion
from irgraph.language.defects import StatementError, blame, statement_text
from irgraph.language.statement import Statement


@cache
def statement_names(start: str = "start") -> frozenset[str]:
    """Return the names of the statements that the grammar allows in scripts or in pipelines."""
    rules = grammars.load("transform", start).rules
    return frozenset(r.expansion[0].name for r in rules if r.origin.name == "_statement")


@cache
def statement_class(name: str) -> type[Statement]:
    """Return the class of a statement, loading only its own file.

    Raises ``StatementError`` if there is no such file, or no such class in it.
    """
    module = f"{__name__}.{name}"
    class_name = name.title().replace("_", "")
    with blame(module, "cannot be loaded"):
        try:
            statement = getattr(import_module(module), class_name, None)
        except ModuleNotFoundError as error:
            if error.name != module:
                raise
            similar = suggestion(
                name, (path.stem for path in Path(__file__).parent.glob("[a-z]*.py"))
            )
            raise StatementError(f"{statement_text(module)} has no file{similar}") from None
        if not (isinstance(statement, type) and issubclass(statement, Statement)):
            raise StatementError(f"{statement_text(module)} has no class {class_name}(Statement)")
    return statement


def read_statement(name: str, parts: Sequence[Any], place: SourceSpan) -> Statement:
    """Return the statement of the parts of its grammar rule, or raise ``StatementError``."""
    statement_type, module = statement_class(name), f"{__name__}.{name}"
    with blame(module, "cannot be read"):
        statement = statement_type.read(parts, place)
    if not isinstance(statement, statement_type):
        raise StatementError(
            f"{statement_text(module)} reads {statement!r}, not a {statement_type.__name__}"
        )
    for field, type_ in _field_types(statement_type).items():
        if not _is_instance(getattr(statement, field), type_):
            actual = type(getattr(statement, field)).__name__
            message = f"the grammar gives its field {field!r} a {actual}"
            raise StatementError(f"{statement_text(module)} cannot be read: {message}")
    with blame(module, "cannot be written"):
        str(statement)
    return statement


@cache
def _field_types(statement_type: type[Statement]) -> dict[str, Any]:
    """Return the types of a statement's fields."""
    hints = get_type_hints(statement_type)
    return {field.name: hints[field.name] for field in fields(statement_type)}


def _is_instance(value: object, expected: Any) -> bool:  # noqa: ANN401  (any type)
    """Return whether a value is of a type; the elements of a tuple are not checked."""
    options = get_args(expected) if get_origin(expected) in (Union, UnionType) else (expected,)
    return isinstance(value, tuple(get_origin(option) or option for option in options))
