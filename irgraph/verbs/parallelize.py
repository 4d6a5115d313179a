"""``parallelize``: independent groups of ops run on separate streams."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from irgraph.ir.dependence import Dependence, shortest_chain
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.verbs.launch_order import Line, line
from irgraph.verbs.refusal import RefusedError, describe
from irgraph.verbs.streams import NewStreams, on_streams, stream_of

BASE = "branch"


def parallelize(graph: Graph, groups: Sequence[Sequence[Op]], streams: int) -> Graph:
    """Distribute groups over streams, in turn; the first stream is their current one.

    The launch order is unchanged; events order dependent ops across streams. Raises
    ``RefusedError`` with a pair of groups that depend on each other, and the chain.
    """
    s = line(graph, [op for group in groups for op in group])
    owner, shared_groups = _owners(s, groups)
    for refused in (
        *shared_groups.values(),
        *_dependence_refusals(s, owner, shared_groups).values(),
    ):
        raise refused
    if _are_distributed(s, owner, min(streams, len(groups))):
        return graph
    new_streams = NewStreams(graph)
    names = ["", *(new_streams.name(BASE) for _ in range(min(streams, len(groups)) - 1))]
    stream_by_op = [
        (s.ops[i], names[group % len(names)])
        for i, group in owner.items()
        if names[group % len(names)]
    ]
    return on_streams(graph, stream_by_op)[0] if stream_by_op else graph


def _are_distributed(s: Line, owner: Mapping[int, int], count: int) -> bool:
    """Return whether groups already run on ``count`` streams in turn."""
    streams_by_turn: dict[int, set[str]] = {}
    for i, group in owner.items():
        streams_by_turn.setdefault(group % count, set()).add(stream_of(s.ops[i]))
    used = [stream for streams in streams_by_turn.values() for stream in streams]
    return len(used) == len(set(used)) == count == len(streams_by_turn)


def _owners(
    s: Line, groups: Sequence[Sequence[Op]]
) -> tuple[dict[int, int], dict[int, RefusedError]]:
    """Return the group of each member, by position, and the groups that have a member of another.

    Ops that one composite op called are one member.
    """
    groups_by_op: dict[Op, set[int]] = {}
    for i, group in enumerate(groups):
        for op in group:
            groups_by_op.setdefault(op, set()).add(i)
    owner: dict[int, int] = {}
    shared_groups: dict[int, RefusedError] = {}
    for i in s.members:
        first, *other_groups = sorted(
            {g for op in s.ops[i].walk() for g in groups_by_op.get(op, ())}
        )
        owner[i] = first
        for other in other_groups:
            reason = f"groups {first + 1} and {other + 1} have an op in common"
            shared_groups.setdefault(other, RefusedError(reason, [(s.ops[i], "")]))
    return owner, shared_groups


def dependent_groups(graph: Graph, groups: Sequence[Sequence[Op]]) -> dict[int, RefusedError]:
    """Return the groups that depend on earlier ones, by index, each with its refusal."""
    excluded: dict[int, RefusedError] = {}
    while True:  # a node that contains only excluded groups is not opened
        remaining = [() if i in excluded else group for i, group in enumerate(groups)]
        s = line(graph, [op for group in remaining for op in group])
        owner, shared_groups = _owners(s, remaining)
        refusals = {**_dependence_refusals(s, owner, shared_groups), **shared_groups}
        if not refusals:
            return excluded
        excluded |= refusals


def _dependence_refusals(
    s: Line, owner: dict[int, int], excluded: Collection[int]
) -> dict[int, RefusedError]:
    """Return the groups that depend on another remaining one, directly or not, with refusals."""
    reaching_masks = [0] * len(s.ops)
    refusals: dict[int, RefusedError] = {}
    remaining_mask = ~sum(1 << group for group in excluded)
    for tie in s.ties:
        mask = reaching_masks[tie.before]
        if tie.before in owner:
            mask |= 1 << owner[tie.before]
        group = owner.get(tie.after, -1)
        other_groups = (
            mask & remaining_mask & ~(1 << group)
            if group >= 0 and remaining_mask >> group & 1
            else 0
        )
        if other_groups:
            first = (other_groups & -other_groups).bit_length() - 1
            refusals[group] = _refusal(s, owner, first, tie, full=not refusals)
            remaining_mask &= ~(1 << group)
        reaching_masks[tie.after] |= mask
    return refusals


def _refusal(
    s: Line, owner: dict[int, int], first: int, last: Dependence, full: bool
) -> RefusedError:
    """Return the refusal of two groups: with the ``full`` chain, or its last step."""
    starts = [i for i, group in owner.items() if group == first and i < last.after] * full
    chains = [shortest_chain(s.labelled, i, last.after) for i in starts]
    chain = min(filter(None, chains), key=len, default=[last])
    pair = f"groups {first + 1} and {owner[last.after] + 1}"
    return RefusedError(f"{pair} depend on each other", describe(chain, s.ops))
