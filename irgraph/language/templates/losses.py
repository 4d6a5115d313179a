"""What would get lost if a match became the op of a template."""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Sequence

from irgraph.ir.op import Op, tensors_in
from irgraph.ir.schema import parse_schema
from irgraph.ir.tensor import Tensor
from irgraph.language.expressions.nodes import Literal
from irgraph.language.expressions.values import spell
from irgraph.language.patterns.align import required_arguments
from irgraph.language.patterns.arguments import PassedArgument
from irgraph.language.patterns.index import Index
from irgraph.language.patterns.match import Match
from irgraph.language.patterns.nodes import Blank, NewOp, Rest
from irgraph.language.templates.meanings import check_meaning
from irgraph.language.templates.order import Order
from irgraph.verbs.missing_accesses import check_cover
from irgraph.verbs.refusal import RefusedError


class Losses:
    """Refuses matches whose effects or arguments new ops would not have.

    ``news`` are the new ops of every match; ``kept`` names results that others need in the end.
    """

    def __init__(self, index: Index, news: Sequence[NewOp], kept: Collection[str]) -> None:
        self.index, self.news, self.kept = index, news, kept
        self.order = Order(index, news)
        self.meant = [new.op for new in news]
        self.carries = any(isinstance(part, Rest) for new in news for part in new.parts)
        self.declared = frozenset(parse_schema(text).name for text in index.graph.schemas)

    def check(self, match: Match, made: Collection[Tensor]) -> None:
        """Refuse one match, where new ops make the tensors ``made``.

        The answer follows from the matched ops, how the patterns fit them and the template. So an
        index remembers the matches that were sound, and an op a match that it is alone in.
        """
        if self.kept:
            self._check(match, made)
            return
        sound, first = self.index.lossless_matches, match.pairs[0]
        key = (id(match), *map(id, self.news))
        if key in sound:
            return
        kept = self.index.ops[first.position].__dict__ if len(match.pairs) == 1 else {}
        said = (*self.news, first.pattern)
        known = kept.get(SOUND)
        if (
            known is None
            or known[1:] != (first.alignment, self.declared)
            or not _same(known[0], said)
        ):
            self._check(match, made)
            kept[SOUND] = said, first.alignment, self.declared
        if len(sound) >= MOST_SOUND:
            sound.clear()
        sound[key] = match, self.news

    def _check(self, match: Match, made: Collection[Tensor]) -> None:
        members = [self.index.ops[here] for here in match.ops]
        produced = {t.name for op in members for inner in op.walk() for t in inner.outputs}
        for tensor in made:
            if tensor.name not in produced:
                raise RefusedError(
                    f"%{tensor.name} is not a result of the matched ops", [(members[0], "")]
                )
        _check_own_results(match, self.news, members[0])
        check_meaning(members, self.meant)
        self.order.check(match)
        self._check_kept(produced.difference([t.name for t in made]))
        self._check_hidden(match)
        _check_values(match, self.news, members[0])
        check_cover(members, _named(match), _written(match, self.news), self.declared)

    def _check_kept(self, gone: Collection[str]) -> None:
        """Refuse to lose a result that others need."""
        lost = sorted(name for name in gone if name in self.kept) if self.kept else ()
        if lost:
            index = self.index
            users = [
                op for op in map(index.ops.__getitem__, index.users.get(lost[0], [])) if not op.body
            ]
            raise RefusedError(
                f"its result %{lost[0]}, which the new op does not make, is still in use",
                [(op, f"{op.name} uses %{lost[0]}") for op in users[-1:]],
            )

    def _check_hidden(self, match: Match) -> None:
        """Refuse to lose an argument that the pattern does not name."""
        for pair in match.pairs:
            op = self.index.ops[pair.position]
            hidden = required_arguments(op, pair.alignment.hidden) if pair.alignment.hidden else ()
            if hidden and not (self.carries and pair.position == match.root):
                argument = hidden[0]
                what = f"{argument.name} = {spell(argument.value)}".removeprefix(" = ")
                reason = f"{what} would be dropped: it is not the default"
                raise RefusedError(reason, [(op, "has it")])


SOUND = "irgraph.language.templates.losses"
"""Where an op keeps the template and the pattern last asked about, if it is matched alone."""

MOST_SOUND = 4096
"""Matches that an index remembers."""


def _same(these: Sequence[object], those: Sequence[object]) -> bool:
    return len(these) == len(those) and all(map(operator.is_, these, those))


def _check_own_results(match: Match, news: Sequence[NewOp], first: Op) -> None:
    """Refuse a new op that would need its own result, or that of a later one."""
    later: set[str] = set()
    for new in reversed(news):
        mine = {tensor.name for tensor in _bound(match, new.defined_names)}
        for tensor in _bound(match, new.operand_names) if mine or later else ():
            if tensor.name in mine or tensor.name in later:
                who = "it makes itself" if tensor.name in mine else "a later one makes"
                reason = f"the new op would need %{tensor.name}, which {who}"
                raise RefusedError(reason, [(first, "")])
        later |= mine


def _bound(match: Match, names: Sequence[str]) -> Iterable[Tensor]:
    return tensors_in([match.values[name] for name in names if name in match.values])


def _check_values(match: Match, news: Sequence[NewOp], first: Op) -> None:
    """Refuse to drop an argument that the pattern names: a group or a condition carries nothing."""
    for name, value in match.values.items():
        if isinstance(value, bool | int | float | str) and not any(
            name in n.all_names for n in news
        ):
            reason = f"%{name} is {spell(value)}, but no new op takes it"
            raise RefusedError(reason, [(first, "has it")])


def rest_of(match: Match) -> Sequence[PassedArgument]:
    """Return the arguments that ``...`` stands for in the first op of a pattern."""
    return match.pairs[0].alignment.hidden


def _named(match: Match) -> list[Tensor]:
    """Return the tensors that the pattern names or passes over with ``_``."""
    found = list(tensors_in(match.values.values()))
    for pair in match.pairs:
        for hole, value in pair.alignment.goals:
            if isinstance(hole, (Blank, Literal)):
                found += tensors_in((value,))
    return found


def _written(match: Match, news: Sequence[NewOp]) -> list[Tensor]:
    names = dict.fromkeys(name for new in news for name in new.written_names)
    return list(_bound(match, list(names)))
