"""What every statement of the language is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from irgraph.language.checking.checker import Checker
from irgraph.language.defects import blame
from irgraph.language.expressions.nodes import Node
from irgraph.language.running.report import Entry
from irgraph.language.running.state import Frame


@dataclass(frozen=True)
class Statement(Node, ABC):
    """A statement: how it is checked, run and written.

    The file ``irgraph/language/statements/resize.py`` holds the class ``Resize``, which the rule
    ``resize`` of ``grammars/transform.lark`` describes. Its fields are the parts of that rule, in
    order, with a default for each part that may be left out: numbers, texts, expressions,
    selections, and so on; a rule of its own clauses is the tuple of their parts. Override
    ``read`` where that does not suit. A field called ``body`` holds a block.
    """

    @abstractmethod
    def __str__(self) -> str:
        """Return the statement's text, which reads as the same statement."""

    @abstractmethod
    def check(self, check: Checker) -> None:
        """Note what is wrong before anything runs, and the names that later statements may use."""

    @abstractmethod
    def run(self, frame: Frame) -> Entry | None:
        """Change ``frame.state.graph``, or say why not; return what was done, if anything.

        Raises ``IrgraphError``: exit code 4 for a value that is wrong, 1 for an illegal change.
        """

    def names(self) -> Sequence[str]:
        """Return the names that it gives to values, which something ought to use."""
        return ()

    def inner(self) -> tuple[Statement, ...]:
        """Return the statements of its block."""
        body: tuple[Statement, ...] = getattr(self, "body", ())
        return body


def check_block(statements: Sequence[Statement], check: Checker) -> None:
    """Check the statements of a script, a pass or a block in order."""
    for statement in statements:
        with blame(type(statement).__module__, "cannot be checked"):
            statement.check(check)


def walk(statements: Sequence[Statement]) -> Iterator[Statement]:
    """Yield statements and those in their blocks."""
    for statement in statements:
        yield statement
        yield from walk(statement.inner())
