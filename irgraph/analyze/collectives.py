"""Collectives matched across ranks: waiting for others separated from moving data."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from irgraph.capture.kineto.events.families import COMMUNICATION, family_of
from irgraph.capture.kineto.events.tree import Tree
from irgraph.replay.replay import Replayer

US = 1000
_KIND = re.compile(r"AllReduce|AllGather|ReduceScatter|SendRecv|Broadcast|Reduce|AllToAll", re.I)


Key: TypeAlias = tuple[int, str, str, int]
"""Which collective: step, process group, kind, and the how many-th of these."""


def matched(replayers: Sequence[Replayer]) -> list[dict[str, Any]]:
    """Return one row for each collective kernel of a step, over the ranks of its process group.

    The n-th collective of a kind in a step and a group is the same on every rank. No data moves
    before the last rank arrives, so the minimum over ranks is taken as the transfer, and the rest
    of each other one as waiting. (Clocks of ranks differ too much to compare starts.) Where a trace
    does not name groups, all ranks given are one.
    """
    ranks = [one.tree.trace.rank for one in replayers]
    if len(set(ranks)) < len(ranks):
        ranks = list(range(len(ranks)))
    if len(replayers) < 2:
        return []
    times: dict[Key, dict[int, float]] = defaultdict(dict)
    for rank, one in zip(ranks, replayers, strict=True):
        for key, time in _of_rank(one).items():
            times[key][rank] = time
    return [
        _row(key, found)
        for key, found in sorted(times.items())
        if len(found) > 1 and found.keys() >= _members(key[1], ranks)
    ]


def _members(group: str, ranks: Sequence[int]) -> set[int]:
    """Return which of the ranks given are known to be in a process group; all if it lists none.

    Torch shortens long lists: ``[0, 8, ..., 56, 64]``.
    """
    listed = re.search(r"\[([\d., ]+)\]", group)
    if listed is None:
        return set(ranks)
    return set(ranks) & {int(rank) for rank in re.findall(r"\d+", listed[1])}


def _row(key: Key, times: dict[int, float]) -> dict[str, Any]:
    step, group, kind, number = key
    transfer = min(times.values())
    waiting = [time - transfer for time in times.values()]
    return {
        "step": step,
        "group": group or "all ranks given",
        "collective": kind,
        "number": number,
        "transfer_us": round(transfer, 3),
        "waiting_mean_us": round(float(np.mean(waiting)), 3),
        "waiting_max_us": round(max(waiting), 3),
        "last_rank": min(times, key=lambda rank: times[rank]),
    }


def _of_rank(one: Replayer) -> dict[Key, float]:
    tree: Tree = one.tree
    usual = {i: tree.steps[i].number for i in one.usual_places}
    counts: dict[tuple[int, str, str], int] = defaultdict(int)
    found = {}
    kinds = tree.trace.columns["kind"]
    for row in np.flatnonzero(tree.trace.on_device).tolist():
        step = usual.get(int(tree.step[row]))
        name = tree.trace.text(row)
        if step is None or family_of(name, int(kinds[row])) != COMMUNICATION:
            continue
        if tree.launch[row] < 0:
            continue
        match = _KIND.search(name)
        kind = match.group(0) if match else "collective"
        group = tree.trace.collectives[int(tree.trace.columns["collective"][row])]
        number = counts[step, group, kind]
        counts[step, group, kind] += 1
        found[step, group, kind, number] = float(tree.trace.columns["duration"][row]) / US
    return found
