"""Finds the matches of a selection in a graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from itertools import starmap

from irgraph.diagnostics import Diagnostic, IrgraphError, SourceSpan, fail
from irgraph.ir.op import Op, Value
from irgraph.language.expressions.evaluate import Datum, Pricer, Scope, failure_reason
from irgraph.language.patterns.index import Index
from irgraph.language.patterns.liveness import Liveness
from irgraph.language.patterns.match import Match, Matcher, Pair
from irgraph.language.patterns.misses import Misses, Reason
from irgraph.language.patterns.nodes import Module, NamedOps, OpPattern, Selection, Series


@dataclass(frozen=True)
class SelectionResult:
    """The matches of a selection, in launch order, and its nearest miss.

    ``total`` is the number of all matches, of which ``matches`` may be only the first.
    """

    index: Index
    matches: tuple[Match, ...]
    misses: Misses
    total: int

    def op(self, position: int) -> Op:
        """Return the op at a position."""
        return self.index.ops[position]

    def members(self, match: Match) -> list[Op]:
        """Return the ops of a match, in launch order."""
        return [self.index.ops[position] for position in match.ops]

    @property
    def ops(self) -> list[Op]:
        """The ops of all matches, one match after the other."""
        return [op for match in self.matches for op in self.members(match)]


@dataclass(frozen=True)
class Handle:
    """Ops with a name, and the selection that they come from.

    ``ops`` are the ops when they got the name; ``loss`` is the first of them that a statement
    removed or replaced, with the place of that statement.
    """

    ops: tuple[Op, ...]
    selection: Selection | None = None
    loss: Loss | None = None


@dataclass(frozen=True)
class Loss:
    """A named op that a statement removed or replaced, and the statement's place."""

    op: Op
    place: SourceSpan


def select(
    selection: Selection,
    index: Index,
    scope: Scope,
    handles: Mapping[str, Handle],
    all_: bool = False,
    try_remove: Callable[[Match], bool] | None = None,
) -> SelectionResult:
    """Return the matches of a selection: all of them with ``many`` or ``all_``, else the first.

    ``try_remove`` is called with each match, the last one first, and returns whether its ops are
    removed: matches before it are then found as if they had been.
    """
    key = None if try_remove is not None else _cache_key(selection, scope)
    cached = None if key is None else index.selections.get(key)
    if cached is None:
        cached = selection, *_find_matches(selection, index, scope, handles, try_remove)
        if key is not None:
            index.selections[key] = cached
    _, matches, misses = cached
    retained = matches if selection.many or all_ else matches[:1]
    return SelectionResult(index, retained, misses, len(matches))


KEY_TYPES = (int, bool, str, type(None))


def _cache_key(selection: Selection, scope: Scope) -> object:
    """Return the key of a selection's matches in a graph; ``None`` if they depend on more."""
    names = scope.names if selection.condition is not None else {}
    has_plain_values = all(type(value) in KEY_TYPES for value in names.values())
    if (
        not isinstance(selection.pattern, Series)
        or scope.pricer
        or scope.values_by_text
        or not has_plain_values
    ):
        return None
    return (id(selection), *((name, type(value), value) for name, value in names.items()))


def _find_matches(
    selection: Selection,
    index: Index,
    scope: Scope,
    handles: Mapping[str, Handle],
    try_remove: Callable[[Match], bool] | None,
) -> tuple[tuple[Match, ...], Misses]:
    """Return all matches of a selection, and the nearest miss."""
    misses = Misses()
    liveness = Liveness(index)
    facts = index_facts(index, scope.pricer, liveness)

    def accept(match: Match) -> Reason:
        outside = _outside_reason(selection, index, match)
        return outside or failure_reason(
            selection.condition, match_scope(scope, index, match, facts)
        )

    if isinstance(selection.pattern, Series):
        matcher = Matcher(index, selection.pattern.ops, misses)
        candidates = matcher.matches(accept, backwards=try_remove is not None)
    else:
        candidates = _whole_op_matches(selection, index, handles, accept, misses)
    matches = (
        tuple(candidates)
        if try_remove is None
        else _in_launch_order(candidates, try_remove, liveness)
    )
    return matches, misses


def _in_launch_order(
    candidates: Iterator[Match], try_remove: Callable[[Match], bool], liveness: Liveness
) -> tuple[Match, ...]:
    """Return matches in launch order, calling ``try_remove`` for each before finding the next."""
    result: list[Match] = []
    for match in candidates:
        result.append(match)
        if try_remove(match):
            for position in match.ops:
                liveness.drop(position)
    return tuple(sorted(result, key=lambda match: match.root))


Facts = Mapping[str, Callable[[Op], Value]]


def match_scope(scope: Scope, index: Index, match: Match, facts: Facts | None = None) -> Scope:
    """Return the scope of an expression over one match."""
    labels: dict[str, Datum] = {
        pair.pattern.label: index.ops[pair.position] for pair in match.pairs if pair.pattern.label
    }
    names = {**scope.names, "op": index.ops[match.root], **labels}
    op_properties = facts or index_facts(index, scope.pricer)
    return Scope(names, match.values, scope.values_by_text, scope.pricer, op_properties)


def index_facts(index: Index, pricer: Pricer | None, liveness: Liveness | None = None) -> Facts:
    """Return the properties of an op that need its graph; ``time`` if a device is chosen."""
    liveness = liveness or Liveness(index)
    facts: dict[str, Callable[[Op], Value]] = {
        "scope": index.caller_name,
        "idle": liveness.idle,
        "unread": liveness.unread,
        "dead": liveness.dead,
        "final": index.is_final,
    }
    if pricer is not None:
        facts["time"] = partial(pricer.time, index.graph)
    return facts


def _outside_reason(selection: Selection, index: Index, match: Match) -> str:
    """Return why a match is outside of the module, label or phase of ``within``, or ``""``."""
    if not selection.within:
        return ""
    for position in match.ops:
        op = index.ops[position]
        if selection.phase and op.phase != selection.within:
            return f"its phase is {op.phase}, not {selection.within}"
        if not selection.phase and not _is_within(selection.within, position, index):
            return f"it is not within {selection.within!r}"
    return ""


def _is_within(path: str, position: int, index: Index) -> bool:
    """Return whether an op was called by a module or is below a label."""
    if is_below(index.ops[position].module, path):
        return True
    return any(index.ops[i].name == path for i in index.scopes(index.parent[position]))


def is_below(module: str, path: str) -> bool:
    """Return whether a module has a path or is below it; ``*`` in the path matches any name."""
    if "*" not in path:
        return module == path or module.startswith(f"{path}.")
    names, globs = module.split("."), path.split(".")
    pairs = zip(names, globs, strict=False)
    return bool(module) and len(names) >= len(globs) and all(starmap(fnmatchcase, pairs))


def _whole_op_matches(
    selection: Selection,
    index: Index,
    handles: Mapping[str, Handle],
    accept: Callable[[Match], Reason],
    misses: Misses,
) -> Iterator[Match]:
    """Yield a match for each op of a module or of a named set of ops."""
    pattern = selection.pattern
    if isinstance(pattern, Module):
        phase = selection.within if selection.phase else "forward"
        positions = list(_module_positions(pattern.path, phase, index))
    else:
        assert isinstance(pattern, NamedOps)
        positions = _handle_positions(pattern, index, handles)
    for position in positions:
        match = Match().with_op(Pair(OpPattern(index.ops[position].name), position))
        misses.tried_ops += 1
        reason = accept(match)
        if reason:
            misses.note(1, position, reason)
        else:
            yield match


def _module_positions(path: str, phase: str, index: Index) -> Iterator[int]:
    """Yield the outermost ops of one phase that a module called."""
    end = 0
    for position, op in enumerate(index.ops):
        if position >= end and op.phase == phase and is_below(op.module, path):
            yield position
            end = index.end[position]


def _handle_positions(pattern: NamedOps, index: Index, handles: Mapping[str, Handle]) -> list[int]:
    """Return the present positions of named ops; raise ``IrgraphError`` if one was removed."""
    handle = handles[pattern.name]
    if handle.loss is not None:
        raise _lost_op_error(pattern, handle.loss)
    positions = {position for op in handle.ops for position in index.present_positions(op)}
    return sorted(positions)


def _lost_op_error(pattern: NamedOps, loss: Loss) -> IrgraphError:
    """Return the error of a name that has lost an op, with the statement that removed it."""
    names = [t.name for t in (loss.op.outputs or loss.op.inputs)]
    tensor = f" (%{names[0]})" if names else ""
    message = f"{pattern.name!r} names {loss.op.name}{tensor}, which a statement removed"
    note = Diagnostic("removed or replaced here", loss.place, severity="note")
    hint = "find the ops after that statement, or name its new ops with 'as'"
    return fail(message, pattern.place, notes=(note,), hint=hint)
