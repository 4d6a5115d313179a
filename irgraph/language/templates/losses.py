"""What would get lost if a match became the op of a template."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache

from irgraph.ir.op import Op, tensors_in
from irgraph.ir.schema import parse_schema
from irgraph.ir.tensor import Tensor
from irgraph.language.expressions.nodes import Literal, Splat
from irgraph.language.expressions.values import spell
from irgraph.language.patterns.arguments import Passed
from irgraph.language.patterns.fit import unsaid
from irgraph.language.patterns.index import Index
from irgraph.language.patterns.match import Match
from irgraph.language.patterns.nodes import Blank, Bound, NewOp, Part, Rest, opened
from irgraph.language.templates.meanings import check_meaning
from irgraph.language.templates.order import check_order
from irgraph.verbs.cover import check_cover
from irgraph.verbs.refusal import RefusedError


def check_losses(
    index: Index,
    match: Match,
    news: Sequence[NewOp],
    made: Collection[Tensor],
    kept: Collection[str],
) -> None:
    """Refuse a match whose effects or arguments the new ops would not have.

    ``made`` are the results of the new ops; ``kept`` names results that others need in the end.
    """
    members = [index.ops[here] for here in match.ops]
    produced = {t.name for op in members for inner in op.walk() for t in inner.outputs}
    for tensor in made:
        if tensor.name not in produced:
            raise RefusedError(
                f"%{tensor.name} is not a result of the matched ops", [(members[0], "")]
            )
    _check_own_results(match, news, members[0])
    check_meaning(members, [new.op for new in news])
    check_order(index, match, news)
    lost = sorted((produced - {t.name for t in made}) & set(kept))
    if lost:
        users = [
            op for op in map(index.ops.__getitem__, index.users.get(lost[0], [])) if not op.body
        ]
        raise RefusedError(
            f"its result %{lost[0]}, which the new op does not make, is still in use",
            [(op, f"{op.name} uses %{lost[0]}") for op in users[-1:]],
        )
    carries = any(isinstance(part, Rest) for new in news for part in new.parts)
    for pair in match.pairs:
        hidden = unsaid(index.ops[pair.here], pair.laid.hidden)
        if hidden and not (carries and pair.here == match.root):
            argument = hidden[0]
            what = f"{argument.name} = {spell(argument.value)}".removeprefix(" = ")
            raise RefusedError(
                f"{what} would be dropped: it is not the default",
                [(index.ops[pair.here], "has it")],
            )
    _check_values(match, news, members[0])
    declared = frozenset(parse_schema(text).name for text in index.graph.schemas)
    check_cover(members, _named(match), _written(match, news), declared)


def _check_own_results(match: Match, news: Sequence[NewOp], first: Op) -> None:
    """Refuse a new op that would need its own result, or that of a later one."""
    later: set[str] = set()
    for new in reversed(news):
        mine = {tensor.name for tensor in _bound(match, new.results)}
        for tensor in _bound(match, new.parts):
            if tensor.name in mine | later:
                who = "it makes itself" if tensor.name in mine else "a later one makes"
                reason = f"the new op would need %{tensor.name}, which {who}"
                raise RefusedError(reason, [(first, "")])
        later |= mine


def _bound(match: Match, parts: Sequence[Part]) -> Iterator[Tensor]:
    names = (part.name for part in opened(parts) if isinstance(part, (Bound, Splat)))
    return tensors_in(match.values[name] for name in names if name in match.values)


def _check_values(match: Match, news: Sequence[NewOp], first: Op) -> None:
    """Refuse to drop an argument that the pattern names: a group or a condition carries nothing."""
    named = _names_in(tuple(news))
    for name, value in match.values.items():
        if isinstance(value, bool | int | float | str) and name not in named:
            reason = f"%{name} is {spell(value)}, but no new op takes it"
            raise RefusedError(reason, [(first, "has it")])


@lru_cache
def _names_in(news: tuple[NewOp, ...]) -> frozenset[str]:
    return frozenset(re.findall(r"%(\w+)", " ".join(map(str, news))))


def rest_of(match: Match) -> Sequence[Passed]:
    """Return the arguments that ``...`` stands for in the first op of a pattern."""
    return match.pairs[0].laid.hidden


def _named(match: Match) -> list[Tensor]:
    """Return the tensors that the pattern names or passes over with ``_``."""
    found = list(tensors_in(match.values.values()))
    for pair in match.pairs:
        for hole, value in pair.laid.goals:
            if isinstance(hole, (Blank, Literal)):
                found += tensors_in((value,))
    return found


def _written(match: Match, news: Sequence[NewOp]) -> list[Tensor]:
    names = {
        part.name
        for new in news
        for part in opened(new.parts)
        if isinstance(part, (Bound, Splat)) and part.written and part.name in match.values
    }
    return list(tensors_in(match.values[name] for name in names))
