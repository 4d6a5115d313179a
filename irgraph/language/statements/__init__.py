"""The statements of the language: one file each, found by the name of its grammar rule."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import grammars
from irgraph.diagnostics import Place, near
from irgraph.language.defects import StatementError, blame, called
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
            alike = near(name, (path.stem for path in Path(__file__).parent.glob("[a-z]*.py")))
            raise StatementError(f"{called(module)} has no file{alike}") from None
        if not (isinstance(found, type) and issubclass(found, Statement)):
            raise StatementError(f"{called(module)} has no class {wanted}(Statement)")
    return found


def read(name: str, parts: Sequence[Any], place: Place) -> Statement:
    """Return the statement that the parts of its grammar rule make; raise ``StatementError``."""
    wanted, module = kind(name), f"{__name__}.{name}"
    with blame(module, "cannot be read"):
        made = wanted.read(parts, place)
    if not isinstance(made, wanted):
        raise StatementError(f"{called(module)} reads {made!r}, not a {wanted.__name__}")
    return made
