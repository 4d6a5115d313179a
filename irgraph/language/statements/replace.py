"""``replace`` puts the ops of a template in the place of what matches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from dataclasses import replace as changed

from irgraph.ir.edit import names_of
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor
from irgraph.language.checking.checker import Checker
from irgraph.language.checking.templates import check_sequence, check_used
from irgraph.language.clauses import assuming_clause, check_phase, clause, join_words
from irgraph.language.patterns.match import Match
from irgraph.language.patterns.nodes import Bound, NewOp, Selection, Template, flatten_lists
from irgraph.language.patterns.select import SelectionResult, match_scope
from irgraph.language.running.report import Entry
from irgraph.language.running.state import Frame, Refusals, call_of
from irgraph.language.statement import Statement
from irgraph.language.templates.losses import Losses
from irgraph.language.templates.make import make_ops
from irgraph.verbs.autograd.bind import has_backward
from irgraph.verbs.autograd.replacements import ReplacementBatch
from irgraph.verbs.extra_accesses import check_extra_accesses
from irgraph.verbs.fuse import Fusion
from irgraph.verbs.pending import PendingFusions


@dataclass(frozen=True)
class Replace(Statement):
    """``replace selection with template and backward as name assuming "..."``."""

    selection: Selection
    template: Template
    phase: str = ""
    named: str = ""
    assuming: str = ""

    def __str__(self) -> str:
        tail = join_words(clause("as", self.named), assuming_clause(self.assuming))
        both = clause("and", self.phase)
        return join_words("replace", self.selection, "with", self.template, both, tail)

    def check(self, check: Checker) -> None:
        """Check the selection, and the template against what it binds."""
        check_phase(check, self.phase, self.place)
        kinds = check.selection(self.selection)
        check_sequence(check, self.template, kinds)
        check_used(check, self.selection, self.template, kinds.variables)
        check.name_ops(self.named, self.place)

    def instead(self, name: str) -> str:
        """Return what to write where a result is still in use."""
        return f"let the template make %{name}, or include its users in the pattern"

    def run(self, frame: Frame) -> Entry:
        """Replace each match."""
        both = bool(self.phase) and has_backward(frame.state.graph)
        selected = self.select(frame, both)
        work = _ReplaceRun(self, frame, selected, both)
        for root in [selected.op(match.root) for match in selected.matches]:
            while not work.replace(root):
                pass
        frame.state.graph = work.commit()
        made: list[Op] = [op for fusion in work.done for op in fusion.ops]
        frame.name_ops(self.named, made, self.selection)
        assumed = [fusion.assumed for fusion in work.done if fusion.assumed is not None]
        return changed(
            frame.entry_of(self, selected, self.selection),
            groups=len(work.done),
            replaced=work.replaced,
            made=len(made),
            legal=tuple(fusion.legal for fusion in work.done),
            refused=tuple(work.refusals.found),
            assumptions=tuple(f"{call_of(op)}: {self.assuming}" for op in assumed),
        )

    def select(self, frame: Frame, both: bool) -> SelectionResult:
        """Return what matches; with its backward, what matches in the backward pass does not."""
        selected = frame.select(self.selection, all_=both)
        matches = tuple(match for match in selected.matches if not _is_late(selected, match))
        if not both or not matches:
            return selected
        shown = matches if self.selection.many else matches[:1]
        return changed(selected, matches=shown, total=len(matches))


def _is_late(selected: SelectionResult, match: Match) -> bool:
    return any(op.phase == "backward" for op in selected.members(match))


@dataclass
class _ReplaceRun:
    """The replacements of one statement so far; with ``both`` those of their backward, too."""

    statement: Replace
    frame: Frame
    selected: SelectionResult
    both: bool
    done: list[Fusion] = field(default_factory=list)
    replaced: int = 0
    again: dict[int, Op] = field(default_factory=dict)

    def __post_init__(self) -> None:
        statement, frame = self.statement, self.frame
        self.taken = names_of(frame.state.graph)
        if self.both:
            self.gathering = ReplacementBatch(frame.state.graph)
        else:
            self.pending = PendingFusions(frame.state.graph)
        self.refusals = Refusals(frame, statement.place, statement.selection.many)
        self._find()

    def _find(self) -> None:
        """Note the matches by the ops that they begin with."""
        found = {id(self.selected.op(match.root)): match for match in self.selected.matches}
        self.matches = found

    def replace(self, root: Op) -> bool:
        """Replace the match that begins with an op, unless that is not legal.

        Returns whether it is done with; where what was gathered had to be made first, it is not.
        """
        match = self._match(root)
        if match is None:
            return True
        state, selected, template = self.frame.state, self.selected, self.statement.template
        with self.refusals.attempt(f"{call_of(selected.op(match.root))} is not replaced"):
            known = match_scope(self.frame.scope, selected.index, match)
            ops, values = make_ops(
                template.ops, known, match, state.graph, self.taken, alone=not self.both
            )
            redefined = [values[name] for name in _results(template.ops, match)]
            tensors = [value for value in redefined if isinstance(value, Tensor)]
            Losses(selected.index, template.ops, state.kept).check(match, tensors)
            members = selected.members(match)
            made = self._made(members, ops)
            if made is None:
                bound = {tensor.name for tensor in tensors}
                self.taken -= {t.name for op in ops for t in op.outputs} - bound
                return False
            self.done.append(made)
            state.drop(members, [t.name for t in tensors], self.statement)
            self.replaced += len(match.ops)
        return True

    def _match(self, root: Op) -> Match | None:
        """Return the match that begins with an op, found anew where ops of it were called anew."""
        while id(root) in self.again:
            root = self.again[id(root)]
        match = self.matches.get(id(root))
        if not self.both:
            return match
        members = [root] if match is None else [root, *self.selected.members(match)]
        paths = self.gathering.flush_near(members).paths
        if id(root) not in paths:
            return None
        if match is None or any(id(op) not in paths for op in members):
            self.frame.state.graph = self.gathering.commit()
            self.selected = self.statement.select(self.frame, self.both)
            self._find()
        return self.matches.get(id(root))

    def _made(self, members: Sequence[Op], ops: Sequence[Op]) -> Fusion | None:
        """Put ops in the place of members, and what differentiates them, where that is asked."""
        by, assuming = self.frame.caller or "script", self.statement.assuming
        if not self.both:
            check_extra_accesses(self.pending.graph_around([members]), members, ops)
            return self.pending.fuse([members], ops, caller=by, assuming=assuming)
        both = self.gathering.replace(members, ops, caller=by, assuming=assuming)
        self.again.update({} if both is None else both.companions)
        return None if both is None else both.fusion

    def commit(self) -> Graph:
        """Make all replacements, and return the graph."""
        return self.gathering.commit() if self.both else self.pending.commit()


def _results(news: Sequence[NewOp], match: Match) -> list[str]:
    """Return the names of the pattern that a template defines again."""
    names = [
        part.name for new in news for part in flatten_lists(new.results) if isinstance(part, Bound)
    ]
    return [name for name in names if name in match.values]
