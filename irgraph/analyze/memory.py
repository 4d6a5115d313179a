"""Memory over time, from the profiler's ``[memory]`` events."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from irgraph.capture.kineto.events.tree import Tree
from irgraph.capture.kineto.reading.trace import EventKind, Integers, MemoryChange

US = 1000
HOST = 0
"""The host's number among ``c10::DeviceType``."""


def memory_timeline(trees: Sequence[Tree]) -> list[dict[str, Any]]:
    """Return every change of memory in order of time, with the operator that caused it.

    If a trace does not record the total allocated bytes, ``allocated`` counts from the start of the
    trace and is too low; ``from_zero`` is then false.
    """
    return [row for tree in trees for row in _changes_of_trace(tree)]


def memory_peaks(trees: Sequence[Tree]) -> list[dict[str, Any]]:
    """Return the memory peak of each rank and device, its time and its operator."""
    groups: dict[tuple[int, str], list[dict[str, Any]]] = defaultdict(list)
    for row in memory_timeline(trees):
        groups[row["rank"], row["device"]].append(row)
    result = []
    for (rank, device), rows in sorted(groups.items()):
        peak = max(rows, key=lambda row: row["allocated"])
        reserved = [row["reserved"] for row in rows if row["reserved"] is not None]
        result.append(
            {
                "rank": rank,
                "device": device,
                "changes": len(rows),
                "peak_mb": round(peak["allocated"] / 1e6, 6),
                "at_us": peak["at_us"],
                "in_op": peak["op"],
                "of_op": peak["outermost"],
                "at_end_mb": round(rows[-1]["allocated"] / 1e6, 6),
                "reserved_mb": round(max(reserved) / 1e6, 6) if reserved else None,
                "counted_from": "zero" if peak["from_zero"] else "the begin of the trace",
            }
        )
    return result


def _changes_of_trace(tree: Tree) -> list[dict[str, Any]]:
    allocated_by_device: dict[str, int] = defaultdict(int)
    ops = {thread: _operators(tree, thread) for thread in set(tree.trace.memory[0].tolist())}
    result = []
    for change in tree.trace.memory_changes():
        row = _enclosing_operator(tree, ops[change.thread], change)
        outermost = int(tree.top[row]) if row >= 0 else -1
        device = "host" if change.device_type == HOST else f"gpu{max(change.device, 0)}"
        allocated_by_device[device] += change.nbytes
        has_total = change.allocated >= 0
        result.append(
            {
                "rank": tree.trace.rank,
                "at_us": change.start / US,
                "device": device,
                "bytes": change.nbytes,
                "allocated": change.allocated if has_total else allocated_by_device[device],
                "reserved": change.reserved if change.reserved >= 0 else None,
                "from_zero": has_total,
                "op": _name(tree, row),
                "outermost": _name(tree, outermost),
            }
        )
    return result


def _operators(tree: Tree, thread: int) -> tuple[Integers, Integers]:
    """Return the rows of a thread's operators, and their starts."""
    columns = tree.trace.columns
    rows = np.flatnonzero((columns["kind"] == EventKind.OP) & (columns["thread"] == thread))
    return rows, columns["start"][rows]


def _enclosing_operator(tree: Tree, ops: tuple[Integers, Integers], change: MemoryChange) -> int:
    """Return the innermost operator of a thread at the time of a change, -1 if there is none."""
    rows, starts = ops
    position = int(np.searchsorted(starts, change.start, side="right")) - 1
    row = int(rows[position]) if position >= 0 else -1
    while row >= 0 and tree.end[row] < change.start:
        row = int(tree.parent[row])
    return int(tree.op[row]) if row >= 0 else -1


def _name(tree: Tree, row: int) -> str:
    return tree.trace.text(row) if row >= 0 else "(no operator)"
