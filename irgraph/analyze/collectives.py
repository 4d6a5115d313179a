"""Collectives matched across ranks: waiting for others separated from moving data."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from irgraph.analyze.families import COMMUNICATION, family_of
from irgraph.capture.kineto.events.tree import Tree
from irgraph.replay.replay import Replayer

US = 1000
_KIND = re.compile(r"AllReduce|AllGather|ReduceScatter|SendRecv|Broadcast|Reduce|AllToAll", re.I)


def matched(replayers: Sequence[Replayer]) -> list[dict[str, Any]]:
    """Return one row for each collective kernel of a step, over all ranks.

    The n-th collective of a kind in a step is the same on every rank. No data moves before
    the last rank arrives, so the minimum over ranks is taken as the transfer, and the rest of each
    other one as waiting. (Clocks of ranks differ too much to compare starts.)
    """
    if len(replayers) < 2:
        return []
    times: dict[tuple[int, str, int], dict[int, float]] = defaultdict(dict)
    for rank, one in enumerate(replayers):
        for key, time in _of_rank(one).items():
            times[key][rank] = time
    rows = []
    for (step, kind, number), found in sorted(times.items()):
        if len(found) == len(replayers):
            rows.append(_row(step, kind, number, list(found.values())))
    return rows


def _row(step: int, kind: str, number: int, times: list[float]) -> dict[str, Any]:
    transfer = min(times)
    waiting = [time - transfer for time in times]
    return {
        "step": step,
        "collective": kind,
        "number": number,
        "transfer_us": round(transfer, 3),
        "waiting_mean_us": round(float(np.mean(waiting)), 3),
        "waiting_max_us": round(max(waiting), 3),
        "last_rank": times.index(transfer),
    }


def _of_rank(one: Replayer) -> dict[tuple[int, str, int], float]:
    tree: Tree = one.tree
    usual = {i: step.number for i, step in enumerate(tree.steps) if step in one.usual}
    counts: dict[tuple[int, str], int] = defaultdict(int)
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
        number = counts[step, kind]
        counts[step, kind] += 1
        found[step, kind, number] = float(tree.trace.columns["duration"][row]) / US
    return found
