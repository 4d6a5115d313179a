"""Finds the matches of a pattern: a line of ``model.ir`` with placeholders, or several in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from irgraph.diagnostics import fail
from irgraph.ir.op import Op, Value
from irgraph.ir.tensor import Tensor
from irgraph.language.expressions.nodes import Literal, Splat
from irgraph.language.expressions.units import plain
from irgraph.language.expressions.values import same, spell
from irgraph.language.patterns.align import (
    Alignment,
    FormMismatchError,
    Goal,
    align,
    is_written,
    pair_holes,
)
from irgraph.language.patterns.index import Index
from irgraph.language.patterns.misses import Misses, Reason
from irgraph.language.patterns.nodes import (
    Blank,
    Bound,
    Hole,
    HoleList,
    NamedHole,
    OpPattern,
    glob,
    is_glob,
)
from irgraph.language.patterns.several import several
from irgraph.language.patterns.short_forms import called

MOST_TRIES = 200_000
"""Most candidates that one statement may try; a pattern of connected ops needs far fewer."""


class Pair(NamedTuple):
    """An op of a pattern, the position of the op that it stands for, and how they fit."""

    pattern: OpPattern
    here: int
    laid: Alignment = Alignment()


@dataclass(frozen=True, slots=True)
class Match:
    """One place where a pattern fits.

    Attributes:
        values: what each name stands for: a tensor, a literal, or a list of them.
        pairs: the ops of the pattern beside those that they stand for, outer before nested.
        uses: for each name, the positions of the ops that use it, in the pattern's order.
    """

    values: Mapping[str, Value] = field(default_factory=dict)
    pairs: tuple[Pair, ...] = ()
    uses: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def ops(self) -> tuple[int, ...]:
        """Positions of the matched ops, in launch order."""
        return tuple(sorted(pair.here for pair in self.pairs))

    @property
    def root(self) -> int:
        """Position of the op that the pattern names first."""
        return self.pairs[0].here

    def with_op(self, pair: Pair) -> Match:
        """Return the match with one more op."""
        return Match(self.values, (*self.pairs, pair), self.uses)

    def moved(self, here: int) -> Match:
        """Return the match of a single op where that stands at another position."""
        first = self.pairs[0]
        if first.here == here:
            return self
        uses = {name: (here,) * len(places) for name, places in self.uses.items()}
        return Match(self.values, (Pair(first.pattern, here, first.laid),), uses)

    def bind(self, name: str, value: Value, here: int) -> Match:
        """Return the match with a name bound, or used again, by the op at a position."""
        values = self.values if name in self.values else {**self.values, name: value}
        uses = {**self.uses, name: (*self.uses.get(name, ()), here)}
        return Match(values, self.pairs, uses)


class _OpMatches(NamedTuple):
    """How a pattern fits an op by itself: its matches, or how near it came and why no nearer."""

    pattern: OpPattern
    found: tuple[Match, ...]
    depth: float
    reason: str


KEPT = "irgraph.language.patterns.match"
"""Where an op keeps how patterns fit it."""

MOST_KEPT = 8
"""Patterns of which an op keeps that."""


class Matcher:
    """Looks for one series of op patterns in a graph."""

    def __init__(self, index: Index, ops: Sequence[OpPattern], misses: Misses) -> None:
        self.index = index
        self.ops = [op for op in ops if not op.many]
        self.whole = ops
        self.misses = misses
        self.tries = 0
        self.taken = bytearray(len(index.ops))

    def matches(
        self, accept: Callable[[Match], Reason], *, backwards: bool = False
    ) -> Iterator[Match]:
        """Yield matches in launch order, no op in two of them, none inside another.

        ``accept`` returns why a match will not do, or nothing. ``backwards``, what ends last comes
        first, and of what ends together the outer one.
        """
        places: Iterable[int] = self.index.named(self.ops[0].op)
        if backwards:
            places = sorted(places, key=lambda here: (-self.index.end[here], here))
        for here in places:
            match = self._first(here, accept)
            if match is None:
                continue
            for member in match.ops:
                end = self.index.end[member]
                self.taken[member:end] = b"\1" * (end - member)
            yield match

    def _first(self, here: int, accept: Callable[[Match], Reason]) -> Match | None:
        for start in self._op(self.ops[0], here, Match()):
            alone = len(self.ops) == 1
            for found in (start,) if alone else self._series({0: here}, start):
                match = self._gathered(found)
                if match is None:
                    continue
                reason = self._broken(match) or accept(match)
                if not reason:
                    return match
                self.misses.note(len(match.pairs), match.root, reason)
        return None

    def _gathered(self, match: Match) -> Match | None:
        """Return the match with what the ``many`` patterns of the series stand for, one or more.

        Such an op stands between the members before and after it.
        """
        places = {id(pair.pattern): pair.here for pair in match.pairs}
        for step, pattern in enumerate(self.whole):
            if not pattern.many:
                continue
            before = next(p for p in reversed(self.whole[:step]) if not p.many)
            following = next(p for p in self.whole[step:] if not p.many)
            between = range(self.index.end[places[id(before)]], places[id(following)])
            found = several(self.index, pattern, between, match.values)
            pairs = [Pair(pattern, i, laid) for i, laid in found if self._is_free(i, match)]
            if not pairs:
                reason = f"there is no {str(pattern).removeprefix('many ')} in between"
                self.misses.note(len(match.pairs), match.root, reason)
                return None
            match = Match(match.values, (*match.pairs, *pairs), match.uses)
        return match

    def _series(self, placed: Mapping[int, int], match: Match) -> Iterator[Match]:
        """Match the steps of the series that have no place yet, each between its neighbours."""
        step = self._next(placed, match)
        if step is None:
            yield match
            return
        pattern = self.ops[step]
        last = max(place for other, place in placed.items() if other < step)
        end = min((place for other, place in placed.items() if other > step), default=None)
        found = False
        for here in self._candidates(pattern, match, self.index.end[last]):
            if end is not None and here >= end:
                break
            found = True
            for extended in self._op(pattern, here, match):
                yield from self._series({**placed, step: here}, extended)
        if not found:
            self.misses.note(len(match.pairs), last, lambda: f"no {pattern} follows it")

    def _next(self, placed: Mapping[int, int], match: Match) -> int | None:
        """Return the first step that uses what is bound already, else the first one."""
        left = [step for step in range(len(self.ops)) if step not in placed]
        tied = (step for step in left if self._known(self.ops[step], match) is not None)
        return next(tied, left[0] if left else None)

    def _known(self, pattern: OpPattern, match: Match) -> Tensor | None:
        """Return a tensor that the op of a pattern must use, if one is bound already."""
        for hole in pattern.holes or ():
            inner = hole.hole if isinstance(hole, NamedHole) else hole
            value = match.values.get(inner.name) if isinstance(inner, Bound) else None
            if isinstance(value, tuple) and value:
                value = value[0]
            if isinstance(value, Tensor):
                return value
        return None

    def _candidates(self, pattern: OpPattern, match: Match, after: int) -> Iterator[int]:
        """Yield ops that may be the pattern's: users of what is bound already, if anything is."""
        known = self._known(pattern, match)
        if known is None:
            yield from self.index.named(pattern.op, after)
            return
        users = self.index.users_of(known.name, after)
        yield from (i for i in users if self._is_called(i, pattern.op))

    def _is_called(self, here: int, name: str) -> bool:
        names = tuple(called(self.index.ops[here]))
        return name in names or (is_glob(name) and any(map(glob(name).fullmatch, names)))

    def _op(self, pattern: OpPattern, here: int, match: Match) -> Iterator[Match]:
        """Match one op and what nests in it."""
        self.tries += 1
        self.misses.tried += 1
        if self.tries > MOST_TRIES:
            message = "the pattern is too loose: its ops can be combined in too many ways"
            raise fail(message, pattern.place, hint="let its ops share names such as %h")
        if not self._is_free(here, match):
            return
        if not match.pairs and self._stands_alone(pattern, self.index.ops[here]):
            yield from self._alone(pattern, here)
        else:
            yield from self._fitted(pattern, here, match)

    def _stands_alone(self, pattern: OpPattern, op: Op) -> bool:
        """Return whether a pattern fits an op or not whatever graph that is in."""
        handed_on = op.is_autograd and not op.results  # results are what others use of it
        return not handed_on and not pattern.nests

    def _alone(self, pattern: OpPattern, here: int) -> Iterator[Match]:
        """Match the first op of a series; an op keeps how the patterns last asked about fit."""
        op, schemas = self.index.ops[here], self.index.graph.schemas
        kept: dict[object, _OpMatches] = op.__dict__.setdefault(KEPT, {})
        known = kept.get((id(pattern), schemas))
        if known is None:
            misses = Misses()
            outer, self.misses = self.misses, misses
            try:
                found = tuple(self._fitted(pattern, here, Match()))
            finally:
                self.misses = outer
            known = _OpMatches(pattern, found, misses.depth, misses.reason)
            if len(kept) >= MOST_KEPT:
                kept.clear()
            kept[id(pattern), schemas] = known
        if known.depth >= 0:
            self.misses.note(known.depth, here, known.reason)
        yield from (found.moved(here) for found in known.found)

    def _fitted(self, pattern: OpPattern, here: int, match: Match) -> Iterator[Match]:
        try:
            laid = align(self.index, pattern, here)
        except FormMismatchError as error:
            self.misses.note(len(match.pairs), here, error.why)
            return
        yield from self._unify(laid.goals, here, match.with_op(Pair(pattern, here, laid)))

    def _is_free(self, here: int, match: Match) -> bool:
        """Return whether neither an op nor anything around or inside it is in a match yet."""
        if self.taken.find(1, here, self.index.end[here]) >= 0:
            return False
        return not any(self._related(here, pair.here) for pair in match.pairs)

    def _related(self, a: int, b: int) -> bool:
        return self.index.inside(a, b) or self.index.inside(b, a)

    def _unify(self, goals: Sequence[Goal], here: int, match: Match) -> Iterator[Match]:
        """Yield the ways in which all placeholders match their values."""
        for i, (hole, value) in enumerate(goals):
            if isinstance(hole, OpPattern):
                for inner in self._nested(hole, value, here, match):
                    yield from self._unify(goals[i + 1 :], here, inner)
                return
            try:
                match = self._fit(hole, value, here, match)
            except FormMismatchError as error:
                share = (i + 1) / (len(goals) + 1)
                self.misses.note(len(match.pairs) - 1 + share, here, error.why)
                return
        yield match

    def _nested(self, pattern: OpPattern, value: Value, here: int, match: Match) -> Iterator[Match]:
        """Match the op that made a value: what defines it, or wrote it in place last."""
        makers: list[int] = []
        if isinstance(value, Tensor):
            makers = [i for i in self.index.definers.get(value.name, ()) if i < here]
            makers = list(self.index.writers_between(value, 0, here))[-1:] or makers
        makers = [i for i in makers if self._is_called(i, pattern.op)]
        if not makers:
            self.misses.note(
                len(match.pairs) - 0.5,
                here,
                lambda: f"{spell(value)} is not made by {pattern.op}",
            )
        for maker in makers:
            yield from self._op(pattern, maker, match)

    def _fit(self, hole: Hole, value: Value, here: int, match: Match) -> Match:
        """Return the match with a placeholder bound; raise ``MisfitError``."""
        if isinstance(hole, Blank):
            return match
        if isinstance(hole, Literal):
            if not same(plain(hole.value), value):
                raise FormMismatchError(lambda: f"{spell(value)} is not {hole}")
            return match
        if isinstance(hole, HoleList):
            return self._fit_list(hole, value, here, match)
        assert isinstance(hole, (Bound, Splat))
        if hole.written and not is_written(value, self.index.ops[here]):
            raise FormMismatchError(lambda: f"it does not write {spell(value)} in place")
        if hole.name in match.values and not same(match.values[hole.name], value):
            known = match.values[hole.name]
            raise FormMismatchError(
                lambda: f"{spell(value)} is not the same as %{hole.name}, which is {spell(known)}"
            )
        return match.bind(hole.name, value, here)

    def _fit_list(self, hole: HoleList, value: Value, here: int, match: Match) -> Match:
        if not isinstance(value, tuple):
            raise FormMismatchError(lambda: f"{spell(value)} is not a list")
        for item, given in pair_holes(hole.items, value, "item"):
            match = self._fit(item, given, here, match)
        return match

    def _broken(self, match: Match) -> str:
        """Return which name does not mean the same bytes at all its uses, if any."""
        for name, uses in match.uses.items():
            value = match.values[name]
            if len(uses) < 2 or not isinstance(value, Tensor):
                continue
            for writer in self.index.writers_between(value, min(uses), max(uses)):
                if not any(self.index.inside(writer, member) for member in match.ops):
                    op = self.index.ops[writer]
                    return f"{op.name} writes {spell(value)} between the uses of %{name}"
        return ""
