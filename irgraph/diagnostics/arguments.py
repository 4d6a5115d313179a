"""Checks of arguments of the library's functions: errors that name the argument."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

from irgraph.diagnostics.errors import fail

T = TypeVar("T")


def argument_items(name: str, argument: Iterable[T], noun: str) -> tuple[T, ...]:
    """Return the items of an argument; a single text or number is not a list.

    Raises ``IrgraphError`` (exit code 2), as in ``devices: give a list of names, not 'a100'``.
    """
    if isinstance(argument, str | bytes | Mapping) or not isinstance(argument, Iterable):
        raise fail(f"{name}: give a list of {noun}, not {describe(argument)}", exit_code=2)
    return tuple(argument)


def check_sizes(name: str, argument: object) -> None:
    """Raise ``IrgraphError`` (exit code 2) if an argument is not a mapping from names."""
    if not isinstance(argument, Mapping) or not all(isinstance(name, str) for name in argument):
        message = f"{name}: give sizes by the names of dimensions, not {describe(argument)}"
        raise fail(message, hint="as in {'B': 4096}", exit_code=2)


def describe(argument: object) -> str:
    """Return an argument's text for a message: short texts and small values, else the type."""
    small = isinstance(argument, str | int | float | list | tuple | dict | None)
    text = repr(argument) if small else ""
    return text if 0 < len(text) <= 60 else f"a {type(argument).__name__}"
