"""``fuse`` makes one op of each match, or of each group of matches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial

from irgraph.diagnostics import SourceSpan
from irgraph.ir.calls import call_error
from irgraph.ir.op import Op, Value
from irgraph.language.checking.checker import Checker
from irgraph.language.checking.templates import check_op, check_used
from irgraph.language.clauses import assuming_clause, clause, join_words
from irgraph.language.expressions.evaluate import EvaluationError, Scope, evaluate, failure_reason
from irgraph.language.expressions.kinds import Kinds
from irgraph.language.expressions.nodes import Expression, Splat
from irgraph.language.expressions.values import spell
from irgraph.language.patterns.match import Match
from irgraph.language.patterns.misses import text_of
from irgraph.language.patterns.nodes import NewOp, Selection, Series, Template
from irgraph.language.patterns.select import SelectionResult, index_facts, match_scope
from irgraph.language.running.report import Entry
from irgraph.language.running.state import Frame, Refusals, call_of
from irgraph.language.statement import Statement
from irgraph.language.templates.fill import Filler
from irgraph.language.templates.losses import Losses, rest_of
from irgraph.verbs.extra_accesses import check_extra_accesses
from irgraph.verbs.fuse import Fusion
from irgraph.verbs.partition import Partition, partition
from irgraph.verbs.pending import PendingFusions
from irgraph.verbs.refusal import RefusedError
from irgraph.verbs.sequence import Segment


@dataclass(frozen=True)
class Fuse(Statement):
    """``fuse selection group by ... having ... into template as name assuming "..."``."""

    selection: Selection
    _: KW_ONLY
    keys: tuple[Expression, ...] = ()
    having: Expression | None = None
    template: Template
    named: str = ""
    assuming: str = ""

    def __str__(self) -> str:
        groups = join_words(clause("group by", self.keys), clause("having", self.having))
        tail = join_words(clause("as", self.named), assuming_clause(self.assuming))
        return join_words("fuse", self.selection, groups, "into", self.template, tail)

    def check(self, check: Checker) -> None:
        """Check the selection, the template against what it binds, and the groups."""
        kinds = check.selection(self.selection)
        if len(self.template.ops) > 1:
            check.note("fuse makes a single op; use 'replace' to make several", self.template.place)
        if not isinstance(self.selection.pattern, Series):
            message = "fuse needs an op pattern that names the operands of the new op"
            hint = "as in fuse %y = aten.relu(%x) into ..."
            check.note(message, self.selection.pattern.place, hint)
            return
        bound = kinds.variables
        check_op(check, self.template.ops[0], kinds, bound, bound)
        for key in self.keys:
            kinds.infer(key)
        self._check_columns(check)
        if self.having is not None:
            names = {**check.names, "count": "number"}
            Kinds(names, {}, check.problems, frozenset(map(str, self.keys))).require_condition(
                self.having
            )
        check_used(check, self.selection, self.template, bound, (*self.keys, self.having))
        check.name_ops(self.named, self.place)

    def _check_columns(self, check: Checker) -> None:
        """A group needs ``many``, and a template that takes columns."""
        splat = _has_splat(self.template.ops[0])
        if self.keys and not self.selection.many:
            message = "'group by' needs 'many': a single match is not a group"
            check.note(message, self.keys[0].place)
        elif splat and not self.selection.many:
            check.note("'*' collects all matches of a group: add 'many'", self.template.place)
        elif self.keys and not splat:
            message = "a group becomes one op: collect its values, as in [*%w]"
            check.note(message, self.template.place)

    def instead(self, name: str) -> str:
        """Return what to write where a result is still in use."""
        return f"let the template make %{name}, or include its users in the pattern"

    def run(self, frame: Frame) -> Entry:
        """Fuse what matches."""
        fusing = _FuseRun(self, frame, frame.select(self.selection))
        fusing.run()
        done = fusing.done
        made = [fusion.op for fusion in done]
        frame.name_ops(self.named, made, self.selection)
        assumed = [fusion.assumed for fusion in done if fusion.assumed is not None]
        return replace(
            frame.entry_of(self, fusing.selected, self.selection),
            groups=len(done),
            replaced=fusing.replaced,
            made=len(made),
            legal=tuple(fusion.legal for fusion in done),
            refused=tuple(fusing.refusals.found),
            assumptions=tuple(f"{call_of(op)}: {self.assuming}" for op in assumed),
        )


def _has_splat(new: NewOp) -> bool:
    """Return whether a template takes columns: all matches of a group at once."""
    return any(isinstance(node, Splat) for node in new.walk())


@dataclass
class _FuseRun:
    """One ``fuse`` statement while it runs."""

    statement: Fuse
    frame: Frame
    selected: SelectionResult
    scopes: dict[int, Scope] = field(default_factory=dict)
    done: list[Fusion] = field(default_factory=list)
    replaced: int = 0

    def __post_init__(self) -> None:
        statement, self.state = self.statement, self.frame.state
        self.new = statement.template.ops[0]
        self.scope = self.frame.scope
        self.pending = PendingFusions(self.state.graph)
        self.refusals = Refusals(self.frame, statement.place, statement.selection.many)
        self.losses = Losses(self.selected.index, (self.new,), self.state.kept)
        self.facts = index_facts(self.selected.index, self.scope.pricer)
        self.spelt: dict[object, str] = {}

    def run(self) -> None:
        sound = [match for match in self.selected.matches if self._is_sound(match)]
        if _has_splat(self.new):
            for group in self._grouped(sound):
                self._fuse_group(group)
        else:
            for match in sound:
                self._fuse_set([match], None)
        self.state.graph = self.pending.commit()

    def scope_of(self, match: Match) -> Scope:
        known = self.scopes.get(id(match))
        if known is None:
            known = self.scopes[id(match)] = match_scope(
                self.scope, self.selected.index, match, self.facts
            )
        return known

    def refuse(self, error: RefusedError, *matches: Match, place: SourceSpan | None = None) -> None:
        self.refusals.add(error, self._not_fused(matches), place)

    def _not_fused(self, matches: Sequence[Match]) -> str:
        first = call_of(self.selected.op(matches[0].root))
        more = len(matches) - 1
        return f"{first} and {more} more are not fused" if more else f"{first} is not fused"

    def _is_sound(self, match: Match) -> bool:
        try:
            made = Filler([self.scope_of(match)], [()]).results(self.new)
            self.losses.check(match, made)
        except RefusedError as error:
            self.refuse(error, match)
            return False
        return True

    def _grouped(self, matches: Iterable[Match]) -> list[list[Match]]:
        """Return matches by the values of the group's keys, in order of first appearance."""
        found: dict[str, list[Match]] = {}
        for match in matches:
            scope = self.scope_of(match)
            try:
                values = [evaluate(key, scope) for key in self.statement.keys]
            except EvaluationError as error:
                self.refuse(RefusedError(str(error)), match)
                continue
            found.setdefault(self._spelt(values), []).append(match)
        return [group for group in found.values() if self._is_wanted(group)]

    def _spelt(self, values: Sequence[Value]) -> str:
        """Return the text of values; of many matches the values are the same."""
        key = tuple([(type(value), value) for value in values])
        if any(isinstance(v, tuple) or v == 0.0 for v in values):  # equal ones may be spelt apart
            return ", ".join(map(spell, values))
        found = self.spelt.get(key)
        if found is None:
            found = self.spelt[key] = ", ".join(map(spell, values))
        return found

    def _is_wanted(
        self, group: Sequence[Match], tie: Callable[[], RefusedError | None] = lambda: None
    ) -> bool:
        """Apply ``having``; groups that are too small are said, not dropped silently."""
        first, having = self.scope_of(group[0]), self.statement.having
        known = {str(key): evaluate(key, first) for key in self.statement.keys}
        names = {**self.scope.names, "count": len(group)}
        reason = text_of(
            failure_reason(having, replace(self.scope, names=names, values_by_text=known))
        )
        if not reason:
            return True
        keys = ", ".join(f"{key} = {spell(value)}" for key, value in known.items())
        left_out = f"its group ({keys}) is left out: {reason}" if keys else reason
        why = tie()
        more = f"; {why.reason}" if why else ""
        error = RefusedError(left_out + more, why.notes if why else ())
        self.refuse(error, *group, place=having.place if having is not None else None)
        return False

    def _fuse_group(self, group: Sequence[Match]) -> None:
        """Fuse what is independent in a group; the rest in later ops of their own."""
        try:
            members = [self.selected.members(match) for match in group]
            parting = partition(self.pending.graph_around(members), members)
        except ValueError:
            self.refuse(RefusedError("an earlier fusion changed it"), *group)
            return
        for i in parting.knotted:
            reason = "a dependence path leaves it and returns to it"
            self.refuse(RefusedError(reason, parting.tie([i])), group[i])
        whole = len(parting.sets) == 1 and not parting.knotted
        for number, chosen in enumerate(parting.sets):
            matches = [group[i] for i in chosen]
            if whole or self._is_wanted(matches, partial(_tie_of, parting, number)):
                self._fuse_set(matches, parting.span if whole else None)

    def _fuse_set(self, matches: Sequence[Match], known: Segment | None) -> None:
        filler = Filler([self.scope_of(m) for m in matches], [rest_of(m) for m in matches])
        groups = [self.selected.members(match) for match in matches]
        by, assuming = self.frame.caller or "script", self.statement.assuming
        with self.refusals.attempt(self._not_fused(matches)):
            new = filler.make(self.new, self.state.graph.schemas)
            if problem := call_error(new):
                raise RefusedError(f"{new.name} would be wrong: {problem}")
            members: list[Op] = [op for group in groups for op in group]
            check_extra_accesses(self.pending.graph_around(groups), members, [new])
            fusion = self.pending.fuse(
                groups, [new], caller=by, assuming=assuming, known_segment=known
            )
            self.state.drop(members, [t.name for t in fusion.op.outputs], self.statement)
            self.replaced += len(members)
            self.done.append(fusion)


def _tie_of(parting: Partition, number: int) -> RefusedError | None:
    """Return why a set of groups could not join the one before it, or the second the first."""
    if len(parting.sets) == 1:
        return None
    chain = parting.tie((*parting.sets[number], *parting.sets[number - 1 if number else 1]))
    return RefusedError("the others depend on it or it on them", chain)
