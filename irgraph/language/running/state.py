"""The state of a running script: the graph so far, names, and what was done."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Protocol

from irgraph.diagnostics import Diagnostic, IrgraphError, SourceSpan, fail, suggestion
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op, Value
from irgraph.ir.schema import op_suggestion
from irgraph.language.clauses import Parameter
from irgraph.language.expressions.evaluate import EvaluationError, Pricer, Scope, Target, evaluate
from irgraph.language.expressions.nodes import Expression, Node
from irgraph.language.patterns.index import Index, index_of
from irgraph.language.patterns.match import Match
from irgraph.language.patterns.nodes import Module, NamedOps, Selection, Series
from irgraph.language.patterns.select import Handle, SelectionResult, match_scope, select
from irgraph.language.running.report import Entry, op_place
from irgraph.verbs.refusal import RefusedError

ILLEGAL = 1
"""Exit code where the answer is no."""

MOST_STATEMENTS = 5_000
"""Statements that a script, or one run of a sweep, may run, loops and passes unrolled."""

SHOWN = 4
"""Ops of a series that messages name."""


class Running(Protocol):
    """What a run knows of the statements that it runs."""

    @property
    def place(self) -> SourceSpan:
        """Where it stands."""

    def run(self, frame: Frame) -> Entry | None:
        """Run it; return what was done."""


class RemovingStatement(Running, Protocol):
    """A statement that takes results away."""

    @property
    def selection(self) -> Selection:
        """The ops that it takes away."""

    def instead(self, name: str) -> str:
        """Return what to write where a result is still in use."""


class RunningPass(Protocol):
    """A pass, as a run knows it."""

    @property
    def parameters(self) -> Sequence[Parameter]:
        """What it takes."""

    @property
    def body(self) -> Sequence[Running]:
        """Its statements."""


@dataclass
class RunCounts:
    """What was run so far: statements, since its start in a run of a sweep, and runs of sweeps."""

    statements: int = 0
    runs: int = 0


@dataclass
class State:
    """One run.

    Attributes:
        graph: the graph so far; a use may dangle between statements.
        passes: passes by name, those of the script before those of the library.
        pricer: gives ``op.time``.
        targets: finds a device by its name.
        kept: results that some op needs in the end, so that nothing may drop them.
        dropped: results that are gone, with the statement that dropped them.
        entries: what statements did.
        spent: how much was run, shared by all that a script runs.
    """

    graph: Graph
    passes: Mapping[str, RunningPass]
    pricer: Pricer | Target | None = None
    targets: Callable[[str], Target] | None = None
    kept: Collection[str] = ()
    dropped: dict[str, RemovingStatement] = field(default_factory=dict)
    entries: list[Entry] = field(default_factory=list)
    spent: RunCounts = field(default_factory=RunCounts)
    _index: Index | None = None

    @property
    def index(self) -> Index:
        """The index of the present graph, built when first asked for."""
        if self._index is None:
            self._index = index_of(self.graph)
        elif self._index.graph is not self.graph:
            self._index = Index(self.graph)
        return self._index

    def count(self, statement: Running) -> None:
        """Count a statement that is about to run; raise ``IrgraphError`` at one too many."""
        self.spent.statements += 1
        if self.spent.statements > MOST_STATEMENTS:
            message = f"more than {MOST_STATEMENTS} statements would run, loops and passes unrolled"
            hint = "lower the limits of the loops around it: repeat at most N"
            raise fail(message, statement.place, hint=hint)

    def drop(self, members: Iterable[Op], made: Iterable[str], by: RemovingStatement) -> None:
        """Record the results of removed ops that nothing defines any more."""
        results = {t.name for op in members for inner in op.walk() for t in inner.outputs}
        self.dropped.update(dict.fromkeys(results - set(made), by))


@dataclass
class Frame:
    """What one script or pass sees while it runs.

    Attributes:
        state: the run that it belongs to.
        names: values of parameters and lets.
        handles: ops that have names.
        caller: name of the pass, ``""`` for the script itself.
    """

    state: State
    names: dict[str, Value] = field(default_factory=dict)
    handles: dict[str, Handle] = field(default_factory=dict)
    caller: str = ""

    def inner(self, names: Mapping[str, Value] | None = None) -> Frame:
        """Return the frame of a block, which may add names; they end with it."""
        return replace(self, names={**self.names, **(names or {})}, handles=dict(self.handles))

    @property
    def scope(self) -> Scope:
        """The scope of expressions outside of patterns."""
        return Scope(dict(self.names), pricer=self.state.pricer)

    def value(
        self,
        expression: Expression,
        selected: SelectionResult | None = None,
        match: Match | None = None,
    ) -> Value:
        """Return an expression's value, over one match if given.

        One without value is an error at its place.
        """
        scope = self.scope
        if selected is not None and match is not None:
            scope = match_scope(scope, selected.index, match)
        try:
            return evaluate(expression, scope)
        except EvaluationError as error:
            raise fail(str(error), expression.place) from None

    def select(
        self,
        selection: Selection,
        all_: bool = False,
        going: Callable[[Match], bool] | None = None,
    ) -> SelectionResult:
        """Return what a selection matches in the present graph, as ``patterns.select`` does."""
        named = selection.pattern
        if isinstance(named, Module) and named.is_name:
            path = str(self.names[named.path])
            selection = replace(selection, pattern=replace(named, path=path, named=False))
        return select(selection, self.state.index, self.scope, self.handles, all_, going)

    def select_whole(self, selection: Selection) -> SelectionResult:
        """Return what a selection matches; a module or a name stands for all its ops."""
        return self.select(selection, all_=isinstance(selection.pattern, (NamedOps, Module)))

    def name_ops(self, name: str, ops: Iterable[Op], selection: Selection | None = None) -> None:
        """Give ops a name, if there is one."""
        if name:
            self.handles[name] = Handle(tuple(ops), selection)

    def entry(self, statement: Node) -> Entry:
        """Return an entry that says nothing yet."""
        return Entry(statement, self.caller)

    def entry_of(self, statement: Node, selected: SelectionResult, selection: Selection) -> Entry:
        """Return an entry about what a statement selected; nothing matched is a warning."""
        return replace(
            self.entry(statement),
            matched=selected.total,
            first=len(selected.matches) < selected.total,
            tried=selected.misses.tried_ops,
            warnings=() if selected.total else (nothing_matched(selected, selection),),
        )


@dataclass
class Refusals:
    """Changes that a statement does not make, with the reasons.

    Where the statement is about a single match, the first refusal is an error (exit code 1).
    """

    frame: Frame
    place: SourceSpan
    many: bool
    found: list[Diagnostic] = field(default_factory=list)

    def add(self, error: RefusedError, what: str, place: SourceSpan | None = None) -> None:
        """Refuse a change: ``what`` does not happen."""
        made = refusal(error, what, place or self.place, self.frame.state.graph)
        if not self.many:
            raise illegal(made)
        self.found.append(made)

    def add_each(self, left: Iterable[tuple[Op, RefusedError]], what: str) -> None:
        """Refuse what was left out: each reason once, with how many share it."""
        first: dict[str, tuple[Op, RefusedError]] = {}
        count = Counter[str]()
        for op, why in left:
            first.setdefault(why.reason, (op, why))
            count[why.reason] += 1
        for reason, (op, why) in first.items():
            self.add(why, f"{call_of(op)} {what}")
            if count[reason] > 1:
                told = self.found[-1]
                more = f" (and {count[reason] - 1} more)"
                self.found[-1] = replace(told, message=told.message + more)

    def passing(self, ops: Iterable[Op], check: Callable[[Op], object], what: str) -> list[Op]:
        """Return the ops that a check lets pass; each of the others is refused: it ``what``."""
        chosen = []
        for op in ops:
            with self.attempt(f"{call_of(op)} {what}"):
                check(op)
                chosen.append(op)
        return chosen

    @contextmanager
    def attempt(self, what: str) -> Iterator[None]:
        """Try a change; where it is refused, ``what`` does not happen."""
        try:
            yield
        except RefusedError as error:
            refused = error
        except ValueError as error:
            refused = RefusedError(str(error))
        else:
            return
        self.add(refused, what)


def refusal(
    error: RefusedError, what: str, place: SourceSpan, graph: Graph, severity: str = "warning"
) -> Diagnostic:
    """Return why something was not done, with the ops that matter."""
    notes = [
        Diagnostic(message or f"this is {call_of(op)}", op_place(op, graph), severity="note")
        for op, message in error.notes
    ]
    hint = 'if that does not matter here, say why: assuming "..."' if error.of_order else ""
    return Diagnostic(f"{what}: {error.reason}", place, tuple(notes), hint, severity)


def illegal(diagnostic: Diagnostic) -> IrgraphError:
    """Return the error of a statement that may not be done as it stands (exit code 1)."""
    return IrgraphError((replace(diagnostic, severity="error"),), ILLEGAL)


def call_of(op: Op) -> str:
    """Return how messages refer to an op: its name and first result or operand."""
    named = [t.name for t in (op.outputs or op.inputs)]
    return f"{op.name} (%{named[0]})" if named else op.name


def nothing_matched(selected: SelectionResult, selection: Selection) -> Diagnostic:
    """Return the warning that nothing matched, with the nearest miss and the reason."""
    misses, index = selected.misses, selected.index
    message = f"nothing matches {_called(selection.pattern)}"
    if misses.position < 0:
        message += _unheard(selection, index)
        return Diagnostic(message, selection.place, severity="warning")
    op = index.ops[misses.position]
    nearest = f"nearest miss: {call_of(op)}: {misses.reason}"
    note = Diagnostic(nearest, op_place(op, index.graph), severity="note")
    return Diagnostic(message, selection.place, (note,), severity="warning")


def _called(pattern: Series | Module | NamedOps) -> str:
    """Return how messages refer to a pattern: its ops, without arguments."""
    if not isinstance(pattern, Series):
        return str(pattern)
    ops = [op.op for op in pattern.ops]
    return ", ".join(ops if len(ops) <= SHOWN else [*ops[:SHOWN], "…"])


def _unheard(selection: Selection, index: Index) -> str:
    pattern = selection.pattern
    if isinstance(pattern, Module):
        paths = {op.module for op in index.ops}
        hint = "" if pattern.is_name else suggestion(pattern.path, paths)
        return f": the model has no such module{hint}"
    if isinstance(pattern, NamedOps):
        return ""
    name = pattern.ops[0].op
    alike = _near(name, tuple(index.by_name))
    library = name.replace("::", ".").partition(".")[0]
    if not alike and library in ("torch", "nn", "F"):
        alike = op_suggestion(name)
    return f": the model has no {name}{alike}"


@lru_cache(maxsize=256)
def _near(name: str, known: tuple[str, ...]) -> str:
    """Return what ``suggestion`` does: the steps of a search have the same ops."""
    return suggestion(name, known)
