"""Checks that a template reads and writes in the order of the ops that it replaces."""

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
    """The names that one op of a pattern or a template reads or writes.

    ``key`` identifies the same call in both, the n-th of its kind. A view is represented by the
    names that it comes from in the series.
    """

    key: Key
    accessed_names: Names
    written_names: Names


class AccessOrder:
    """Refuses new ops that access the same bytes in another order than the matched ops.

    Calls that the pattern also contains must keep their order. If two names share bytes, one may
    be written before the other is accessed only if the matched ops do so, too.
    """

    def __init__(self, index: Index, new_ops: Sequence[NewOp]) -> None:
        self.index = index
        self.writes = any(written for new in new_ops for written in new.argument_names.values())
        self.accesses = _accesses((new.op, new) for new in new_ops) if self.writes else []
        self.ordered_pairs = _ordered_pairs(self.accesses)
        self._cache: dict[tuple[object, ...], list[_Access]] = {}

    def check(self, match: Match) -> None:
        """Refuse the new ops for one match if they access its bytes in another order."""
        if not self.writes:
            return
        before, first = self._matched_accesses(match), self.index.ops[match.root]
        matched_pairs = _ordered_pairs(before) if self.ordered_pairs else set()
        for earlier, later in self.ordered_pairs:
            if (later, earlier) in matched_pairs:
                reason = (
                    f"{later[0]} would come after {earlier[0]}, and one writes what the other uses"
                )
                raise RefusedError(reason, [(first, "")])
        aliases = _aliases(match)
        matched_hazards = set(_hazards(before, aliases)) if aliases else set()
        hazards = _hazards(self.accesses, aliases) if aliases else ()
        for (a, _), (b, _) in (pair for pair in hazards if pair not in matched_hazards):
            reason = (
                f"%{a} and %{b} share bytes here, which the template touches in"
                " another order than the matched ops"
            )
            raise RefusedError(reason, [(first, "")])

    def _matched_accesses(self, match: Match) -> list[_Access]:
        """Return the accesses of the matched ops, cached by their names and order."""
        pairs = sorted(match.pairs, key=lambda pair: pair.position)
        calls = [(self.index.ops[pair.position].name, pair.pattern) for pair in pairs]
        key = tuple([(name, id(pattern)) for name, pattern in calls])
        cached = self._cache.get(key)
        if cached is None:
            cached = self._cache[key] = _accesses(calls)
        return cached


def _accesses(calls: Iterable[tuple[str, OpPattern | NewOp]]) -> list[_Access]:
    """Return the accesses of the ops of a series, in order, except ops that only make views."""
    sources: dict[str, Names] = {}
    counts: Counter[tuple[str, tuple[str, ...]]] = Counter()
    accesses = []
    for op, call in calls:
        roots = frozenset[str]().union(*(sources.get(name, {name}) for name in call.argument_names))
        if may_alias(op):
            sources.update((name, roots) for name in call.result_names if name not in roots)
        changed = [name for name, written in call.argument_names.items() if written]
        if changed or not always_alias(op):
            written = (sources.get(name, {name}) for name in changed)
            kind = (op, tuple(call.argument_names))
            accesses.append(_Access((*kind, counts[kind]), roots, frozenset[str]().union(*written)))
            counts[kind] += 1
    return accesses


def _ordered_pairs(accesses: Sequence[_Access]) -> set[tuple[Key, Key]]:
    """Return pairs of calls, the earlier first, of which one writes bytes of the other."""
    return {
        (a.key, b.key)
        for a, b in combinations(accesses, 2)
        if a.written_names & b.accessed_names or a.accessed_names & b.written_names
    }


def _aliases(match: Match) -> Mapping[str, Names]:
    """Return for each name the other names that share bytes with it."""
    by_buffer: dict[str, list[tuple[str, Tensor]]] = {}
    for name, value in match.values.items():
        for tensor in tensors_in((value,)):
            by_buffer.setdefault(tensor.buffer, []).append((name, tensor))
    aliases: dict[str, set[str]] = {}
    for named_tensors in by_buffer.values():
        for (first_name, first), (second_name, second) in combinations(named_tensors, 2):
            if first_name != second_name and overlap(first, second):
                aliases.setdefault(first_name, set()).add(second_name)
                aliases.setdefault(second_name, set()).add(first_name)
    return {name: frozenset(other_names) for name, other_names in aliases.items()}


def _hazards(
    accesses: Sequence[_Access], aliases: Mapping[str, Names]
) -> Iterator[tuple[tuple[str, bool], tuple[str, bool]]]:
    """Yield pairs of accesses to shared bytes, at least one a write: name and whether it writes.

    An op reads all its operands before it writes anything.
    """
    steps = [
        (name, is_written)
        for access in accesses
        for is_written, names in ((False, access.accessed_names), (True, access.written_names))
        for name in sorted(names)
    ]
    for earlier, later in combinations(steps, 2):
        if (earlier[1] or later[1]) and later[0] in aliases.get(earlier[0], ()):
            yield earlier, later
