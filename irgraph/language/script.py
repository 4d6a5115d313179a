"""Scripts and passes as objects; ``str`` returns the text of a script."""

from __future__ import annotations

from dataclasses import dataclass

from irgraph.language.clauses import INDENT, Parameter, block
from irgraph.language.expressions.nodes import Node
from irgraph.language.statement import Statement
from irgraph.text.printer import quote


@dataclass(frozen=True)
class Pass(Node):
    """A named, described, parameterised block of statements.

    Attributes:
        name: the name by which pipelines and ``apply`` call it.
        description: one sentence.
        parameters: its parameters.
        body: its statements.
        changing: whether it ``changes results`` of the step, on purpose.
    """

    name: str
    description: str
    parameters: tuple[Parameter, ...] = ()
    body: tuple[Statement, ...] = ()
    changing: bool = False

    def __str__(self) -> str:
        parameters = ", ".join(map(str, self.parameters))
        head = f"pass {self.name}{f'({parameters})' if parameters else ''}"
        changes_clause = f"\n{INDENT}changes results" * self.changing
        return f"{head}\n{INDENT}{quote(self.description)}{changes_clause}\n{block(self.body)}"


@dataclass(frozen=True)
class Script(Node):
    """Passes and the statements that run, in order; ``str`` returns its text.

    Attributes:
        passes: the passes that it declares itself.
        body: its statements.
    """

    passes: tuple[Pass, ...] = ()
    body: tuple[Statement, ...] = ()

    def __str__(self) -> str:
        """Return the script's text, with a final newline."""
        items = [*map(str, self.passes), *(["\n".join(map(str, self.body))] if self.body else [])]
        return "\n\n".join(items) + "\n"
