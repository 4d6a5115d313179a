"""Checks of what is given to the library's functions: errors that name the argument."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

from irgraph.diagnostics.errors import fail

T = TypeVar("T")


def listed(name: str, given: Iterable[T], what: str) -> tuple[T, ...]:
    """Return an argument's items; a single text or number is no list.

    Raises ``IrgraphError`` (exit code 2), as in ``devices: give a list of names, not 'a100'``.
    """
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise fail(f"{name}: give a list of {what}, not {describe(given)}", exit_code=2)
    return tuple(given)


def check_sizes(name: str, given: object) -> None:
    """Raise ``IrgraphError`` (exit code 2) where an argument is no mapping from names."""
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        message = f"{name}: give sizes by the names of dimensions, not {describe(given)}"
        raise fail(message, hint="as in {'B': 4096}", exit_code=2)


def describe(given: object) -> str:
    """Return what was given as a message names it: texts and small values, else the type."""
    small = isinstance(given, str | int | float | list | tuple | dict | None)
    text = repr(given) if small else ""
    return text if 0 < len(text) <= 60 else f"a {type(given).__name__}"
