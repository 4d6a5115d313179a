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
def names(start: str = "start") -> frozenset[str]:
    """Return the statements that the grammar allows in texts of a rule: scripts or pipelines."""
    rules = grammars.load("transform", start).rules
    return frozenset(r.expansion[0].name for r in rules if r.origin.name == "_statement")


@cache
def kind(name: str) -> type[Statement]:
    """Return the class of a statement; only its own file is loaded.

    Raises ``StatementError`` where there is no such file, or no such class in it.
    """
    module = f"{__name__}.{name}"
    wanted = name.title().replace("_", "")
    with blame(module, "cannot be loaded"):
        try:
            found = getattr(import_module(module), wanted, None)
        except ModuleNotFoundError as error:
            if error.name != module:
                raise
            alike = suggestion(
                name, (path.stem for path in Path(__file__).parent.glob("[a-z]*.py"))
            )
            raise StatementError(f"{statement_text(module)} has no file{alike}") from None
        if not (isinstance(found, type) and issubclass(found, Statement)):
            raise StatementError(f"{statement_text(module)} has no class {wanted}(Statement)")
    return found


def read(name: str, parts: Sequence[Any], place: SourceSpan) -> Statement:
    """Return the statement that the parts of its grammar rule make; raise ``StatementError``."""
    wanted, module = kind(name), f"{__name__}.{name}"
    with blame(module, "cannot be read"):
        made = wanted.read(parts, place)
    if not isinstance(made, wanted):
        raise StatementError(f"{statement_text(module)} reads {made!r}, not a {wanted.__name__}")
    for field, type_ in _fields(wanted).items():
        if not _fits(getattr(made, field), type_):
            given = type(getattr(made, field)).__name__
            message = f"the grammar gives its field {field!r} a {given}"
            raise StatementError(f"{statement_text(module)} cannot be read: {message}")
    with blame(module, "cannot be written"):
        str(made)
    return made


@cache
def _fields(wanted: type[Statement]) -> dict[str, Any]:
    """Return the types of a statement's fields."""
    hints = get_type_hints(wanted)
    return {field.name: hints[field.name] for field in fields(wanted)}


def _fits(value: object, wanted: Any) -> bool:  # noqa: ANN401  (any type)
    """Return whether a value is of a type; what a tuple holds is not looked at."""
    among = get_args(wanted) if get_origin(wanted) in (Union, UnionType) else (wanted,)
    return isinstance(value, tuple(get_origin(one) or one for one in among))
