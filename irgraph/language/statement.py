"""The base class of the language's statements."""

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
    """A statement, with methods to check, run and print it.

    The file ``irgraph/language/statements/resize.py`` contains the class ``Resize``, which the rule
    ``resize`` of ``grammars/transform.lark`` describes. Its fields are the parts of that rule, in
    order, with a default for each optional part: numbers, texts, expressions, selections, and so
    on; the rule of a clause becomes the tuple of its parts. Override ``read`` for other fields. A
    field called ``body`` contains a block.
    """

    @abstractmethod
    def __str__(self) -> str:
        """Return the statement's text, which can be read again as the same statement."""

    @abstractmethod
    def check(self, check: Checker) -> None:
        """Note problems before anything runs, and the names that later statements may use."""

    @abstractmethod
    def run(self, frame: Frame) -> Entry | None:
        """Change ``frame.state.graph``, and return an entry with the effect or the refusals.

        Raises ``IrgraphError``: exit code 4 for an invalid value, 1 for an illegal change.
        """

    def names(self) -> Sequence[str]:
        """Return the names that it defines for values; unused ones are reported."""
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
    """Yield statements and the statements in their blocks, outer before inner."""
    for statement in statements:
        yield statement
        yield from walk(statement.inner())
