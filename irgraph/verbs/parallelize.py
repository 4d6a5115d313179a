"""``parallelize``: independent groups of ops run on streams of their own."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from irgraph.ir.dependence import Dependence, shortest_chain
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.verbs.launch_order import Line, line
from irgraph.verbs.refusal import RefusedError, describe
from irgraph.verbs.streams import NewStreams, on_streams

BASE = "branch"


def parallelize(graph: Graph, groups: Sequence[Sequence[Op]], streams: int) -> Graph:
    """Spread groups over streams, in turn; the first stream is the one they are on.

    The launch order stays; events order what depends on each other across streams.
    Raises ``RefusedError`` with a pair of groups that depend on each other, and the chain.
    """
    s = line(graph, [op for group in groups for op in group])
    owner, twice = _owners(s, groups)
    for refused in (*twice.values(), *_dependent(s, owner, twice).values()):
        raise refused
    free = NewStreams(graph)
    names = ["", *(free.name(BASE) for _ in range(min(streams, len(groups)) - 1))]
    chosen = [
        (s.ops[i], names[group % len(names)])
        for i, group in owner.items()
        if names[group % len(names)]
    ]
    return on_streams(graph, chosen)[0] if chosen else graph


def _owners(
    s: Line, groups: Sequence[Sequence[Op]]
) -> tuple[dict[int, int], dict[int, RefusedError]]:
    """Return the group of each member, by position, and the groups that have a member of another.

    Ops that one composite op called are one member.
    """
    held: dict[int, set[int]] = {}
    for i, group in enumerate(groups):
        for op in group:
            held.setdefault(id(op), set()).add(i)
    owner: dict[int, int] = {}
    twice: dict[int, RefusedError] = {}
    for i in s.members:
        first, *others = sorted({g for op in s.ops[i].walk() for g in held.get(id(op), ())})
        owner[i] = first
        for other in others:
            why = f"groups {first + 1} and {other + 1} have an op in common"
            twice.setdefault(other, RefusedError(why, [(s.ops[i], "")]))
    return owner, twice


def dependent(graph: Graph, groups: Sequence[Sequence[Op]]) -> dict[int, RefusedError]:
    """Return the groups that cannot run beside those before them, by place, each with why."""
    gone: dict[int, RefusedError] = {}
    while True:  # a node that only held what stays as it is does not come apart
        left = [() if i in gone else group for i, group in enumerate(groups)]
        s = line(graph, [op for group in left for op in group])
        owner, twice = _owners(s, left)
        found = {**_dependent(s, owner, twice), **twice}
        if not found:
            return gone
        gone |= found


def _dependent(s: Line, owner: dict[int, int], gone: Collection[int]) -> dict[int, RefusedError]:
    """Find groups that depend on another one that stays, through others or not."""
    reached = [0] * len(s.ops)
    found: dict[int, RefusedError] = {}
    staying = ~sum(1 << group for group in gone)
    for tie in s.ties:
        mask = reached[tie.before]
        if tie.before in owner:
            mask |= 1 << owner[tie.before]
        group = owner.get(tie.after, -1)
        others = mask & staying & ~(1 << group) if group >= 0 and staying >> group & 1 else 0
        if others:
            first = (others & -others).bit_length() - 1
            found[group] = _refusal(s, owner, first, tie, whole=not found)
            staying &= ~(1 << group)
        reached[tie.after] |= mask
    return found


def _refusal(
    s: Line, owner: dict[int, int], first: int, last: Dependence, whole: bool
) -> RefusedError:
    """Return why two groups cannot run side by side: the ``whole`` chain, or its last step."""
    starts = [i for i, group in owner.items() if group == first and i < last.after] * whole
    chains = [shortest_chain(s.labelled, i, last.after) for i in starts]
    chain = min(filter(None, chains), key=len, default=[last])
    pair = f"groups {first + 1} and {owner[last.after] + 1}"
    return RefusedError(f"{pair} depend on each other", describe(chain, s.ops))
