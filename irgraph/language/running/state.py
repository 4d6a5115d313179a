"""The state of a running script: the graph so far, names, and entries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol

from irgraph.diagnostics import Diagnostic, IrgraphError, SourceSpan, fail, suggestion
from irgraph.facts import cached_calls
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op, Value
from irgraph.ir.schema import op_suggestion
from irgraph.language.clauses import Parameter
from irgraph.language.expressions.evaluate import EvaluationError, Pricer, Scope, Target, evaluate
from irgraph.language.expressions.nodes import Expression, Node
from irgraph.language.patterns.index import Index, index_of
from irgraph.language.patterns.match import Match
from irgraph.language.patterns.nodes import Module, NamedOps, Selection, Series
from irgraph.language.patterns.select import Handle, Loss, SelectionResult, match_scope, select
from irgraph.language.running.report import Entry, op_place
from irgraph.verbs.refusal import RefusedError

ILLEGAL = 1
"""Exit code of an illegal change or a failed expectation."""

MAX_STATEMENTS = 5_000
"""Maximum number of statements of a script or a sweep's run, loops and passes unrolled."""

MAX_SHOWN_OPS = 4
"""Maximum number of ops of a series that messages name."""


class RunnableStatement(Protocol):
    """A statement, as a run sees it."""

    @property
    def place(self) -> SourceSpan:
        """The statement's position in its text."""

    def run(self, frame: Frame) -> Entry | None:
        """Run the statement, and return its entry, if any."""


class RemovingStatement(RunnableStatement, Protocol):
    """A statement that removes results."""

    @property
    def selection(self) -> Selection:
        """The ops whose results it removes."""

    def remedy(self, name: str) -> str:
        """Return a hint for a result that is still in use."""


class RunningPass(Protocol):
    """A pass, as a run sees it."""

    @property
    def parameters(self) -> Sequence[Parameter]:
        """Its parameters."""

    @property
    def body(self) -> Sequence[RunnableStatement]:
        """Its statements."""


@dataclass
class RunCounts:
    """Numbers of statements run so far (in the present run of a sweep), and of runs of sweeps."""

    statements: int = 0
    runs: int = 0


@dataclass
class State:
    """The state of one run.

    Attributes:
        graph: the graph so far; a use may dangle between statements.
        passes: passes by name, those of the script before those of the library.
        pricer: returns ``op.time``.
        targets: finds a device by its name.
        required_results: results that some op uses in the end, which no statement may drop.
        dropped_results: removed results, with the statement that removed each.
        entries: the entries of the statements.
        counts: numbers of statements and runs, shared by everything that a script runs.
    """

    graph: Graph
    passes: Mapping[str, RunningPass]
    pricer: Pricer | Target | None = None
    targets: Callable[[str], Target] | None = None
    required_results: Collection[str] = ()
    dropped_results: dict[str, RemovingStatement] = field(default_factory=dict)
    entries: list[Entry] = field(default_factory=list)
    counts: RunCounts = field(default_factory=RunCounts)
    _index: Index | None = None

    @property
    def index(self) -> Index:
        """The index of the present graph, built on first use."""
        if self._index is None:
            self._index = index_of(self.graph)
        elif self._index.graph is not self.graph:
            self._index = Index(self.graph)
        return self._index

    def count(self, statement: RunnableStatement) -> None:
        """Count a statement that is about to run; raise ``IrgraphError`` above the limit."""
        self.counts.statements += 1
        if self.counts.statements > MAX_STATEMENTS:
            message = f"more than {MAX_STATEMENTS} statements would run, loops and passes unrolled"
            hint = "lower the limits of the loops around it: repeat at most N"
            raise fail(message, statement.place, hint=hint)

    def drop(
        self, members: Iterable[Op], redefined: Iterable[str], statement: RemovingStatement
    ) -> None:
        """Record the results of removed ops, except the ``redefined`` ones."""
        results = {t.name for op in members for inner in op.walk() for t in inner.outputs}
        self.dropped_results.update(dict.fromkeys(results - set(redefined), statement))


@dataclass
class Frame:
    """The scope of a script or a pass while it runs.

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
        """Return an expression's value, over one match if it is given.

        Raises ``IrgraphError`` at the expression's place if it has none.
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
        try_remove: Callable[[Match], bool] | None = None,
    ) -> SelectionResult:
        """Return the matches of a selection in the present graph, as ``patterns.select`` does."""
        pattern = selection.pattern
        if isinstance(pattern, Module) and pattern.is_name:
            path = str(self.names[pattern.path])
            selection = replace(selection, pattern=replace(pattern, path=path, is_name=False))
        return select(selection, self.state.index, self.scope, self.handles, all_, try_remove)

    def select_whole(self, selection: Selection) -> SelectionResult:
        """Return the matches of a selection, with all ops of a module or a name."""
        return self.select(selection, all_=isinstance(selection.pattern, (NamedOps, Module)))

    def name_ops(self, name: str, ops: Iterable[Op], selection: Selection | None = None) -> None:
        """Store ops under a name, unless it is empty."""
        if name:
            self.handles[name] = Handle(tuple(ops), selection)

    def note_losses(self, statement: RunnableStatement) -> None:
        """Record the first op of each name that a statement removed or replaced."""
        became = self.state.graph.became
        for name, handle in self.handles.items():
            removed_op = next((op for op in handle.ops if not became(op)), None)
            if handle.loss is None and removed_op is not None:
                self.handles[name] = replace(handle, loss=Loss(removed_op, statement.place))

    def entry(self, statement: Node) -> Entry:
        """Return an empty entry of a statement."""
        return Entry(statement, self.caller)

    def entry_of(self, statement: Node, selected: SelectionResult, selection: Selection) -> Entry:
        """Return an entry about a statement's selection, with a warning if nothing matches."""
        return replace(
            self.entry(statement),
            matched=selected.total,
            first=len(selected.matches) < selected.total,
            tried=selected.misses.tried_ops,
            warnings=() if selected.total else (nothing_matched(selected, selection),),
        )


@dataclass
class Refusals:
    """Changes that a statement refuses, with the reasons.

    If the statement is about a single match, the first refusal is an error (exit code 1).
    """

    frame: Frame
    place: SourceSpan
    many: bool
    diagnostics: list[Diagnostic] = field(default_factory=list)

    def add(self, error: RefusedError, consequence: str, place: SourceSpan | None = None) -> None:
        """Record the refusal of a change; ``consequence`` is a clause such as "x is not cast"."""
        diagnostic = refusal(error, consequence, place or self.place, self.frame.state.graph)
        if not self.many:
            raise illegal(diagnostic)
        self.diagnostics.append(diagnostic)

    def add_each(self, refused: Iterable[tuple[Op, RefusedError]], predicate: str) -> None:
        """Record refusals of ops, once for each reason with the number of ops that share it.

        ``predicate`` completes the message after the op's name: "is not cast".
        """
        first_by_reason: dict[str, tuple[Op, RefusedError]] = {}
        count = Counter[str]()
        for op, refusal_error in refused:
            first_by_reason.setdefault(refusal_error.reason, (op, refusal_error))
            count[refusal_error.reason] += 1
        for reason, (op, refusal_error) in first_by_reason.items():
            self.add(refusal_error, f"{call_of(op)} {predicate}")
            if count[reason] > 1:
                last = self.diagnostics[-1]
                more = f" (and {count[reason] - 1} more)"
                self.diagnostics[-1] = replace(last, message=last.message + more)

    def accepted_ops(
        self, ops: Iterable[Op], check: Callable[[Op], object], predicate: str
    ) -> list[Op]:
        """Return the ops that pass a check, and record the refusal of each other op.

        ``predicate`` completes the message after the op's name: "is not cast".
        """
        accepted = []
        for op in ops:
            with self.attempt(f"{call_of(op)} {predicate}"):
                check(op)
                accepted.append(op)
        return accepted

    @contextmanager
    def attempt(self, consequence: str) -> Iterator[None]:
        """Record the refusal of a change that is tried in this context, if it is refused.

        ``consequence`` is a clause such as "x is not cast".
        """
        try:
            yield
        except RefusedError as error:
            refused = error
        except ValueError as error:
            refused = RefusedError(str(error))
        else:
            return
        self.add(refused, consequence)


def refusal(
    error: RefusedError,
    consequence: str,
    place: SourceSpan,
    graph: Graph,
    severity: str = "warning",
) -> Diagnostic:
    """Return the diagnostic of a refused change, with the ops that matter as notes."""
    notes = [
        Diagnostic(message or f"this is {call_of(op)}", op_place(op, graph), severity="note")
        for op, message in error.notes
    ]
    hint = 'if that does not matter here, say why: assuming "..."' if error.of_order else ""
    return Diagnostic(f"{consequence}: {error.reason}", place, tuple(notes), hint, severity)


def illegal(diagnostic: Diagnostic) -> IrgraphError:
    """Return the error of a statement that is illegal as written (exit code 1)."""
    return IrgraphError((replace(diagnostic, severity="error"),), ILLEGAL)


def call_of(op: Op) -> str:
    """Return the text of an op in messages: its name and first result or operand."""
    names = [t.name for t in (op.outputs or op.inputs)]
    return f"{op.name} (%{names[0]})" if names else op.name


def nothing_matched(selected: SelectionResult, selection: Selection) -> Diagnostic:
    """Return the warning that nothing matched, with the nearest miss and the reason."""
    misses, index = selected.misses, selected.index
    message = f"nothing matches {_pattern_text(selection.pattern)}"
    if misses.position < 0:
        message += _unknown_name_note(selection, index)
        return Diagnostic(message, selection.place, severity="warning")
    op = index.ops[misses.position]
    nearest = f"nearest miss: {call_of(op)}: {misses.reason}"
    note = Diagnostic(nearest, op_place(op, index.graph), severity="note")
    return Diagnostic(message, selection.place, (note,), severity="warning")


def _pattern_text(pattern: Series | Module | NamedOps) -> str:
    """Return the text of a pattern in messages: its ops, without arguments."""
    if not isinstance(pattern, Series):
        return str(pattern)
    ops = [op.op for op in pattern.ops]
    return ", ".join(ops if len(ops) <= MAX_SHOWN_OPS else [*ops[:MAX_SHOWN_OPS], "…"])


def _unknown_name_note(selection: Selection, index: Index) -> str:
    pattern = selection.pattern
    if isinstance(pattern, Module):
        paths = {op.module for op in index.ops}
        hint = "" if pattern.is_name else suggestion(pattern.path, paths)
        return f": the model has no such module{hint}"
    if isinstance(pattern, NamedOps):
        return ""
    name = pattern.ops[0].op
    if name in index.by_name:
        example = "{ %s = aten.relu(%a)  %y = aten.mul(%s, %s) }"
        return f": no {name} has these operands; an op that is read twice has a name: {example}"
    similar = _cached_suggestion(name, tuple(index.by_name))
    library = name.replace("::", ".").partition(".")[0]
    if not similar and library in ("torch", "nn", "F"):
        similar = op_suggestion(name)
    return f": the model has no {name}{similar}"


@cached_calls(256)
def _cached_suggestion(name: str, names: tuple[str, ...]) -> str:
    """Return the result of ``suggestion``, cached as the steps of a search have the same ops."""
    return suggestion(name, names)
