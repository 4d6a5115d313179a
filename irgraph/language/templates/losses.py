"""Checks that no effect, argument or result is lost if a template replaces a match."""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Sequence

from irgraph.facts import facts_of
from irgraph.ir.op import Op, tensors_in
from irgraph.ir.schema import parse_schema
from irgraph.ir.tensor import Tensor
from irgraph.language.expressions.equations import equations
from irgraph.language.expressions.nodes import Expression, Literal
from irgraph.language.expressions.values import spell
from irgraph.language.patterns.align import required_arguments
from irgraph.language.patterns.arguments import PassedArgument
from irgraph.language.patterns.index import Index
from irgraph.language.patterns.match import Match
from irgraph.language.patterns.nodes import Blank, NewOp, Rest
from irgraph.language.templates.order import AccessOrder
from irgraph.verbs.missing_accesses import check_cover
from irgraph.verbs.refusal import RefusedError


class Losses:
    """Refuses matches whose effects or arguments the new ops would lose.

    ``new_ops`` are the new ops of every match; ``required_results`` are the names of results that
    other ops use in the end; ``condition`` is the condition that every match meets.
    """

    def __init__(
        self,
        index: Index,
        new_ops: Sequence[NewOp],
        required_results: Collection[str],
        condition: Expression | None = None,
    ) -> None:
        self.index, self.new_ops, self.required_results = index, new_ops, required_results
        self.condition = condition
        self.equations = tuple(equations(condition))
        self.order = AccessOrder(index, new_ops)
        self.has_rest = any(isinstance(part, Rest) for new in new_ops for part in new.parts)
        self.schema_names = frozenset(parse_schema(text).name for text in index.graph.schemas)

    def check(self, match: Match, results: Collection[Tensor]) -> None:
        """Refuse one match whose new ops define the tensors ``results``, unless it loses nothing.

        The outcome depends only on the matched ops, their alignments and the template. Therefore
        an index caches the legal matches, and an op caches a legal match of this op alone.
        """
        if self.required_results:
            self._check(match, results)
            return
        legal_matches, first = self.index.lossless_matches, match.pairs[0]
        key = (id(match), *map(id, self.new_ops), id(self.condition))
        if key in legal_matches:
            return
        cache = facts_of(self.index.ops[first.position]) if len(match.pairs) == 1 else {}
        forms = (*self.new_ops, first.pattern, self.condition)
        cached = cache.get(CHECKED_KEY)
        if (
            cached is None
            or cached[1:] != (first.alignment, self.schema_names)
            or not _are_identical(cached[0], forms)
        ):
            self._check(match, results)
            cache[CHECKED_KEY] = forms, first.alignment, self.schema_names
        legal_matches[key] = match, (*self.new_ops, self.condition)

    def _check(self, match: Match, results: Collection[Tensor]) -> None:
        members = [self.index.ops[position] for position in match.ops]
        produced = {t.name for op in members for inner in op.walk() for t in inner.outputs}
        for tensor in results:
            if tensor.name not in produced:
                raise RefusedError(
                    f"%{tensor.name} is not a result of the matched ops", [(members[0], "")]
                )
        _check_own_results(match, self.new_ops, members[0])
        self.order.check(match)
        self._check_required(produced.difference([t.name for t in results]))
        self._check_hidden(match)
        self._check_values(match, members[0])
        check_cover(
            members,
            _covered_tensors(match),
            _written_tensors(match, self.new_ops),
            self.schema_names,
        )

    def _check_required(self, dropped: Collection[str]) -> None:
        """Refuse to lose a result that other ops use in the end."""
        required = (
            sorted(name for name in dropped if name in self.required_results)
            if self.required_results
            else ()
        )
        if required:
            index = self.index
            users = [
                op
                for op in map(index.ops.__getitem__, index.users.get(required[0], []))
                if not op.body
            ]
            raise RefusedError(
                f"its result %{required[0]}, which the new op does not make, is still in use",
                [(op, f"{op.name} uses %{required[0]}") for op in users[-1:]],
            )

    def _check_hidden(self, match: Match) -> None:
        """Refuse to lose an argument that the pattern does not name."""
        for pair in match.pairs:
            op = self.index.ops[pair.position]
            hidden = required_arguments(op, pair.alignment.hidden) if pair.alignment.hidden else ()
            if hidden and not (self.has_rest and pair.position == match.root):
                argument = hidden[0]
                argument_text = f"{argument.name} = {spell(argument.value)}".removeprefix(" = ")
                reason = f"{argument_text} would be dropped: it is not the default"
                raise RefusedError(reason, [(op, "has it")])

    def _check_values(self, match: Match, first: Op) -> None:
        """Refuse to drop an argument that the pattern names, even if a group or condition uses it.

        An argument that an equation determines is not lost.
        """
        dropped = {
            name
            for name, value in match.values.items()
            if isinstance(value, bool | int | float | str)
            and not any(name in new.all_names for new in self.new_ops)
        }
        determined = [equation.determined(dropped) for equation in self.equations]
        dropped = dropped.difference(*determined)
        for name in sorted(dropped):
            reason = f"%{name} is {spell(match.values[name])}, but no new op takes it"
            raise RefusedError(reason, [(first, "has it")])


CHECKED_KEY = "irgraph.language.templates.losses"
"""Key in the ``__dict__`` of an op for the last template and pattern that were legal for it."""


def _are_identical(these: Sequence[object], those: Sequence[object]) -> bool:
    return len(these) == len(those) and all(map(operator.is_, these, those))


def _check_own_results(match: Match, new_ops: Sequence[NewOp], first: Op) -> None:
    """Refuse a new op that would need its own result, or the result of a later one."""
    later: set[str] = set()
    for new in reversed(new_ops):
        own_results = {tensor.name for tensor in _bound_tensors(match, new.defined_names)}
        for tensor in _bound_tensors(match, new.operand_names) if own_results or later else ():
            if tensor.name in own_results or tensor.name in later:
                producer = "it makes itself" if tensor.name in own_results else "a later one makes"
                reason = f"the new op would need %{tensor.name}, which {producer}"
                raise RefusedError(reason, [(first, "")])
        later |= own_results


def _bound_tensors(match: Match, names: Sequence[str]) -> Iterable[Tensor]:
    return tensors_in([match.values[name] for name in names if name in match.values])


def rest_of(match: Match) -> Sequence[PassedArgument]:
    """Return the arguments that ``...`` matches in the first op of a pattern."""
    return match.pairs[0].alignment.hidden


def _covered_tensors(match: Match) -> list[Tensor]:
    """Return the tensors that the pattern names or matches with ``_``."""
    tensors = list(tensors_in(match.values.values()))
    for pair in match.pairs:
        for hole, value in pair.alignment.goals:
            if isinstance(hole, (Blank, Literal)):
                tensors += tensors_in((value,))
    return tensors


def _written_tensors(match: Match, new_ops: Sequence[NewOp]) -> list[Tensor]:
    names = dict.fromkeys(name for new in new_ops for name in new.written_names)
    return list(_bound_tensors(match, list(names)))
