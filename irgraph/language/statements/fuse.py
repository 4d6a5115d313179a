"""``fuse`` replaces each match, or each group of matches, with one op."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial

from irgraph.diagnostics import SourceSpan
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
from irgraph.language.running.legality import Legality
from irgraph.language.running.report import Entry
from irgraph.language.running.state import Frame, Refusals, call_of
from irgraph.language.statement import Statement
from irgraph.language.templates.fill import Filler
from irgraph.language.templates.losses import Losses, rest_of
from irgraph.language.templates.replaced import replaced_ops
from irgraph.ops.rules.call_errors import call_error
from irgraph.verbs.extra_accesses import check_extra_accesses
from irgraph.verbs.fuse import Fusion
from irgraph.verbs.meanings import MeaningComparison, compare_meanings, kind_of
from irgraph.verbs.partition import Partition, partition
from irgraph.verbs.pending_fusions import PendingFusions
from irgraph.verbs.refusal import RefusedError
from irgraph.verbs.sequence import Segment
from irgraph.verbs.small_exchange import OpExchange

MAX_EQUAL_MATCHES = 2
"""Number of matches of a group with equal types and arguments that are compared by values."""


@dataclass(frozen=True)
class Fuse(Statement):
    """``fuse selection group by ... having ... into template as name assuming "..."``."""

    selection: Selection
    _: KW_ONLY
    keys: tuple[Expression, ...] = ()
    having: Expression | None = None
    template: Template
    ops_name: str = ""
    assuming: str = ""

    def __str__(self) -> str:
        groups = join_words(clause("group by", self.keys), clause("having", self.having))
        tail = join_words(clause("as", self.ops_name), assuming_clause(self.assuming))
        return join_words("fuse", self.selection, groups, "into", self.template, tail)

    def check(self, check: Checker) -> None:
        """Check the selection, the template against the names that it binds, and the groups."""
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
        check.name_ops(self.ops_name, self.place)

    def _check_columns(self, check: Checker) -> None:
        """Check that a group has ``many``, and a template with columns."""
        splat = _has_splat(self.template.ops[0])
        if self.keys and not self.selection.many:
            message = "'group by' needs 'many': a single match is not a group"
            check.note(message, self.keys[0].place)
        elif splat and not self.selection.many:
            check.note("'*' collects all matches of a group: add 'many'", self.template.place)
        elif self.keys and not splat:
            message = "a group becomes one op: collect its values, as in [*%w]"
            check.note(message, self.template.place)

    def remedy(self, name: str) -> str:
        """Return a hint for a result that is still in use."""
        return f"let the template make %{name}, or include its users in the pattern"

    def run(self, frame: Frame) -> Entry:
        """Fuse the matches."""
        fusion_run = _FuseRun(self, frame, frame.select(self.selection))
        fusion_run.run()
        fusions = fusion_run.fusions
        new_ops = [fusion.op for fusion in fusions]
        frame.name_ops(self.ops_name, new_ops, self.selection)
        assumed = [fusion.assumed for fusion in fusions if fusion.assumed is not None]
        assumed += fusion_run.different_ops
        return replace(
            frame.entry_of(self, fusion_run.selected, self.selection),
            groups=len(fusions),
            replaced=fusion_run.replaced_count,
            made=len(new_ops),
            **fusion_run.legality.sentences(),
            refused=tuple(fusion_run.refusals.diagnostics),
            assumptions=tuple(f"{call_of(op)}: {self.assuming}" for op in assumed),
        )


def _has_splat(new: NewOp) -> bool:
    """Return whether a template has columns: values of all matches of a group."""
    return any(isinstance(node, Splat) for node in new.walk())


@dataclass
class _FuseRun:
    """One ``fuse`` statement while it runs."""

    statement: Fuse
    frame: Frame
    selected: SelectionResult
    scopes: dict[int, Scope] = field(default_factory=dict)
    fusions: list[Fusion] = field(default_factory=list)
    replaced_count: int = 0
    legality: Legality = field(default_factory=Legality)
    different_ops: list[Op] = field(default_factory=list)

    def __post_init__(self) -> None:
        statement, self.state = self.statement, self.frame.state
        self.new = statement.template.ops[0]
        self.scope = self.frame.scope
        self.pending = PendingFusions(self.state.graph)
        self.refusals = Refusals(self.frame, statement.place, statement.selection.many)
        self.losses = Losses(
            self.selected.index,
            (self.new,),
            self.state.required_results,
            self.statement.selection.condition,
        )
        self.facts = index_facts(self.selected.index, self.scope.pricer)
        self._text_by_values: dict[object, str] = {}

    def run(self) -> None:
        legal_matches = [match for match in self.selected.matches if self._is_legal(match)]
        if _has_splat(self.new):
            for group in self._group_matches(legal_matches):
                self._fuse_group(group)
        else:
            for match in legal_matches:
                self._fuse_set([match], None)
        self.state.graph = self.pending.commit()

    def scope_of(self, match: Match) -> Scope:
        cached = self.scopes.get(id(match))
        if cached is None:
            cached = self.scopes[id(match)] = match_scope(
                self.scope, self.selected.index, match, self.facts
            )
        return cached

    def refuse(self, error: RefusedError, *matches: Match, place: SourceSpan | None = None) -> None:
        self.refusals.add(error, self._not_fused_text(matches), place)

    def _not_fused_text(self, matches: Sequence[Match]) -> str:
        first = call_of(self.selected.op(matches[0].root))
        more = len(matches) - 1
        return f"{first} and {more} more are not fused" if more else f"{first} is not fused"

    def _is_legal(self, match: Match) -> bool:
        try:
            results = Filler([self.scope_of(match)], [()]).results(self.new)
            self.losses.check(match, results)
        except RefusedError as error:
            self.refuse(error, match)
            return False
        return True

    def _members(self, match: Match) -> list[Op]:
        return replaced_ops(self.selected, match, [self.new])

    def _group_matches(self, matches: Iterable[Match]) -> list[list[Match]]:
        """Return matches by the values of the group's keys, in order of first appearance."""
        groups: dict[str, list[Match]] = {}
        for match in matches:
            scope = self.scope_of(match)
            try:
                values = [evaluate(key, scope) for key in self.statement.keys]
            except EvaluationError as error:
                self.refuse(RefusedError(str(error)), match)
                continue
            groups.setdefault(self._values_text(values), []).append(match)
        return [group for group in groups.values() if self._satisfies_having(group)]

    def _values_text(self, values: Sequence[Value]) -> str:
        """Return the text of values, cached as many matches have the same values."""
        key = tuple([(type(value), value) for value in values])
        # equal values of these kinds, such as 0.0 and -0.0, may have different texts
        if any(isinstance(v, tuple) or v == 0.0 for v in values):
            return ", ".join(map(spell, values))
        cached = self._text_by_values.get(key)
        if cached is None:
            cached = self._text_by_values[key] = ", ".join(map(spell, values))
        return cached

    def _satisfies_having(
        self, group: Sequence[Match], tie: Callable[[], RefusedError | None] = lambda: None
    ) -> bool:
        """Return whether a group satisfies ``having``; record a refusal if it does not."""
        first, having = self.scope_of(group[0]), self.statement.having
        key_values = {str(key): evaluate(key, first) for key in self.statement.keys}
        names = {**self.scope.names, "count": len(group)}
        reason = text_of(
            failure_reason(having, replace(self.scope, names=names, values_by_text=key_values))
        )
        if not reason:
            return True
        keys = ", ".join(f"{key} = {spell(value)}" for key, value in key_values.items())
        message = f"its group ({keys}) is left out: {reason}" if keys else reason
        tie_error = tie()
        more = f"; {tie_error.reason}" if tie_error else ""
        error = RefusedError(message + more, tie_error.notes if tie_error else ())
        self.refuse(error, *group, place=having.place if having is not None else None)
        return False

    def _fuse_group(self, group: Sequence[Match]) -> None:
        """Fuse the independent matches of a group; the dependent ones in separate later ops."""
        try:
            members = [self._members(match) for match in group]
            split = partition(self.pending.graph_around(members), members)
        except ValueError:
            self.refuse(RefusedError("an earlier fusion changed it"), *group)
            return
        for i in split.knotted:
            reason = "a dependence path leaves it and returns to it"
            self.refuse(RefusedError(reason, split.tie([i])), group[i])
        is_undivided = len(split.sets) == 1 and not split.knotted
        for number, indices in enumerate(split.sets):
            matches = [group[i] for i in indices]
            if is_undivided or self._satisfies_having(matches, partial(_tie_of, split, number)):
                self._fuse_set(matches, split.span if is_undivided else None)

    def _fuse_set(self, matches: Sequence[Match], segment: Segment | None) -> None:
        filler = Filler([self.scope_of(m) for m in matches], [rest_of(m) for m in matches])
        groups = [self._members(match) for match in matches]
        caller, assuming = self.frame.caller or "script", self.statement.assuming
        with self.refusals.attempt(self._not_fused_text(matches)):
            new = filler.make(self.new, self.state.graph.schemas)
            if problem := call_error(new):
                raise RefusedError(f"{new.name} would be wrong: {problem}")
            members: list[Op] = [op for group in groups for op in group]
            check_extra_accesses(self.pending.graph_around(groups), members, [new])
            comparison = self._compare(matches, new)
            if comparison.difference and not assuming:
                # a path of dependences is the better reason
                self.pending.check(groups, [new])
                raise _other_results(new, members[0], comparison)
            fusion = self.pending.fuse(
                groups, [new], caller=caller, assuming=assuming, known_segment=segment
            )
            self.state.drop(members, [t.name for t in fusion.op.outputs], self.statement)
            self.replaced_count += len(members)
            self.fusions.append(fusion)
            self.legality.add(comparison, fusion.legal)
            if comparison.difference:
                self.different_ops.append(fusion.op)

    def _compare(self, matches: Sequence[Match], new: Op) -> MeaningComparison:
        """Compare the ops of matches with the op that replaces them: of each kind, a few."""
        chosen = list(self._representatives(matches))
        if len(chosen) < len(matches):
            filler = Filler([self.scope_of(m) for m in chosen], [rest_of(m) for m in chosen])
            new = filler.make(self.new, self.state.graph.schemas)
        ops = self.selected.index.ops
        members = [ops[i] for i in sorted(i for match in chosen for i in match.ops)]
        return compare_meanings(self.state.graph, OpExchange(tuple(members), (new,)))

    def _representatives(self, matches: Sequence[Match]) -> Iterator[Match]:
        """Yield the first two matches of each kind: their op names, types and arguments."""
        counts: Counter[object] = Counter()
        for match in matches:
            kind = kind_of(self.selected.members(match)) if len(matches) > 1 else ""
            counts[kind] += 1
            if counts[kind] <= MAX_EQUAL_MATCHES:
                yield match


def _other_results(new: Op, first: Op, comparison: MeaningComparison) -> RefusedError:
    """Return the refusal of a new op with other results than the matched ops."""
    difference = f"%{comparison.result} {comparison.difference}"
    reason = f"{new.name} computes something else: {difference}"
    return RefusedError(reason, [(first, "")], of_order=True)


def _tie_of(split: Partition, number: int) -> RefusedError | None:
    """Return why a set of matches cannot be merged with the set before it, or after the first."""
    if len(split.sets) == 1:
        return None
    chain = split.tie((*split.sets[number], *split.sets[number - 1 if number else 1]))
    return RefusedError("the others depend on it or it on them", chain)
