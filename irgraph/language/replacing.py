"""Runs ``replace`` and ``insert``: templates of several ops with new results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from irgraph.ir.op import Op, Value
from irgraph.ir.tensor import Tensor
from irgraph.language.build import BuildError
from irgraph.language.losses import check_losses
from irgraph.language.match import Match
from irgraph.language.patterns import Bound, NewOp, result_parts
from irgraph.language.select import Handle, Selected, match_scope
from irgraph.language.state import (
    Frame,
    State,
    call_of,
    entry_of,
    illegal,
    members_of,
    refusal,
)
from irgraph.language.templates import make_ops, names_of
from irgraph.language.tree import Insert, Replace
from irgraph.language.values import counted, spell
from irgraph.text.diagnostics import Diagnostic
from irgraph.verbs.insert import Insertion, check_insertion, insert
from irgraph.verbs.pending import Pending
from irgraph.verbs.refusal import RefusedError

COMMUNICATION = ("c10d", "c10d_functional", "_c10d_functional")
"""Libraries whose ops talk to other processes."""


@dataclass
class Attempts:
    """Tries a change for each match; what is not legal is said, or an error where one is meant.

    Attributes:
        many: whether the statement is about all matches.
        what: what would not have happened, as in ``not replaced``.
    """

    statement: Replace | Insert
    state: State
    selected: Selected
    many: bool
    what: str
    refused: list[Diagnostic] = field(default_factory=list)

    def each(self, matches: Sequence[Match], change: Callable[[Match], None]) -> Iterator[Match]:
        """Yield the matches for which the change was made."""
        for match in matches:
            try:
                change(match)
            except (BuildError, ValueError) as error:
                self._refuse(RefusedError(str(error)), match)
            except RefusedError as error:
                self._refuse(error, match)
            else:
                yield match

    def _refuse(self, error: RefusedError, match: Match) -> None:
        index = self.selected.index
        what = f"{call_of(index.ops[match.root])} is {self.what}"
        diagnostic = refusal(error, what, self.statement.place, index.graph)
        if not self.many:
            raise illegal(diagnostic)
        self.refused.append(diagnostic)


def run_replace(statement: Replace, state: State, frame: Frame) -> None:
    """Put the template's ops in the place of each match."""
    selected = state.select(statement.selection, frame)
    scope, taken = state.scope(frame), names_of(state.graph)
    pending = Pending(state.graph)
    made: list[Op] = []
    legal: list[str] = []
    assumed: list[str] = []

    def change(match: Match) -> None:
        known = match_scope(scope, selected.index, match)
        members = members_of(selected, match.ops)
        ops, values = make_ops(statement.template.ops, known, match, state.graph, taken)
        redefined = [values[name] for name in _results(statement.template.ops, match)]
        tensors = [value for value in redefined if isinstance(value, Tensor)]
        check_losses(selected.index, match, statement.template.ops, tensors, state.kept)
        by, reason = frame.caller or "script", statement.assuming
        done = pending.fuse([members], ops, by=by, assuming=reason)
        state.drop(members, [t.name for t in tensors], statement)
        made.extend(done.ops)
        legal.append(done.legal)
        if done.assumed is not None:
            assumed.append(f"{call_of(done.assumed)}: {reason}")

    attempts = Attempts(statement, state, selected, statement.selection.many, "not replaced")
    done = list(attempts.each(selected.matches, change))
    state.graph = pending.commit()
    if statement.named:
        frame.handles[statement.named] = Handle(tuple(made), statement.selection)
    state.entries.append(
        replace(
            entry_of(statement, frame, selected, statement.selection),
            groups=len(done),
            replaced=sum(len(match.ops) for match in done),
            made=len(made),
            legal=tuple(legal),
            refused=tuple(attempts.refused),
            assumptions=tuple(assumed),
        )
    )


def _results(news: Sequence[NewOp], match: Match) -> list[str]:
    """Return the names of the pattern that a template defines again."""
    names = [part.name for new in news for part in result_parts(new) if isinstance(part, Bound)]
    return [name for name in names if name in match.values]


def run_insert(statement: Insert, state: State, frame: Frame) -> None:
    """Put the template's ops beside each match of the anchor."""
    anchor = statement.anchor
    selected = state.select(anchor.selection, frame, all_=bool(anchor.nth))
    matches = selected.matches
    if anchor.nth:
        matches = matches[:1] if anchor.nth == "first" else matches[-1:]
    scope, taken = state.scope(frame), names_of(state.graph)
    found: list[Insertion] = []

    def change(match: Match) -> None:
        known = match_scope(scope, selected.index, match)
        ops, values = make_ops(statement.template.ops, known, match, state.graph, taken)
        here = match.ops[-1] if anchor.side == "after" else match.ops[0]
        swaps = [(_tensor(values, s.old), _tensor(values, s.new)) for s in statement.swaps]
        by = frame.caller or "script"
        named = tuple(replace(op, origin=f"{by}: insert") for op in ops)
        at = selected.index.ops[here]
        insertion = Insertion(named, at, anchor.side == "after", tuple(swaps))
        check_insertion(state.graph, insertion)
        found.append(insertion)

    attempts = Attempts(statement, state, selected, anchor.selection.many, "left alone")
    done = list(attempts.each(matches, change))
    was = state.graph
    state.graph, made = insert(was, found)
    entry = entry_of(statement, frame, selected, anchor.selection)
    if any(map(_communicates, made)) and not any(map(_communicates, was.leaves())):
        entry = replace(entry, warnings=(_first_communication(statement, len(made)),))
    if statement.named:
        frame.handles[statement.named] = Handle(made, anchor.selection)
    state.entries.append(
        replace(
            entry,
            groups=len(done),
            made=len(made),
            legal=("what they take is defined there",) if done else (),
            refused=tuple(attempts.refused),
        )
    )


def _communicates(op: Op) -> bool:
    return op.name.partition(".")[0] in COMMUNICATION


def _first_communication(statement: Insert, made: int) -> Diagnostic:
    added = counted(made, "op")
    message = f"the model has no communication of its own; one process runs without the {added}"
    return Diagnostic(message, statement.place, severity="note")


def _tensor(values: dict[str, Value], name: str) -> Tensor:
    value = values.get(name)
    if not isinstance(value, Tensor):
        raise BuildError(f"%{name} is {spell(value)}, not a tensor")
    return value
