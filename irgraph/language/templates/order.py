"""Whether a template reads and writes in the order of the ops that it replaces."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from irgraph.ir.effects import always_alias, may_alias
from irgraph.ir.op import tensors_in
from irgraph.ir.tensor import Tensor, overlap
from irgraph.language.patterns.index import Index
from irgraph.language.patterns.match import Match
from irgraph.language.patterns.nodes import NewOp, OpPattern
from irgraph.verbs.refusal import RefusedError

Names = frozenset[str]
Key = tuple[str, tuple[str, ...], int]


@dataclass(frozen=True)
class _Access:
    """What one op of a pattern or a template touches, by the names that stand for it.

    ``key`` tells the same call in both, the n-th of its kind; the names are those that views in the
    series come from.
    """

    key: Key
    touched: Names
    written: Names


class Order:
    """Refuses new ops that touch the same bytes in another order than the matched ones.

    Those that the pattern has as well keep their order, and where two names stand for the same
    bytes, one is not written before the other is read, unless it was.
    """

    def __init__(self, index: Index, news: Sequence[NewOp]) -> None:
        self.index = index
        self.writes = any(written for new in news for written in new.argument_names.values())
        self.after = _accesses((new.op, new) for new in news) if self.writes else []
        self.done = _sequence(self.after)
        self._known: dict[tuple[object, ...], list[_Access]] = {}

    def check(self, match: Match) -> None:
        """Refuse the new ops for one match."""
        if not self.writes:
            return
        before, first = self._before(match), self.index.ops[match.root]
        had = _sequence(before) if self.done else set()
        for one, other in self.done:
            if (other, one) in had:
                reason = f"{other[0]} would come after {one[0]}, and one writes what the other uses"
                raise RefusedError(reason, [(first, "")])
        shared = _shared(match)
        known = set(_hazards(before, shared)) if shared else set()
        hazards = _hazards(self.after, shared) if shared else ()
        for (a, _), (b, _) in (pair for pair in hazards if pair not in known):
            reason = (
                f"%{a} and %{b} share bytes here, which the template touches in"
                " another order than the matched ops"
            )
            raise RefusedError(reason, [(first, "")])

    def _before(self, match: Match) -> list[_Access]:
        """Return what the matched ops touch, which follows from their names and order alone."""
        pairs = sorted(match.pairs, key=lambda pair: pair.position)
        calls = [(self.index.ops[pair.position].name, pair.pattern) for pair in pairs]
        key = tuple([(name, id(pattern)) for name, pattern in calls])
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = _accesses(calls)
        return found


def _accesses(calls: Iterable[tuple[str, OpPattern | NewOp]]) -> list[_Access]:
    """Return what the ops of a series touch, in order; those that make nothing but views do not."""
    sources: dict[str, Names] = {}
    seen: Counter[tuple[str, tuple[str, ...]]] = Counter()
    found = []
    for op, call in calls:
        roots = frozenset[str]().union(*(sources.get(name, {name}) for name in call.argument_names))
        if may_alias(op):
            sources.update((name, roots) for name in call.result_names if name not in roots)
        changed = [name for name, written in call.argument_names.items() if written]
        if changed or not always_alias(op):
            written = (sources.get(name, {name}) for name in changed)
            kind = (op, tuple(call.argument_names))
            found.append(_Access((*kind, seen[kind]), roots, frozenset[str]().union(*written)))
            seen[kind] += 1
    return found


def _sequence(accesses: Sequence[_Access]) -> set[tuple[Key, Key]]:
    """Return pairs of calls, the earlier first, of which one writes what the other touches."""
    return {
        (a.key, b.key)
        for a, b in combinations(accesses, 2)
        if a.written & b.touched or a.touched & b.written
    }


def _shared(match: Match) -> Mapping[str, Names]:
    """Return the names that stand for some of the same bytes."""
    held: dict[str, list[tuple[str, Tensor]]] = {}
    for name, value in match.values.items():
        for tensor in tensors_in((value,)):
            held.setdefault(tensor.buffer, []).append((name, tensor))
    found: dict[str, set[str]] = {}
    for near in held.values():
        for (a, one), (b, other) in combinations(near, 2):
            if a != b and overlap(one, other):
                found.setdefault(a, set()).add(b)
                found.setdefault(b, set()).add(a)
    return {name: frozenset(others) for name, others in found.items()}


def _hazards(
    accesses: Sequence[_Access], shared: Mapping[str, Names]
) -> Iterator[tuple[tuple[str, bool], tuple[str, bool]]]:
    """Yield names of the same bytes that are touched one after the other, and which is written.

    An op reads all that it takes before it writes anything.
    """
    steps = [
        (name, is_written)
        for access in accesses
        for is_written, names in ((False, access.touched), (True, access.written))
        for name in sorted(names)
    ]
    for one, other in combinations(steps, 2):
        if (one[1] or other[1]) and other[0] in shared.get(one[0], ()):
            yield one, other
