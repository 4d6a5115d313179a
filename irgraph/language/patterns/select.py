"""Finds the matches of a selection in a graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from itertools import starmap

from irgraph.diagnostics import fail
from irgraph.ir.op import Op, Value
from irgraph.language.expressions.evaluate import Datum, Pricer, Scope, holds
from irgraph.language.patterns.index import Index
from irgraph.language.patterns.liveness import Liveness
from irgraph.language.patterns.match import Match, Matcher, Pair
from irgraph.language.patterns.misses import Misses, Reason
from irgraph.language.patterns.nodes import Module, NamedOps, OpPattern, Selection, Series


@dataclass(frozen=True)
class Selected:
    """The matches of a selection, in launch order, and how near others came.

    ``total`` counts all matches where the selection asked for the first one only.
    """

    index: Index
    matches: tuple[Match, ...]
    misses: Misses
    total: int

    def op(self, here: int) -> Op:
        """Return the op at a position."""
        return self.index.ops[here]

    def members(self, match: Match) -> list[Op]:
        """Return the ops of a match, in launch order."""
        return [self.index.ops[here] for here in match.ops]

    @property
    def ops(self) -> list[Op]:
        """The ops of all matches, one match after the other."""
        return [op for match in self.matches for op in self.members(match)]


@dataclass(frozen=True)
class Handle:
    """What ``find`` or ``as`` named: ops, and the place where it was said."""

    ops: tuple[Op, ...]
    selection: Selection | None = None
    names: Mapping[str, object] = field(default_factory=dict)


def select(
    selection: Selection,
    index: Index,
    scope: Scope,
    handles: Mapping[str, Handle],
    all_: bool = False,
    going: Callable[[Match], bool] | None = None,
) -> Selected:
    """Return what a selection matches; all matches with ``many`` or ``all_``, else the first.

    ``going`` is told each match, the last one first, and answers whether its ops go: those before
    it are then judged as if they had gone.
    """
    key = None if going is not None else _key(selection, scope)
    known = None if key is None else index.selected.get(key)
    if known is None:
        known = selection, *_sought(selection, index, scope, handles, going)
        if key is not None:
            if len(index.selected) >= MOST:
                index.selected.clear()
            index.selected[key] = known
    _, matches, misses = known
    shown = matches if selection.many or all_ else matches[:1]
    return Selected(index, shown, misses, len(matches))


MOST = 32
"""Selections whose matches an index remembers: many variants of a step begin with the same."""

PLAIN = (int, bool, str, type(None))


def _key(selection: Selection, scope: Scope) -> object:
    """Return what the matches of a selection in a graph follow from; nothing where more does."""
    names = scope.names if selection.where is not None else {}
    plain = all(type(value) in PLAIN for value in names.values())
    if not isinstance(selection.pattern, Series) or scope.pricer or scope.known or not plain:
        return None
    return (id(selection), *((name, type(value), value) for name, value in names.items()))


def _sought(
    selection: Selection,
    index: Index,
    scope: Scope,
    handles: Mapping[str, Handle],
    going: Callable[[Match], bool] | None,
) -> tuple[tuple[Match, ...], Misses]:
    """Return all matches of a selection, and how near others came."""
    misses = Misses()
    alive = Liveness(index)
    facts = index_facts(index, scope.pricer, alive)

    def accept(match: Match) -> Reason:
        outside = _outside(selection, index, match)
        return outside or holds(selection.where, match_scope(scope, index, match, facts))

    if isinstance(selection.pattern, Series):
        matcher = Matcher(index, selection.pattern.ops, misses)
        found = matcher.matches(accept, backwards=going is not None)
    else:
        found = _ops(selection, index, handles, accept, misses)
    matches = tuple(found) if going is None else _going(found, going, alive)
    return matches, misses


def _going(
    found: Iterator[Match], going: Callable[[Match], bool], alive: Liveness
) -> tuple[Match, ...]:
    """Return matches in launch order, each told before the next one is sought."""
    matches: list[Match] = []
    for match in found:
        matches.append(match)
        if going(match):
            for here in match.ops:
                alive.drop(here)
    return tuple(sorted(matches, key=lambda match: match.root))


Facts = Mapping[str, Callable[[Op], Value]]


def match_scope(scope: Scope, index: Index, match: Match, facts: Facts | None = None) -> Scope:
    """Return the values of an expression's names for one match."""
    labels: dict[str, Datum] = {
        pair.pattern.label: index.ops[pair.here] for pair in match.pairs if pair.pattern.label
    }
    names = {**scope.names, "op": index.ops[match.root], **labels}
    asked = facts or index_facts(index, scope.pricer)
    return Scope(names, match.values, scope.known, scope.pricer, asked)


def index_facts(index: Index, pricer: Pricer | None, alive: Liveness | None = None) -> Facts:
    """Return the properties of an op that need its graph; ``time`` where a device is chosen."""
    alive = alive or Liveness(index)
    facts: dict[str, Callable[[Op], Value]] = {
        "scope": index.around,
        "idle": alive.idle,
        "unread": alive.unread,
        "dead": alive.dead,
    }
    if pricer is not None:
        facts["time"] = partial(pricer.time, index.graph)
    return facts


def _outside(selection: Selection, index: Index, match: Match) -> str:
    """Return whether a match lies outside what ``within`` names."""
    if not selection.within:
        return ""
    for here in match.ops:
        op = index.ops[here]
        if selection.phase and op.phase != selection.within:
            return f"its phase is {op.phase}, not {selection.within}"
        if not selection.phase and not _lies_in(selection.within, here, index):
            return f"it is not within {selection.within!r}"
    return ""


def _lies_in(path: str, here: int, index: Index) -> bool:
    """Return whether an op was called by a module or stands below a label."""
    if is_below(index.ops[here].module, path):
        return True
    return any(index.ops[i].name == path for i in index.scopes(index.parent[here]))


def is_below(module: str, path: str) -> bool:
    """Return whether a module is one of a given path or lies below it; ``*`` is any name in it."""
    if "*" not in path:
        return module == path or module.startswith(f"{path}.")
    names, wanted = module.split("."), path.split(".")
    pairs = zip(names, wanted, strict=False)
    return bool(module) and len(names) >= len(wanted) and all(starmap(fnmatchcase, pairs))


def _ops(
    selection: Selection,
    index: Index,
    handles: Mapping[str, Handle],
    accept: Callable[[Match], Reason],
    misses: Misses,
) -> Iterator[Match]:
    """Yield whole ops: those of a module, or those that a name stands for."""
    pattern = selection.pattern
    if isinstance(pattern, Module):
        phase = selection.within if selection.phase else "forward"
        positions = list(_module(pattern.path, phase, index))
    else:
        assert isinstance(pattern, NamedOps)
        positions = _handled(pattern, index, handles)
    for here in positions:
        match = Match().with_op(Pair(OpPattern(index.ops[here].name), here))
        misses.tried += 1
        reason = accept(match)
        if reason:
            misses.note(1, here, reason)
        else:
            yield match


def _module(path: str, phase: str, index: Index) -> Iterator[int]:
    """Yield the outermost ops of one phase that a module called."""
    end = 0
    for here, op in enumerate(index.ops):
        if here >= end and op.phase == phase and is_below(op.module, path):
            yield here
            end = index.end[here]


def _handled(pattern: NamedOps, index: Index, handles: Mapping[str, Handle]) -> list[int]:
    handle = handles[pattern.name]
    gone = [op for op in handle.ops if id(op) not in index.position]
    if gone:
        raise fail(
            f"{pattern.name!r} names {gone[0].name}, which an earlier statement removed",
            pattern.place,
        )
    return sorted(index.position[id(op)] for op in handle.ops)
