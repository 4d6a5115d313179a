"""Finds the matches of a pattern: a line of ``model.ir`` with holes, or several in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from irgraph.diagnostics import fail
from irgraph.facts import FactTable, facts_of
from irgraph.ir.op import Op, Value
from irgraph.ir.tensor import Tensor
from irgraph.language.expressions.nodes import Literal, Splat
from irgraph.language.expressions.units import base_value
from irgraph.language.expressions.values import equal_bindings, spell
from irgraph.language.patterns.align import (
    Alignment,
    FormMismatchError,
    Goal,
    align,
    is_written,
    pair_holes,
)
from irgraph.language.patterns.index import Index
from irgraph.language.patterns.match_many import match_many
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
from irgraph.language.patterns.short_forms import pattern_names

MAX_TRIES = 200_000
"""Maximum number of candidates of one statement; a pattern of connected ops needs far fewer."""


class Pair(NamedTuple):
    """An op of a pattern, the position of the op that it matches, and their alignment."""

    pattern: OpPattern
    position: int
    alignment: Alignment = Alignment()


@dataclass(frozen=True, slots=True)
class Match:
    """One match of a pattern.

    Attributes:
        values: the value of each name: a tensor, a literal, or a list of them.
        pairs: the ops of the pattern with the ops that they match, outer before nested.
        uses: for each name, the positions of the ops that use it, in the pattern's order.
    """

    values: Mapping[str, Value] = field(default_factory=dict)
    pairs: tuple[Pair, ...] = ()
    uses: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def ops(self) -> tuple[int, ...]:
        """Positions of the matched ops, in launch order."""
        return tuple(sorted(pair.position for pair in self.pairs))

    @property
    def root(self) -> int:
        """Position of the op that the pattern names first."""
        return self.pairs[0].position

    def with_op(self, pair: Pair) -> Match:
        """Return the match with one more op."""
        return Match(self.values, (*self.pairs, pair), self.uses)

    def at_position(self, position: int) -> Match:
        """Return the match of a single op with the op at another position."""
        first = self.pairs[0]
        if first.position == position:
            return self
        uses = {name: (position,) * len(places) for name, places in self.uses.items()}
        return Match(self.values, (Pair(first.pattern, position, first.alignment),), uses)

    def bind(self, name: str, value: Value, position: int) -> Match:
        """Return the match with a name bound, or used once more, by the op at a position."""
        values = self.values if name in self.values else {**self.values, name: value}
        uses = {**self.uses, name: (*self.uses.get(name, ()), position)}
        return Match(values, self.pairs, uses)


class _OpMatches(NamedTuple):
    """The matches of a pattern at one op, or the depth and the reason of its nearest miss."""

    pattern: OpPattern
    matches: tuple[Match, ...]
    depth: float
    reason: str


MATCHES_KEY = "irgraph.language.patterns.match"
"""Key in the ``__dict__`` of an op under which it caches the matches of patterns at it."""

MAX_CACHED_PATTERNS = 8
"""Maximum number of patterns whose matches an op caches."""


class Matcher:
    """Finds the matches of one series of op patterns in a graph."""

    def __init__(self, index: Index, ops: Sequence[OpPattern], misses: Misses) -> None:
        self.index = index
        self.ops = [op for op in ops if not op.many]
        self.series = ops
        self.misses = misses
        self.tries = 0
        self.occupied = bytearray(len(index.ops))

    def matches(
        self, accept: Callable[[Match], Reason], *, backwards: bool = False
    ) -> Iterator[Match]:
        """Yield matches in launch order that share no ops and are not inside one another.

        ``accept`` returns the reason to reject a match, or ``""``. With ``backwards``, the op that
        ends last comes first, and the outer one of ops that end together.
        """
        positions: Iterable[int] = self.index.positions_of(self.ops[0].op)
        if backwards:
            positions = sorted(
                positions, key=lambda candidate: (-self.index.end[candidate], candidate)
            )
        for position in positions:
            match = self._first_match(position, accept)
            if match is None:
                continue
            for member in match.ops:
                end = self.index.end[member]
                self.occupied[member:end] = b"\1" * (end - member)
            yield match

    def _first_match(self, position: int, accept: Callable[[Match], Reason]) -> Match | None:
        for start in self._match_op(self.ops[0], position, Match()):
            is_single = len(self.ops) == 1
            for candidate in (start,) if is_single else self._match_series({0: position}, start):
                match = self._expand_many(candidate)
                if match is None:
                    continue
                reason = self._overwrite_reason(match) or accept(match)
                if not reason:
                    return match
                self.misses.note(len(match.pairs), match.root, reason)
        return None

    def _expand_many(self, match: Match) -> Match | None:
        """Return the match with the ops of the ``many`` patterns, at least one for each of them.

        They are between the members before and after the pattern. ``None`` if there are none.
        """
        position_by_pattern = {id(pair.pattern): pair.position for pair in match.pairs}
        for step, pattern in enumerate(self.series):
            if not pattern.many:
                continue
            before = next(p for p in reversed(self.series[:step]) if not p.many)
            following = next(p for p in self.series[step:] if not p.many)
            between = range(
                self.index.end[position_by_pattern[id(before)]], position_by_pattern[id(following)]
            )
            alignments = match_many(self.index, pattern, between, match.values)
            pairs = [
                Pair(pattern, i, alignment)
                for i, alignment in alignments
                if self._is_free(i, match)
            ]
            if not pairs:
                reason = f"there is no {str(pattern).removeprefix('many ')} in between"
                self.misses.note(len(match.pairs), match.root, reason)
                return None
            match = Match(match.values, (*match.pairs, *pairs), match.uses)
        return match

    def _match_series(self, position_by_step: Mapping[int, int], match: Match) -> Iterator[Match]:
        """Yield matches with an op for each remaining step of the series, in launch order."""
        step = self._next_step(position_by_step, match)
        if step is None:
            yield match
            return
        pattern = self.ops[step]
        last = max(place for other, place in position_by_step.items() if other < step)
        later = (place for other, place in position_by_step.items() if other > step)
        end = min(later, default=None)
        has_candidates = False
        for position in self._candidates(pattern, match, self.index.end[last]):
            if end is not None and position >= end:
                break
            has_candidates = True
            for extended in self._match_op(pattern, position, match):
                yield from self._match_series({**position_by_step, step: position}, extended)
        if not has_candidates:
            self.misses.note(len(match.pairs), last, lambda: f"no {pattern} follows it")

    def _next_step(self, position_by_step: Mapping[int, int], match: Match) -> int | None:
        """Return the first remaining step that uses a bound tensor, else the first step."""
        remaining = [step for step in range(len(self.ops)) if step not in position_by_step]
        connected = (
            step for step in remaining if self._bound_operand(self.ops[step], match) is not None
        )
        return next(connected, remaining[0] if remaining else None)

    def _bound_operand(self, pattern: OpPattern, match: Match) -> Tensor | None:
        """Return a bound tensor that the op of a pattern must use; ``None`` if there is none."""
        for hole in pattern.holes or ():
            inner = hole.hole if isinstance(hole, NamedHole) else hole
            value = match.values.get(inner.name) if isinstance(inner, Bound) else None
            if isinstance(value, tuple) and value:
                value = value[0]
            if isinstance(value, Tensor):
                return value
        return None

    def _candidates(self, pattern: OpPattern, match: Match, after: int) -> Iterator[int]:
        """Yield the ops that may match a pattern: users of a bound tensor, if it must use one."""
        operand = self._bound_operand(pattern, match)
        if operand is None:
            yield from self.index.positions_of(pattern.op, after)
            return
        users = self.index.users_of(operand.name, after)
        yield from (i for i in users if self._is_called(i, pattern.op))

    def _is_called(self, position: int, name: str) -> bool:
        names = tuple(pattern_names(self.index.ops[position]))
        return name in names or (is_glob(name) and any(map(glob(name).fullmatch, names)))

    def _match_op(self, pattern: OpPattern, position: int, match: Match) -> Iterator[Match]:
        """Match one op and the patterns nested in it."""
        self.tries += 1
        self.misses.tried_ops += 1
        if self.tries > MAX_TRIES:
            message = "the pattern is too loose: its ops can be combined in too many ways"
            raise fail(message, pattern.place, hint="let its ops share names such as %h")
        if not self._is_free(position, match):
            return
        if not match.pairs and self._is_context_free(pattern, self.index.ops[position]):
            yield from self._match_context_free(pattern, position)
        else:
            yield from self._align_op(pattern, position, match)

    def _is_context_free(self, pattern: OpPattern, op: Op) -> bool:
        """Return whether the match of a pattern and an op does not depend on the op's graph."""
        # the results of an autograd scope without any depend on the ops that use them
        has_inferred_results = op.is_autograd and not op.results
        return not has_inferred_results and not pattern.has_nested

    def _match_context_free(self, pattern: OpPattern, position: int) -> Iterator[Match]:
        """Match the first op of a series; the op caches the matches of the latest patterns."""
        op, schemas = self.index.ops[position], self.index.graph.schemas
        cache: dict[object, _OpMatches] = facts_of(op).setdefault(
            MATCHES_KEY, FactTable(MAX_CACHED_PATTERNS)
        )
        cached = cache.get((id(pattern), schemas))
        if cached is None:
            misses = Misses()
            outer_misses, self.misses = self.misses, misses
            try:
                matches = tuple(self._align_op(pattern, position, Match()))
            finally:
                self.misses = outer_misses
            cached = _OpMatches(pattern, matches, misses.depth, misses.reason)
            cache[id(pattern), schemas] = cached
        if cached.depth >= 0:
            self.misses.note(cached.depth, position, cached.reason)
        yield from (match.at_position(position) for match in cached.matches)

    def _align_op(self, pattern: OpPattern, position: int, match: Match) -> Iterator[Match]:
        try:
            alignment = align(self.index, pattern, position)
        except FormMismatchError as error:
            self.misses.note(len(match.pairs), position, error.reason)
            return
        yield from self._unify(
            alignment.goals, position, match.with_op(Pair(pattern, position, alignment))
        )

    def _is_free(self, position: int, match: Match) -> bool:
        """Return whether no match contains an op or any op around or inside it."""
        if self.occupied.find(1, position, self.index.end[position]) >= 0:
            return False
        return not any(self._is_nested(position, pair.position) for pair in match.pairs)

    def _is_nested(self, a: int, b: int) -> bool:
        return self.index.is_inside(a, b) or self.index.is_inside(b, a)

    def _unify(self, goals: Sequence[Goal], position: int, match: Match) -> Iterator[Match]:
        """Yield the match extended in each way in which all holes match their values."""
        for i, (hole, value) in enumerate(goals):
            if isinstance(hole, OpPattern):
                for inner in self._match_producers(hole, value, position, match):
                    yield from self._unify(goals[i + 1 :], position, inner)
                return
            try:
                match = self._match_hole(hole, value, position, match)
            except FormMismatchError as error:
                fraction = (i + 1) / (len(goals) + 1)
                self.misses.note(len(match.pairs) - 1 + fraction, position, error.reason)
                return
        yield match

    def _match_producers(
        self, pattern: OpPattern, value: Value, position: int, match: Match
    ) -> Iterator[Match]:
        """Match the producer of a value: the op that last wrote it in place, or that defines it."""
        producers: list[int] = []
        if isinstance(value, Tensor):
            producers = [i for i in self.index.definers.get(value.name, ()) if i < position]
            producers = list(self.index.writers_between(value, 0, position))[-1:] or producers
        producers = [i for i in producers if self._is_called(i, pattern.op)]
        if not producers:
            self.misses.note(
                len(match.pairs) - 0.5,
                position,
                lambda: f"{spell(value)} is not made by {pattern.op}",
            )
        for producer in producers:
            yield from self._match_op(pattern, producer, match)

    def _match_hole(self, hole: Hole, value: Value, position: int, match: Match) -> Match:
        """Return the match with a hole bound, or raise ``FormMismatchError``."""
        if isinstance(hole, Blank):
            return match
        if isinstance(hole, Literal):
            if not equal_bindings(base_value(hole.value), value):
                raise FormMismatchError(lambda: f"{spell(value)} is not {hole}")
            return match
        if isinstance(hole, HoleList):
            return self._match_list(hole, value, position, match)
        assert isinstance(hole, (Bound, Splat))
        if hole.written and not is_written(value, self.index.ops[position]):
            raise FormMismatchError(lambda: f"it does not write {spell(value)} in place")
        if hole.name in match.values and not equal_bindings(match.values[hole.name], value):
            bound = match.values[hole.name]
            raise FormMismatchError(
                lambda: f"{spell(value)} is not the same as %{hole.name}, which is {spell(bound)}"
            )
        return match.bind(hole.name, value, position)

    def _match_list(self, hole: HoleList, value: Value, position: int, match: Match) -> Match:
        if not isinstance(value, tuple):
            raise FormMismatchError(lambda: f"{spell(value)} is not a list")
        for item, element in pair_holes(hole.items, value, "item"):
            match = self._match_hole(item, element, position, match)
        return match

    def _overwrite_reason(self, match: Match) -> str:
        """Return why a name does not mean the same bytes at all its uses; ``""`` if all do."""
        for name, uses in match.uses.items():
            value = match.values[name]
            if len(uses) < 2 or not isinstance(value, Tensor):
                continue
            for writer in self.index.writers_between(value, min(uses), max(uses)):
                if not any(self.index.is_inside(writer, member) for member in match.ops):
                    op = self.index.ops[writer]
                    return f"{op.name} writes {spell(value)} between the uses of %{name}"
        return ""
