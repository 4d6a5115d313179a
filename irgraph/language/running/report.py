"""The report of a script's run, with an entry for each statement."""

from __future__ import annotations

import textwrap
from collections import Counter
from dataclasses import dataclass, field, replace

from irgraph.diagnostics import Diagnostic, SourceSpan
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.language.expressions.nodes import Node
from irgraph.language.expressions.values import format_count

INDENT = "  "


@dataclass(frozen=True)
class Entry:
    """The effect of one statement.

    Attributes:
        statement: the statement; ``str`` returns its text.
        caller: name of its pass, ``""`` for the script itself.
        matched: number of matches of its pattern.
        first: whether it is about the first of several matches only.
        groups: number of groups that the matches formed.
        replaced: number of ops removed.
        made: number of ops added.
        moved: number of ops changed in place, reordered or assigned to another stream.
        legal: a sentence for each change on why it was legal.
        unproven: a sentence for each change that dependences allow, and whose results differ or
            were not compared.
        uncompared: reasons why a required comparison by value failed.
        refused: changes that were not made, each with the reason and the places that matter.
        warnings: warnings, such as the nearest miss if nothing matched.
        assumptions: the reasons given for dependences that were assumed away.
        done: a description of the change; ``""`` if the numbers describe it.
        tried: number of ops compared with its pattern.
        seconds: its duration.
        spare: whether it matched nothing, and another statement of its pass changed the graph.
    """

    statement: Node
    caller: str = ""
    matched: int = 0
    first: bool = False
    groups: int = 0
    replaced: int = 0
    made: int = 0
    moved: int = 0
    legal: tuple[str, ...] = ()
    unproven: tuple[str, ...] = ()
    uncompared: tuple[str, ...] = ()
    refused: tuple[Diagnostic, ...] = ()
    warnings: tuple[Diagnostic, ...] = ()
    assumptions: tuple[str, ...] = ()
    done: str = ""
    tried: int = 0
    seconds: float = 0.0
    spare: bool = False

    @property
    def changed(self) -> bool:
        """Whether it changed the graph."""
        return bool(self.replaced or self.made or self.moved)

    def calmed(self) -> Entry:
        """Return the entry with its warnings as notes, and ``spare`` if it matched nothing."""
        notes = tuple(replace(w, severity="note") for w in self.warnings)
        return replace(self, warnings=notes, spare=bool(notes) and not self.matched)

    @property
    def reasons(self) -> tuple[str, ...]:
        """The sentences of ``legal``, marked as such, and of ``unproven``."""
        return (*(f"legal: {reason}" for reason in self.legal), *self.unproven)

    @property
    def place(self) -> SourceSpan:
        """The statement's position in its text."""
        return self.statement.place

    @property
    def verb(self) -> str:
        """The statement's first word."""
        return str(self.statement).partition(" ")[0]

    def __str__(self) -> str:
        """Return the entry as lines of text."""
        prefix = f"{self.caller}: " if self.caller else ""
        if self.caller and self.warnings and not self.matched:
            warnings = "; ".join(map(_one_line, self.warnings))
            return f"{prefix}{self.verb} at {self.place}: {warnings}"
        lines = [f"{prefix}{self.verb} at {self.place}: {self.summary}"]
        for reason, times in Counter(self.reasons).items():
            lines.append(f"  {reason}" + (f" ({times} times)" if times > 1 else ""))
        lines += [f"  assumed: {reason}" for reason in self.assumptions]
        for diagnostic in (*self.refused, *self.warnings):
            lines.append(textwrap.indent(_short_text(diagnostic), INDENT))
        return "\n".join(lines)

    @property
    def summary(self) -> str:
        """The effect of the statement, in words."""
        first = "the first of " if self.first else ""
        matches = f"{first}{format_count(self.matched, 'match', 'es')}"
        if self.done:
            return f"{matches}: {self.done}" if first else self.done
        groups = f" in {format_count(self.groups, 'group')}" if self.groups > 1 else ""
        if not self.changed:
            return f"{matches}, nothing changed"
        if not self.replaced and not self.made:
            return f"{matches}{groups}, {format_count(self.moved, 'op')} changed"
        if not self.replaced:
            return f"{matches}{groups}, {format_count(self.made, 'op')} added"
        outcome = f"became {self.made}" if self.made else "removed"
        return f"{matches}{groups}, {format_count(self.replaced, 'op')} {outcome}"


def _short_text(diagnostic: Diagnostic) -> str:
    """Return a note as a line; warnings and errors in full."""
    return str(diagnostic) if diagnostic.severity != "note" else f"note: {_one_line(diagnostic)}"


def _one_line(diagnostic: Diagnostic) -> str:
    """Return a diagnostic as one line, without its excerpt."""
    notes = (f"{note.message} ({note.place})" for note in diagnostic.notes)
    return "; ".join([diagnostic.message, *notes])


@dataclass(frozen=True)
class Report:
    """The report of a run.

    Attributes:
        entries: the effect of each statement, in the order in which they ran.
        unused: warnings about names that the script defines and never uses.
    """

    entries: tuple[Entry, ...] = ()
    unused: tuple[Diagnostic, ...] = ()

    @property
    def replaced(self) -> int:
        """Number of ops removed."""
        return sum(entry.replaced for entry in self.entries)

    @property
    def made(self) -> int:
        """Number of ops added."""
        return sum(entry.made for entry in self.entries)

    @property
    def refused(self) -> tuple[Diagnostic, ...]:
        """All changes that were not made, with reasons."""
        return tuple(diagnostic for entry in self.entries for diagnostic in entry.refused)

    @property
    def uncompared(self) -> tuple[str, ...]:
        """All reasons why a required comparison by value failed."""
        return tuple(reason for entry in self.entries for reason in entry.uncompared)

    @property
    def warnings(self) -> tuple[Diagnostic, ...]:
        """All warnings; a note that an alternative was not needed is none."""
        entry_warnings = [diagnostic for entry in self.entries for diagnostic in entry.warnings]
        return tuple(d for d in (*self.unused, *entry_warnings) if d.severity == "warning")

    @property
    def assumptions(self) -> tuple[str, ...]:
        """All unproven assumptions of the result."""
        return tuple(reason for entry in self.entries for reason in entry.assumptions)

    def __str__(self) -> str:
        """Return the report as text without spare alternatives, the number of assumptions last."""
        lines = [*map(str, self.unused), *(str(entry) for entry in self.entries if not entry.spare)]
        if self.assumptions:
            lines.append(f"the result rests on {format_count(len(self.assumptions), 'assumption')}")
        return "\n".join(lines)


@dataclass(frozen=True)
class Outcome:
    """The graph after a run, and the report."""

    graph: Graph
    report: Report = field(default_factory=Report)


def op_place(op: Op, graph: Graph) -> SourceSpan:
    """Return the place of an op in the text that its graph was read from, else its origin."""
    if op.line:
        return SourceSpan(graph.source or graph.name, "", op.line)
    return SourceSpan(op.origin or graph.source or graph.name)
