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
from irgraph.verbs.sequence import InsertionPoint, Segment, entangled, segment, slot
from irgraph.verbs.streams import stream_of, works

SHOWN_ORIGINS = 3


class Fusion(Struct, frozen=True):
    """What a fusion made.

    Attributes:
        graph: the graph after it; results that the new op does not make may still be in use.
        ops: the new ops; ``fuse`` makes one.
        moved: ops that had to move after them.
        legal: why it was legal, as a sentence.
        assumed: the op whose dependences were assumed away, if any.
    """

    graph: Graph
    ops: tuple[Op, ...]
    moved: tuple[Op, ...]
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
    by: str = "fuse",
    assuming: str = "",
    known: Segment | None = None,
) -> Fusion:
    """Put ``new`` in the place of all ops in ``groups``.

    The groups must be independent: no path of dependences leaves one and comes to another or
    returns to it. The new op stands in the innermost scope around all members, where its last
    operand is defined; consumers before it move after it. ``by`` is who asks, for the
    origin; ``assuming`` says why the dependences of one outsider do not count; ``known`` is the
    stretch of these groups, where it is already at hand.

    Raises ``RefusedError`` with the path that leaves and returns.
    """
    return put_in_place(graph, groups, (new,), by=by, assuming=assuming, known=known)


def put_in_place(
    graph: Graph,
    groups: Sequence[Sequence[Op]],
    new: Sequence[Op],
    *,
    by: str,
    assuming: str = "",
    known: Segment | None = None,
) -> Fusion:
    """Put several ops, one after the other, in the place of all ops in ``groups``.

    As ``fuse``, whose conditions hold; nothing else may come between the new ops.
    """
    edit = Edit(graph)
    fusion = collect(edit, groups, new, by=by, assuming=assuming, known=known)
    return replace(fusion, graph=edit.commit())


def collect(
    edit: Edit,
    groups: Sequence[Sequence[Op]],
    new: Sequence[Op],
    *,
    by: str,
    assuming: str = "",
    known: Segment | None = None,
) -> Fusion:
    """Let an edit do what ``put_in_place`` does; the graph of what is returned is the one before.

    Legality is judged by the edit's graph as it stands: nothing that the edit collected before may
    lie between the members.
    """
    graph = edit.graph
    s = known or segment(graph, groups)
    assumed, place = _place(graph, groups, s, assuming)
    members = [op for group in groups for op in group]
    _check_streams(members)
    origin = _origin(by, members)
    said = {"assuming": assuming} if assumed else {}
    made = tuple(
        replace(_set_like(op, members), origin=origin, notes={**op.notes, **said}) for op in new
    )
    removed = {id(member) for member in members}
    for member in members:
        edit.remove(member)
    beside = {"after": place.unit} if place.after else {"before": place.unit}
    for op in made:
        edit.insert(op, **beside)
    for unit in place.moved:
        edit.remove(unit)
        for left in _without(unit, removed):
            edit.insert(left, **beside)
    return Fusion(graph, made, place.moved, _why(s, len(groups), place), assumed)


def _place(
    graph: Graph, groups: Sequence[Sequence[Op]], s: Segment, assuming: str
) -> tuple[Op | None, InsertionPoint]:
    """Return the outsider that an assumption passes over, if any, and where the new op goes."""
    chain = entangled(s)
    outside = [s.atoms[i] for tie in chain for i in (tie.before, tie.after) if s.owner[i] < 0]
    if not chain or not assuming or not outside:
        return None, _slot(s, chain)
    passed = outside[0]
    free = segment(graph, groups, without=passed)
    found = _slot(free, entangled(free))
    moved = {id(leaf) for unit in found.moved for leaf in unit.walk()}
    for tie in s.found:
        ends = (s.atoms[tie.before], s.atoms[tie.after])
        if any(op is passed for op in ends) and any(id(op) in moved for op in ends):
            reason = "an op that must move after the new op depends on the op that is assumed away"
            raise RefusedError(reason, describe([tie], s.atoms))
    return passed, found


def _slot(s: Segment, chain: Sequence[Dependence]) -> InsertionPoint:
    if chain:
        start = s.atoms[chain[0].before].name
        reason = f"a dependence path leaves {start} and returns to the fused ops"
        raise RefusedError(reason, describe(chain, s.atoms))
    found = slot(s)
    if isinstance(found, InsertionPoint):
        return found
    reason = "the ops that the new op needs cannot be separated from those that need it"
    raise RefusedError(reason, describe(found, s.atoms))


def _check_streams(members: Sequence[Op]) -> None:
    """Refuse members of several streams: the new op would run on one, and wait for none."""
    ran: dict[str, Op] = {}
    for member in members:
        if works(member):
            ran.setdefault(stream_of(member), member)
    if len(ran) > 1:
        at = [(op, f"{op.name} runs on {name or 'the default stream'}") for name, op in ran.items()]
        raise RefusedError(
            "they run on different streams: fuse before moving ops to streams", at[:2]
        )


def _set_like(new: Op, members: Sequence[Op]) -> Op:
    """Let a new op run where the first of its members ran."""
    first = members[0]
    shared = commonprefix([member.module.split(".") for member in members])  # noqa: RUF071 (lists)
    return replace(
        new,
        thread=first.thread,
        stream=first.stream,
        phase=first.phase,
        module=new.module or ".".join(shared),
    )


def _origin(by: str, members: Sequence[Op]) -> str:
    """Return who fused what, and where the first of it came from."""
    what = ", ".join(
        f"{count} x {name}" for name, count in Counter(op.name for op in members).items()
    )
    origins = list(dict.fromkeys(op.origin for op in members if op.origin))
    more = len(origins) - SHOWN_ORIGINS
    shown = " ".join(origins[:SHOWN_ORIGINS]) + (f" and {more} more" if more > 0 else "")
    return f"{by}: {what}" + (f" ({shown})" if shown else "")


def _without(op: Op, removed: Collection[int]) -> list[Op]:
    """Return an op without the removed ones below it; nothing where it loses all."""
    if id(op) in removed:
        return []
    if not op.body:
        return [op]
    body = tuple(left for child in op.body for left in _without(child, removed))
    return [replace(op, body=body)] if body else []


def _why(s: Segment, groups: int, place: InsertionPoint) -> str:
    outsiders = sum(owner < 0 for owner in s.owner)
    count = len(place.moved)
    moved = f"; {count} consumer{'s move' if count > 1 else ' moves'} after it" if count else ""
    independent = f"{groups} independent groups" if groups > 1 else "one group"
    plural = "" if outsiders == 1 else "s"
    through = f"no dependence path through the {outsiders} op{plural} in between"
    between = through if outsiders else "nothing in between"
    return f"{independent}, {between}; placed {place.why}{moved}"
