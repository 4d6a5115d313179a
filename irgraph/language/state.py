"""What a running script knows: the graph so far, names, and what was done."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from irgraph.ir.graph import Graph
from irgraph.ir.op import Op, Value
from irgraph.language.evaluate import NoValueError, Pricer, Scope, Target, evaluate
from irgraph.language.expressions import Expression
from irgraph.language.index import Index
from irgraph.language.patterns import Found, Module, Selection, Series
from irgraph.language.report import Entry, op_place
from irgraph.language.select import Handle, Selected, select
from irgraph.language.tree import Fuse, Pass, Remove, Replace, Statement
from irgraph.text.diagnostics import Diagnostic, IrgraphError, Place, fail, near
from irgraph.verbs.refusal import RefusedError

Dropping: TypeAlias = Fuse | Remove | Replace
"""Statements that take results away."""

ILLEGAL = 1
"""Exit code where the answer is no."""

MOST_STATEMENTS = 5_000
"""Statements that a script, or one run of a sweep, may run, loops and passes unrolled."""


SHOWN = 4
"""Ops of a series that messages name."""


@dataclass
class Frame:
    """Names that one script or pass sees."""

    names: dict[str, Value] = field(default_factory=dict)
    handles: dict[str, Handle] = field(default_factory=dict)
    caller: str = ""


@dataclass
class Spent:
    """What was run so far: statements, since its start in a run of a sweep, and runs of sweeps."""

    statements: int = 0
    runs: int = 0


@dataclass
class State:
    """One run.

    Attributes:
        graph: the graph so far; a use may dangle between statements.
        passes: passes by name, those of the script before those of the library.
        pricer: tells ``op.time``.
        targets: finds a device by its name.
        kept: results that some op needs in the end, so that nothing may drop them.
        dropped: results that are gone, with the statement that dropped them.
        entries: what statements did.
        spent: how much was run, shared by all that a script runs.
    """

    graph: Graph
    passes: Mapping[str, Pass]
    pricer: Pricer | Target | None = None
    targets: Callable[[str], Target] | None = None
    kept: Collection[str] = ()
    dropped: dict[str, Dropping] = field(default_factory=dict)
    entries: list[Entry] = field(default_factory=list)
    spent: Spent = field(default_factory=Spent)
    _index: Index | None = None

    @property
    def index(self) -> Index:
        """The index of the present graph, built when first asked for."""
        if self._index is None or self._index.graph is not self.graph:
            self._index = Index(self.graph)
        return self._index

    def count(self, statement: Statement) -> None:
        """Count a statement that is about to run; raise ``IrgraphError`` at one too many."""
        self.spent.statements += 1
        if self.spent.statements > MOST_STATEMENTS:
            message = f"more than {MOST_STATEMENTS} statements would run, loops and passes unrolled"
            hint = "give the loops around it fewer turns: repeat at most N"
            raise fail(message, statement.place, hint=hint)

    def scope(self, frame: Frame) -> Scope:
        """Return the scope of expressions outside of patterns."""
        return Scope(dict(frame.names), pricer=self.pricer)

    def select(self, selection: Selection, frame: Frame, all_: bool = False) -> Selected:
        """Return what a selection matches in the present graph."""
        named = selection.pattern
        if isinstance(named, Module) and named.named:
            path = str(frame.names[named.path])
            selection = replace(selection, pattern=replace(named, path=path, named=False))
        return select(selection, self.index, self.scope(frame), frame.handles, all_)

    def value(self, expression: Expression, frame: Frame) -> Value:
        """Return the value of an expression; one without value is an error at its place."""
        try:
            return evaluate(expression, self.scope(frame))
        except NoValueError as error:
            raise fail(str(error), expression.place) from None

    def drop(self, members: Iterable[Op], made: Iterable[str], by: Dropping) -> None:
        """Note the results of ops that went and that nothing defines any more."""
        results = {t.name for op in members for inner in op.walk() for t in inner.outputs}
        self.dropped.update(dict.fromkeys(results - set(made), by))


def refusal(
    error: RefusedError, what: str, place: Place, graph: Graph, severity: str = "warning"
) -> Diagnostic:
    """Return why something was not done, with the ops that matter."""
    notes = [
        Diagnostic(told or f"this is {call_of(op)}", op_place(op, graph), severity="note")
        for op, told in error.at
    ]
    hint = 'if that does not matter here, say why: assuming "..."' if error.of_order else ""
    return Diagnostic(f"{what}: {error.reason}", place, tuple(notes), hint, severity)


def illegal(diagnostic: Diagnostic) -> IrgraphError:
    """Return the error of a statement that may not be done as it stands (exit code 1)."""
    return IrgraphError((replace(diagnostic, severity="error"),), ILLEGAL)


def call_of(op: Op) -> str:
    """Return how messages call an op: its name and first result or operand."""
    named = [t.name for t in (op.outputs or op.inputs)]
    return f"{op.name} (%{named[0]})" if named else op.name


def nothing_matched(selected: Selected, selection: Selection) -> Diagnostic:
    """Return the warning that nothing matched, with the nearest miss and why it is none."""
    misses, index = selected.misses, selected.index
    message = f"nothing matches {_called(selection.pattern)}"
    if misses.position < 0:
        return Diagnostic(
            f"{message}{_unheard(selection, index)}", selection.place, severity="warning"
        )
    op = index.ops[misses.position]
    note = Diagnostic(
        f"nearest miss: {call_of(op)}: {misses.reason}", op_place(op, index.graph), severity="note"
    )
    return Diagnostic(message, selection.place, (note,), severity="warning")


def _called(pattern: Series | Module | Found) -> str:
    """Return how messages call a pattern: its ops, without their holes."""
    if not isinstance(pattern, Series):
        return str(pattern)
    ops = [op.op for op in pattern.ops]
    return ", ".join(ops if len(ops) <= SHOWN else [*ops[:SHOWN], "…"])


def _unheard(selection: Selection, index: Index) -> str:
    pattern = selection.pattern
    if isinstance(pattern, Module):
        paths = {op.module for op in index.ops}
        return f": the model has no such module{'' if pattern.named else near(pattern.path, paths)}"
    if isinstance(pattern, Found):
        return ""
    name = pattern.ops[0].op
    return f": the model has no {name}{near(name, index.by_name)}"


def entry(statement: Statement, frame: Frame) -> Entry:
    """Return an entry that says nothing yet."""
    return Entry(statement, statement.place, frame.caller)


def entry_of(statement: Statement, frame: Frame, selected: Selected, selection: Selection) -> Entry:
    """Return an entry about what a statement selected; nothing matched is a warning."""
    return replace(
        entry(statement, frame),
        matched=selected.total,
        first=len(selected.matches) < selected.total,
        tried=selected.misses.tried,
        warnings=() if selected.total else (nothing_matched(selected, selection),),
    )


def members_of(selected: Selected, positions: Sequence[int]) -> list[Op]:
    """Return the ops at some positions."""
    return [selected.index.ops[here] for here in positions]
