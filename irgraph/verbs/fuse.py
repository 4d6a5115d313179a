"""``fuse``: several ops, or groups of siblings, become one op."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from os.path import commonprefix

from msgspec import Struct
from msgspec.structs import replace

from irgraph.ir.dependence import Dependence
from irgraph.ir.edit import Edit
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.verbs.refusal import RefusedError, describe
from irgraph.verbs.sequence import (
    InsertionPoint,
    Segment,
    entangling_chain,
    insertion_point,
    segment,
)
from irgraph.verbs.streams import stream_of, works

MAX_ORIGINS = 3


class Fusion(Struct, frozen=True):
    """Result of a fusion.

    Attributes:
        graph: the new graph; results that the new op does not make may still be in use.
        ops: the new ops; ``fuse`` makes one.
        moved_ops: ops that had to move after them.
        legal: the reason why it was legal, as a sentence.
        assumed: the op whose dependences were assumed away, if any.
    """

    graph: Graph
    ops: tuple[Op, ...]
    moved_ops: tuple[Op, ...]
    legal: str
    assumed: Op | None = None

    @property
    def op(self) -> Op:
        """The new op."""
        return self.ops[0]


def fuse(
    graph: Graph,
    groups: Sequence[Sequence[Op]],
    new: Op,
    *,
    caller: str = "fuse",
    assuming: str = "",
    known_segment: Segment | None = None,
) -> Fusion:
    """Replace all ops in ``groups`` by ``new``.

    The groups must be independent: no path of dependences leaves one and comes to another or
    returns to it. The new op is placed in the innermost scope around all members, at the definition
    of its last operand; consumers before it move after it. ``caller`` names the verb or pass for
    the origin; ``assuming`` states why the dependences of one outsider do not count;
    ``known_segment`` is the segment of these groups, if it is already available.

    Raises ``RefusedError`` with the path that leaves and returns.
    """
    return put_in_place(
        graph, groups, (new,), caller=caller, assuming=assuming, known_segment=known_segment
    )


def put_in_place(
    graph: Graph,
    groups: Sequence[Sequence[Op]],
    new: Sequence[Op],
    *,
    caller: str,
    assuming: str = "",
    known_segment: Segment | None = None,
) -> Fusion:
    """Replace all ops in ``groups`` by several ops in sequence.

    The conditions of ``fuse`` apply; no other op may come between the new ops.
    """
    edit = Edit(graph)
    fusion = collect(
        edit, groups, new, caller=caller, assuming=assuming, known_segment=known_segment
    )
    return replace(fusion, graph=edit.commit())


def collect(
    edit: Edit,
    groups: Sequence[Sequence[Op]],
    new: Sequence[Op],
    *,
    caller: str,
    assuming: str = "",
    known_segment: Segment | None = None,
) -> Fusion:
    """Record in an edit the changes of ``put_in_place``; the result's graph is the original one.

    Legality is judged by the edit's graph in its current state: no change that the edit has
    recorded may be between the members.
    """
    graph = edit.graph
    s = known_segment or segment(graph, groups)
    assumed, point = _insertion_point(graph, groups, s, assuming)
    members = [op for group in groups for op in group]
    _check_streams(members)
    origin = _origin(caller, members)
    notes = {"assuming": assuming} if assumed else {}
    new_ops = tuple(
        replace(_like_members(op, members), origin=origin, notes={**op.notes, **notes})
        for op in new
    )
    removed = set(members)
    for member in members:
        edit.remove(member)
    position = {"after": point.unit} if point.after else {"before": point.unit}
    for op in new_ops:
        edit.insert(op, **position)
    for unit in point.moved_units:
        edit.remove(unit)
        for remainder in _without(unit, removed):
            edit.insert(remainder, **position)
    return Fusion(graph, new_ops, point.moved_units, _justification(s, len(groups), point), assumed)


def _insertion_point(
    graph: Graph, groups: Sequence[Sequence[Op]], s: Segment, assuming: str
) -> tuple[Op | None, InsertionPoint]:
    """Return the outsider that an assumption passes over, if any, and the point of the new op."""
    chain = entangling_chain(s)
    outsiders = [s.atoms[i] for tie in chain for i in (tie.before, tie.after) if s.owner[i] < 0]
    if not chain or not assuming or not outsiders:
        return None, _free_slot(s, chain)
    outsider = outsiders[0]
    reduced = segment(graph, groups, without=outsider)
    point = _free_slot(reduced, entangling_chain(reduced))
    moved_set = {leaf for unit in point.moved_units for leaf in unit.walk()}
    for tie in s.ties:
        ends = (s.atoms[tie.before], s.atoms[tie.after])
        if any(op is outsider for op in ends) and any(op in moved_set for op in ends):
            reason = "an op that must move after the new op depends on the op that is assumed away"
            raise RefusedError(reason, describe([tie], s.atoms))
    return outsider, point


def _free_slot(s: Segment, chain: Sequence[Dependence]) -> InsertionPoint:
    if chain:
        start = s.atoms[chain[0].before].name
        reason = f"a dependence path leaves {start} and returns to the fused ops"
        raise RefusedError(reason, describe(chain, s.atoms))
    point = insertion_point(s)
    if isinstance(point, InsertionPoint):
        return point
    reason = "the ops that the new op needs cannot be separated from those that need it"
    raise RefusedError(reason, describe(point, s.atoms))


def _check_streams(members: Sequence[Op]) -> None:
    """Refuse members of several streams: the new op would run on one, and wait for none."""
    member_by_stream: dict[str, Op] = {}
    for member in members:
        if works(member):
            member_by_stream.setdefault(stream_of(member), member)
    if len(member_by_stream) > 1:
        notes = [
            (op, f"{op.name} runs on {name or 'the default stream'}")
            for name, op in member_by_stream.items()
        ]
        raise RefusedError(
            "they run on different streams: fuse before moving ops to streams", notes[:2]
        )


def _like_members(new: Op, members: Sequence[Op]) -> Op:
    """Return a new op on the thread and stream, and in the phase, of its first member."""
    first = members[0]
    module_prefix = commonprefix([member.module.split(".") for member in members])  # noqa: RUF071 (lists)
    return replace(
        new,
        thread=first.thread,
        stream=first.stream,
        phase=first.phase,
        module=new.module or ".".join(module_prefix),
    )


def _origin(caller: str, members: Sequence[Op]) -> str:
    """Return the origin of a fusion: the caller, the fused ops, and their first origins."""
    counts = ", ".join(
        f"{count} x {name}" for name, count in Counter(op.name for op in members).items()
    )
    origins = list(dict.fromkeys(op.origin for op in members if op.origin))
    omitted_count = len(origins) - MAX_ORIGINS
    origin_text = " ".join(origins[:MAX_ORIGINS]) + (
        f" and {omitted_count} more" if omitted_count > 0 else ""
    )
    return f"{caller}: {counts}" + (f" ({origin_text})" if origin_text else "")


def _without(op: Op, removed: Collection[Op]) -> list[Op]:
    """Return an op without the removed ones below it; an empty list if it loses all."""
    if op in removed:
        return []
    if not op.body:
        return [op]
    body = tuple(rest for child in op.body for rest in _without(child, removed))
    return [replace(op, body=body)] if body else []


def _justification(s: Segment, groups: int, point: InsertionPoint) -> str:
    outsiders = sum(owner < 0 for owner in s.owner)
    count = len(point.moved_units)
    moved_text = (
        f"; {count} consumer{'s move' if count > 1 else ' moves'} after it" if count else ""
    )
    independent = f"{groups} independent groups" if groups > 1 else "one group"
    plural = "" if outsiders == 1 else "s"
    through = f"no dependence path through the {outsiders} op{plural} in between"
    between = through if outsiders else "nothing in between"
    return f"{independent}, {between}; placed {point.reason}{moved_text}"
