"""``replace`` replaces matches with the ops of a template."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from dataclasses import replace as changed

from irgraph.ir.edit import names_of
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op, tensors_in
from irgraph.language.checking.checker import Checker
from irgraph.language.checking.templates import check_sequence, check_used
from irgraph.language.clauses import assuming_clause, check_phase, clause, join_words
from irgraph.language.patterns.match import Match
from irgraph.language.patterns.nodes import Selection, Template
from irgraph.language.patterns.select import SelectionResult, match_scope
from irgraph.language.running.legality import Legality
from irgraph.language.running.report import Entry
from irgraph.language.running.state import Frame, Refusals, call_of
from irgraph.language.statement import Statement
from irgraph.language.templates.losses import Losses
from irgraph.language.templates.make import make_ops
from irgraph.language.templates.replaced import redefined_names, replaced_ops
from irgraph.verbs.autograd.find_backward import has_backward
from irgraph.verbs.autograd.replacements import ReplacementBatch
from irgraph.verbs.extra_accesses import check_extra_accesses
from irgraph.verbs.fuse import Fusion
from irgraph.verbs.meanings import compare_meanings
from irgraph.verbs.pending_fusions import PendingFusions
from irgraph.verbs.small_exchange import OpExchange


@dataclass(frozen=True)
class Replace(Statement):
    """``replace selection with template and backward as name assuming "..."``."""

    selection: Selection
    template: Template
    phase: str = ""
    ops_name: str = ""
    assuming: str = ""

    def __str__(self) -> str:
        tail = join_words(clause("as", self.ops_name), assuming_clause(self.assuming))
        phase_clause = clause("and", self.phase)
        return join_words("replace", self.selection, "with", self.template, phase_clause, tail)

    def check(self, check: Checker) -> None:
        """Check the selection, and the template against the names that it binds."""
        check_phase(check, self.phase, self.place)
        kinds = check.selection(self.selection)
        check_sequence(check, self.template, kinds)
        check_used(check, self.selection, self.template, kinds.variables)
        check.name_ops(self.ops_name, self.place)

    def remedy(self, name: str) -> str:
        """Return a hint for a result that is still in use."""
        return f"let the template make %{name}, or include its users in the pattern"

    def run(self, frame: Frame) -> Entry:
        """Replace each match."""
        with_backward = bool(self.phase) and has_backward(frame.state.graph)
        selected = self.select(frame, with_backward)
        work = _ReplaceRun(self, frame, selected, with_backward)
        for root in [selected.op(match.root) for match in selected.matches]:
            while not work.replace(root):
                pass
        frame.state.graph = work.commit()
        new_ops: list[Op] = [op for fusion in work.fusions for op in fusion.ops]
        frame.name_ops(self.ops_name, new_ops, self.selection)
        assumed = [fusion.assumed for fusion in work.fusions if fusion.assumed is not None]
        return changed(
            frame.entry_of(self, selected, self.selection),
            groups=len(work.fusions),
            replaced=work.replaced_count,
            made=len(new_ops),
            **work.legality.sentences(),
            refused=tuple(work.refusals.diagnostics),
            assumptions=tuple(f"{call_of(op)}: {self.assuming}" for op in assumed),
        )

    def select(self, frame: Frame, with_backward: bool) -> SelectionResult:
        """Return the matches; those in the backward pass are omitted with ``with_backward``."""
        selected = frame.select(self.selection, all_=with_backward)
        matches = tuple(match for match in selected.matches if not _is_in_backward(selected, match))
        if not with_backward or not matches:
            return selected
        retained = matches if self.selection.many else matches[:1]
        return changed(selected, matches=retained, total=len(matches))


def _is_in_backward(selected: SelectionResult, match: Match) -> bool:
    return any(op.phase == "backward" for op in selected.members(match))


@dataclass
class _ReplaceRun:
    """The replacements of one statement so far, and of its backward with ``with_backward``."""

    statement: Replace
    frame: Frame
    selected: SelectionResult
    with_backward: bool
    fusions: list[Fusion] = field(default_factory=list)
    replaced_count: int = 0
    successors: dict[Op, Op] = field(default_factory=dict)
    legality: Legality = field(default_factory=Legality)

    def __post_init__(self) -> None:
        statement, frame = self.statement, self.frame
        self.used_names = names_of(frame.state.graph)
        if self.with_backward:
            self.batch = ReplacementBatch(frame.state.graph)
        else:
            self.pending = PendingFusions(frame.state.graph)
        self.refusals = Refusals(frame, statement.place, statement.selection.many)
        self._index_matches()

    def _index_matches(self) -> None:
        """Index the matches by their root ops."""
        self.matches = {self.selected.op(match.root): match for match in self.selected.matches}

    def replace(self, root: Op) -> bool:
        """Replace the match whose root is an op, if that is legal.

        Returns whether the op is finished; it is not if the batch had to be committed first.
        """
        match = self._match(root)
        if match is None:
            return True
        state, selected, template = self.frame.state, self.selected, self.statement.template
        with self.refusals.attempt(f"{call_of(selected.op(match.root))} is not replaced"):
            scope = match_scope(self.frame.scope, selected.index, match)
            ops, values = make_ops(
                template.ops,
                scope,
                match,
                state.graph,
                self.used_names,
                checks_sharing=not self.with_backward,
            )
            redefined = [values[name] for name in redefined_names(template.ops, match)]
            tensors = list(tensors_in(redefined))
            Losses(
                selected.index,
                template.ops,
                state.required_results,
                self.statement.selection.condition,
            ).check(match, tensors)
            members = replaced_ops(selected, match, template.ops)
            comparison = compare_meanings(state.graph, OpExchange(tuple(members), tuple(ops)))
            fusion = self._build(members, ops)
            if fusion is None:
                bound = {tensor.name for tensor in tensors}
                self.used_names -= {t.name for op in ops for t in op.outputs} - bound
                return False
            self.fusions.append(fusion)
            self.legality.add(comparison, fusion.legal)
            state.drop(members, [t.name for t in tensors], self.statement)
            self.replaced_count += len(match.ops)
        return True

    def _match(self, root: Op) -> Match | None:
        """Return the match whose root is an op, found again if its ops were rebuilt."""
        while root in self.successors:
            root = self.successors[root]
        match = self.matches.get(root)
        if not self.with_backward:
            return match
        members = [root]
        if match is not None:
            members += replaced_ops(self.selected, match, self.statement.template.ops)
        paths = self.batch.flush_near(members).paths
        if root not in paths:
            return None
        if match is None or any(op not in paths for op in members):
            self.frame.state.graph = self.batch.commit()
            self.selected = self.statement.select(self.frame, self.with_backward)
            self._index_matches()
        return self.matches.get(root)

    def _build(self, members: Sequence[Op], ops: Sequence[Op]) -> Fusion | None:
        """Replace members, and their backward if requested, with ops; ``None`` to try again."""
        caller, assuming = self.frame.caller or "script", self.statement.assuming
        if not self.with_backward:
            check_extra_accesses(self.pending.graph_around([members]), members, ops)
            return self.pending.fuse([members], ops, caller=caller, assuming=assuming)
        replacement = self.batch.replace(members, ops, caller=caller, assuming=assuming)
        self.successors.update({} if replacement is None else replacement.companions)
        return None if replacement is None else replacement.fusion

    def commit(self) -> Graph:
        """Commit all replacements, and return the graph."""
        return self.batch.commit() if self.with_backward else self.pending.commit()
