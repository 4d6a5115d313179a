"""``replace`` puts the ops of a template in the place of what matches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace as changed

from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor
from irgraph.language.checking.checker import Checker
from irgraph.language.checking.templates import check_sequence, check_used
from irgraph.language.clauses import assuming, clause, words
from irgraph.language.patterns.match import Match
from irgraph.language.patterns.nodes import Bound, NewOp, Selection, Template, opened
from irgraph.language.patterns.select import match_scope
from irgraph.language.running.report import Entry
from irgraph.language.running.state import Frame, Refusals, call_of
from irgraph.language.statement import Statement
from irgraph.language.templates.losses import check_losses
from irgraph.language.templates.make import make_ops, names_of
from irgraph.verbs.fuse import Fusion
from irgraph.verbs.gains import check_gains
from irgraph.verbs.pending import Pending


@dataclass(frozen=True)
class Replace(Statement):
    """``replace selection with template as name assuming "..."``."""

    selection: Selection
    template: Template
    named: str = ""
    assuming: str = ""

    def __str__(self) -> str:
        tail = words(clause("as", self.named), assuming(self.assuming))
        return words("replace", self.selection, "with", self.template, tail)

    def check(self, check: Checker) -> None:
        """Check the selection, and the template against what it binds."""
        kinds = check.selection(self.selection)
        check_sequence(check, self.template, kinds)
        check_used(check, self.selection, self.template, kinds.variables)
        check.name_ops(self.named, self.place)

    def instead(self, name: str) -> str:
        """Return what to write where a result is still in use."""
        return f"let the template make %{name}, or include its users in the pattern"

    def run(self, frame: Frame) -> Entry:
        """Replace each match."""
        state, selected = frame.state, frame.select(self.selection)
        scope, taken = frame.scope, names_of(state.graph)
        pending = Pending(state.graph)
        refusals = Refusals(frame, self.place, self.selection.many)
        matches: list[Match] = []
        done: list[Fusion] = []
        for match in selected.matches:
            with refusals.attempt(f"{call_of(selected.op(match.root))} is not replaced"):
                known = match_scope(scope, selected.index, match)
                ops, values = make_ops(self.template.ops, known, match, state.graph, taken)
                redefined = [values[name] for name in _results(self.template.ops, match)]
                tensors = [value for value in redefined if isinstance(value, Tensor)]
                check_losses(selected.index, match, self.template.ops, tensors, state.kept)
                by, members = frame.caller or "script", selected.members(match)
                check_gains(pending.around([members]), members, ops)
                done.append(pending.fuse([members], ops, by=by, assuming=self.assuming))
                state.drop(members, [t.name for t in tensors], self)
                matches.append(match)
        state.graph = pending.commit()
        made: list[Op] = [op for fusion in done for op in fusion.ops]
        frame.name_ops(self.named, made, self.selection)
        assumed = [fusion.assumed for fusion in done if fusion.assumed is not None]
        return changed(
            frame.entry_of(self, selected, self.selection),
            groups=len(matches),
            replaced=sum(len(match.ops) for match in matches),
            made=len(made),
            legal=tuple(fusion.legal for fusion in done),
            refused=tuple(refusals.found),
            assumptions=tuple(f"{call_of(op)}: {self.assuming}" for op in assumed),
        )


def _results(news: Sequence[NewOp], match: Match) -> list[str]:
    """Return the names of the pattern that a template defines again."""
    names = [part.name for new in news for part in opened(new.results) if isinstance(part, Bound)]
    return [name for name in names if name in match.values]
