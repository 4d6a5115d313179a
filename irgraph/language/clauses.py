"""Clauses shared by several statements, except patterns, templates and expressions."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from irgraph.diagnostics import SourceSpan
from irgraph.language.expressions.nodes import Expression, Node
from irgraph.language.patterns.nodes import Selection
from irgraph.text.printer import quote

INDENT = "  "


class Check(Protocol):
    """A check that collects problems."""

    def note(self, message: str, place: SourceSpan) -> None:
        """Note a problem."""


@dataclass(frozen=True)
class Swap(Node):
    """``%x for %y``: users of ``old`` use ``new``."""

    new: str
    old: str

    def __str__(self) -> str:
        return f"%{self.new} for %{self.old}"


@dataclass(frozen=True)
class Anchor(Node):
    """``before first aten.cat``: a position in the launch order."""

    side: str
    nth: str = field(default="", kw_only=True)
    selection: Selection

    def __str__(self) -> str:
        return join_words(self.side, self.nth, self.selection)


@dataclass(frozen=True)
class Parameter(Node):
    """``least: int = 2``.

    Attributes:
        name: the parameter's name.
        type: such as ``int``, ``time`` or ``dtype``.
        default: ``None`` if the caller must pass a value.
    """

    name: str
    type: str
    default: Expression | None = None

    def __str__(self) -> str:
        return join_words(f"{self.name}: {self.type}", clause("=", self.default))


@dataclass(frozen=True)
class Call(Node):
    """The call of a pass: ``fuse-embedding(least = 4)``.

    Attributes:
        name: the pass's name.
        arguments: names and values, in order.
    """

    name: str
    arguments: tuple[tuple[str, Expression], ...] = ()

    def __str__(self) -> str:
        arguments = ", ".join(f"{name} = {value}" for name, value in self.arguments)
        return f"{self.name}({arguments})" if arguments else self.name


def join_words(*parts: object) -> str:
    """Return the texts of the parts, joined by blanks, without ``None`` and empty parts."""
    return " ".join(str(part) for part in parts if part is not None and part != "")


def clause(word: str, value: object) -> str:
    """Return a clause, or ``""`` if its value is missing; commas separate several values."""
    if isinstance(value, tuple):
        value = ", ".join(map(str, value))
    return f"{word} {value}" if value is not None and value != "" else ""


def assuming_clause(reason: str) -> str:
    """Return the clause with the reason of an assumption, or ``""`` if there is none."""
    return clause("assuming", quote(reason) if reason else "")


def block(statements: Sequence[Node]) -> str:
    """Return statements in braces, one a line."""
    lines = "".join(textwrap.indent(f"{statement}\n", INDENT) for statement in statements)
    return f"{{\n{lines}}}"


def check_phase(check: Check, phase: str, place: SourceSpan) -> None:
    """Note a phase after ``and`` that is not the backward pass."""
    if phase not in ("", "backward"):
        check.note(f"'and {phase}' has no meaning here: only 'and backward' has", place)
