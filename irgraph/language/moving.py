"""Runs ``reorder`` and ``parallelize``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from irgraph.ir.op import Op
from irgraph.language.patterns import Found, Module, Selection
from irgraph.language.report import Entry
from irgraph.language.select import Selected
from irgraph.language.state import (
    Frame,
    State,
    call_of,
    entry,
    entry_of,
    illegal,
    members_of,
    nothing_matched,
    refusal,
)
from irgraph.language.tree import Anchor, Parallelize, Reorder
from irgraph.language.values import counted, spell
from irgraph.text.diagnostics import Diagnostic, fail
from irgraph.verbs.parallelize import parallelize
from irgraph.verbs.refusal import RefusedError
from irgraph.verbs.reorder import reorder
from irgraph.verbs.streams import RECORD

MOST_STREAMS = 128


def whole(selection: Selection, state: State, frame: Frame) -> Selected:
    """Return what a selection matches; a module or a name stands for all its ops."""
    return state.select(selection, frame, all_=isinstance(selection.pattern, (Found, Module)))


def run_reorder(statement: Reorder, state: State, frame: Frame) -> None:
    """Move what matches in the launch order, one by one where all matches are meant."""
    selected = whole(statement.selection, state, frame)
    made = entry_of(statement, frame, selected, statement.selection)
    ops = [op for match in selected.matches for op in members_of(selected, match.ops)]
    warnings = list(made.warnings)
    anchor, beside = None, ""
    if isinstance(statement.to, Anchor) and ops:
        anchor, beside = _anchor(statement.to, state, frame, warnings)
    if not ops or (anchor is None and isinstance(statement.to, Anchor)):
        state.entries.append(replace(made, warnings=tuple(warnings)))
        return
    state.entries.append(_move(statement, state, ops, anchor, replace(made, done=beside)))


def _anchor(
    anchor: Anchor, state: State, frame: Frame, warnings: list[Diagnostic]
) -> tuple[Op | None, str]:
    """Return the op beside which others shall stand, and which it is where several match."""
    found = state.select(anchor.selection, frame, all_=True)
    if not found.matches:
        warnings.append(nothing_matched(found, anchor.selection))
        return None, ""
    match = found.matches[-1 if anchor.nth == "last" else 0]
    several = len(found.matches) > 1 and not anchor.nth
    told = f" {anchor.side} the first of {len(found.matches)} matches" if several else ""
    return found.op(match.ops[-1] if anchor.side == "after" else match.ops[0]), told


def _move(
    statement: Reorder, state: State, ops: Sequence[Op], anchor: Op | None, made: Entry
) -> Entry:
    to = statement.to.side if isinstance(statement.to, Anchor) else statement.to
    graph, stream, reason = state.graph, statement.stream, statement.assuming
    try:
        done = reorder(graph, ops, to, anchor, stream=stream, assuming=reason)
    except RefusedError as error:
        what = f"{call_of(ops[0])} is not moved"
        raise illegal(refusal(error, what, statement.place, graph)) from None
    state.graph = done.graph
    moved = len(ops) if stream else len(done.moved)
    told = f"{counted(len(ops), 'op')} moved"
    if len(done.moved) < len(ops):
        told = f"{len(done.moved)} of {counted(len(ops), 'op')} moved"
    told += made.done
    if stream:
        events = _events(state) - sum(op.name == RECORD for op in graph.walk())
        they = "they run" if len(ops) > 1 else "it runs"
        told += f"; {they} on stream {stream} now, with {counted(events, 'event')}"
    assumed = () if done.assumed is None else (f"{call_of(done.assumed)}: {reason}",)
    legal = ("no dependence is crossed",)
    return replace(made, done=told, legal=legal, assumptions=assumed, moved=moved)


def _events(state: State) -> int:
    return sum(op.name == RECORD for op in state.graph.walk())


def run_parallelize(statement: Parallelize, state: State, frame: Frame) -> None:
    """Spread independent groups over streams."""
    streams = state.value(statement.streams, frame)
    if not isinstance(streams, int) or isinstance(streams, bool) or not 1 < streams <= MOST_STREAMS:
        message = f"a number of streams from 2 to {MOST_STREAMS} is needed, not {spell(streams)}"
        raise fail(message, statement.streams.place)
    found = [(selection, whole(selection, state, frame)) for selection in statement.selections]
    total = sum(selected.total for _, selected in found)
    first = any(len(selected.matches) < selected.total for _, selected in found)
    made = replace(entry(statement, frame), matched=total, first=first)
    lacking = [nothing_matched(selected, s) for s, selected in found if not selected.total]
    groups = _groups([selected for _, selected in found])
    if len(groups) < 2:
        if groups:
            message = "one group alone runs beside nothing"
            lacking.append(Diagnostic(message, statement.place, severity="warning"))
        state.entries.append(replace(made, warnings=tuple(lacking)))
        return
    graph = state.graph
    try:
        state.graph = parallelize(graph, groups, streams)
    except RefusedError as error:
        raise illegal(refusal(error, "nothing runs side by side", statement.place, graph)) from None
    events = _events(state) - sum(op.name == RECORD for op in graph.walk())
    used = min(streams, len(groups))
    told = f"{len(groups)} groups over {used} streams with {counted(events, 'event')}"
    legal = ("no group depends on another",)
    state.entries.append(
        replace(made, done=told, legal=legal, warnings=tuple(lacking), moved=total)
    )


def _groups(found: Sequence[Selected]) -> list[list[Op]]:
    """Return the ops of each selection, or, of a single one, those of each match."""
    if len(found) == 1:
        return [members_of(found[0], match.ops) for match in found[0].matches]
    groups = [[op for match in s.matches for op in members_of(s, match.ops)] for s in found]
    return [group for group in groups if group]
