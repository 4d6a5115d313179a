"""``parallelize``: independent groups of ops run on streams of their own."""

from __future__ import annotations

from collections.abc import Sequence

from irgraph.ir.dependence import Dependence, shortest_chain
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.verbs.launch_order import Line, line
from irgraph.verbs.refusal import RefusedError, describe
from irgraph.verbs.streams import Free, on_streams

BASE = "branch"


def parallelize(graph: Graph, groups: Sequence[Sequence[Op]], streams: int) -> Graph:
    """Spread groups over streams, in turn; the first stream is the one they are on.

    The launch order stays; events order what depends on each other across streams.
    Raises ``RefusedError`` with a pair of groups that depend on each other, and the chain.
    """
    s = line(graph, [op for group in groups for op in group])
    owner = _owners(s, groups)
    for refused in _dependent(s, owner).values():
        raise refused
    free = Free(graph)
    names = ["", *(free.name(BASE) for _ in range(min(streams, len(groups)) - 1))]
    chosen = [
        (s.ops[i], names[group % len(names)])
        for i, group in owner.items()
        if names[group % len(names)]
    ]
    return on_streams(graph, chosen)[0] if chosen else graph


def _owners(s: Line, groups: Sequence[Sequence[Op]]) -> dict[int, int]:
    """Return the group of each member, by position."""
    group_of = {id(op): i for i, group in enumerate(groups) for op in group}
    owner: dict[int, int] = {}
    for i in s.members:
        held = {group_of[id(op)] for op in s.ops[i].walk() if id(op) in group_of}
        if len(held) > 1:
            raise RefusedError("one op is in two groups", [(s.ops[i], "")])
        owner[i] = held.pop()
    return owner


def dependent(graph: Graph, groups: Sequence[Sequence[Op]]) -> dict[int, RefusedError]:
    """Return the groups that cannot run beside those before them, by place, each with why."""
    s = line(graph, [op for group in groups for op in group])
    return _dependent(s, _owners(s, groups))


def _dependent(s: Line, owner: dict[int, int]) -> dict[int, RefusedError]:
    """Find groups that depend on another one that stays, through others or not."""
    reached = [0] * len(s.ops)
    found: dict[int, RefusedError] = {}
    staying = -1
    for tie in s.found:
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
