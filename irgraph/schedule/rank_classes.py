"""Kinds of ranks that do the same at the same times: one rank of each kind is simulated."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from irgraph.schedule.joint_tasks import Groups, RankTimelines
from irgraph.schedule.timeline import Timeline


def kinds_of(
    timelines: Sequence[Timeline], starts: Sequence[float], groups: Groups
) -> list[int] | None:
    """Return the number of each rank's kind, from 0 on; ``None`` if groups differ by name.

    Ranks of a kind run the same timeline from the same time on, and their groups of each name
    have ranks of the same kinds: kinds are split until this holds. So all ranks of a kind wait
    equally long.
    """
    if not _has_consistent_groups(groups):
        return None
    pairs = zip(timelines, starts, strict=True)
    kinds = _number_keys([(id(timeline), start) for timeline, start in pairs])
    while groups:
        finer = _number_keys(
            [(kinds[rank], _met_kinds(rank, kinds, groups)) for rank in range(len(kinds))]
        )
        if max(finer) == max(kinds):
            break
        kinds = finer
    return kinds


def parts_of(
    timelines: Sequence[Timeline], kinds: Sequence[int], firsts: Sequence[int], groups: Groups
) -> RankTimelines:
    """Return the first rank of each kind, with groups of kinds instead of ranks."""
    kind_groups = [
        {name: tuple(sorted({kinds[r] for r in members})) for name, members in groups[rank].items()}
        for rank in (firsts if groups else ())
    ]
    return RankTimelines([timelines[rank] for rank in firsts], firsts, kind_groups, kinds=True)


def _met_kinds(rank: int, kinds: Sequence[int], groups: Groups) -> Hashable:
    """Return the kinds of the ranks that a rank meets, by the names of its groups."""
    return frozenset(
        (name, frozenset(kinds[other] for other in members))
        for name, members in groups[rank].items()
    )


def _has_consistent_groups(groups: Groups) -> bool:
    """Return whether a group has the same name and ranks on each of its ranks."""
    return all(
        groups[other].get(name) == members
        for rank_groups in groups
        for name, members in rank_groups.items()
        for other in members
        if other < len(groups)
    )


def _number_keys(keys: Sequence[Hashable]) -> list[int]:
    """Return the number of each key, in the order of first occurrences."""
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    return [numbers[key] for key in keys]
