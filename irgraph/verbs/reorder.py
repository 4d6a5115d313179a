"""``reorder``: ops move in the launch order, if no dependence is reversed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from irgraph.ir.edit import Edit
from irgraph.ir.graph import Graph
from irgraph.ir.op import Note, Op
from irgraph.verbs.launch_order import adjacent_order, extreme_order, line
from irgraph.verbs.refusal import CrossedError, RefusedError
from irgraph.verbs.streams import on_streams


class Move(Struct, frozen=True):
    """Result of a reordering: the new graph, the moved ops, and the op that was assumed away."""

    graph: Graph
    moved_ops: tuple[Op, ...]
    assumed: Op | None = None


def reorder(
    graph: Graph,
    ops: Sequence[Op],
    placement: str,
    anchor: Op | None = None,
    *,
    stream: str = "",
    assuming: str = "",
) -> Move:
    """Move ops, without changing their relative order, ``before`` or ``after`` an anchor.

    Ops that are on the right side already do not move. ``earliest`` and ``latest`` need no anchor:
    each op moves as far as its operands, or its users, allow. On a stream, events order dependent
    ops across streams. ``assuming`` states why the dependences of one other op do not count.

    Raises ``CrossedError`` with the shortest chain of dependences that a move would cross, and
    every op whose move would cross one.
    """
    s = line(graph, ops)
    if anchor is None:
        order, anchor_position = extreme_order(s, placement == "earliest"), -1
    else:
        anchor_position = s.position(anchor)
        if anchor_position in s.members:
            moving = RefusedError(
                "the anchor is one of the ops that move", [(s.ops[anchor_position], "")]
            )
            raise CrossedError([(s.ops[anchor_position], moving)])
        order = adjacent_order(s, anchor_position, placement == "after")
    assumed = s.check(order, anchor_position, assuming)
    moved_ops = tuple(s.ops[i] for i in s.moved_members(order))
    result = s.rearrange(order, placement in ("after", "earliest")) if moved_ops else graph
    members = [s.ops[i] for i in s.members]
    threads = _threads(result, set(moved_ops), placement in ("after", "earliest"))
    changes: dict[Op, dict[str, Any]] = {
        op: {"thread": name, "body": _on_thread(op.body, op.thread, name)}
        for op, name in threads.items()
    }
    if assumed is not None:
        changes = {op: {**changes.get(op, {}), "notes": _notes(op, assuming)} for op in members}
    if changes:
        result, members = _with_changes(result, members, changes)
    if stream:
        result, _ = on_streams(result, [(op, stream) for op in members])
    return Move(result, moved_ops, assumed)


def _threads(graph: Graph, moved_ops: Collection[Op], follows: bool) -> dict[Op, str]:
    """Return the thread of each moved op that another thread launches at its new position.

    It is the thread of the op before it, or if not ``follows``, of the op after it.
    """
    threads: dict[Op, str] = {}
    scopes = (graph.ops, *(op.body for op in graph.walk() if op.body)) if moved_ops else ()
    for siblings in scopes:
        thread = ""
        for op in siblings if follows else reversed(siblings):
            if op not in moved_ops:
                thread = op.thread
            elif thread and thread != op.thread:
                threads[op] = thread
    return threads


def _on_thread(ops: Sequence[Op], old: str, new: str) -> tuple[Op, ...]:
    """Return ops on a new thread that were on an old one, with the calls below them."""
    moved = []
    for op in ops:
        thread = new if op.thread == old else op.thread
        moved.append(replace(op, thread=thread, body=_on_thread(op.body, old, new)))
    return tuple(moved)


def _notes(op: Op, reason: str) -> dict[str, Note]:
    """Return an op's notes with the assumption behind its position."""
    return {**op.notes, "assuming": reason}


def _with_changes(
    graph: Graph, members: Sequence[Op], changes: Mapping[Op, Mapping[str, Any]]
) -> tuple[Graph, list[Op]]:
    """Return the graph with changed fields of members, and the members in it."""
    edit = Edit(graph)
    new_members = [replace(op, **changes.get(op, {})) for op in members]
    for old, new in zip(members, new_members, strict=True):
        edit.insert(new, before=old)
        edit.remove(old)
    return edit.commit(), new_members
