"""Collectives matched across ranks: bytes, bandwidth, and waiting separated from moving data."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import prod
from operator import index
from typing import Any, TypeAlias

import numpy as np
from msgspec import Struct

from irgraph.capture.kineto.events.families import COMMUNICATION, family_of
from irgraph.capture.kineto.events.host import ancestors
from irgraph.capture.kineto.reading.trace import Collective, operands
from irgraph.ir.dtypes import FROM_CPP, ITEMSIZE
from irgraph.replay.replay import Replayer

US = 1000
NAMES = {
    "allreduce": "all_reduce", "allgather": "all_gather", "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all", "alltoallv": "all_to_all", "broadcast": "broadcast",
    "reduce": "reduce", "sendrecv": "send_recv", "send": "send_recv", "recv": "send_recv",
    "gather": "gather", "scatter": "scatter",
}  # fmt: skip
"""Kinds of collectives by their lower-case names in torch and NCCL, without ``_``."""

_KIND = re.compile(
    r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|send_?recv|broadcast|reduce|gather|"
    r"scatter|send|recv",
    re.IGNORECASE,
)
_SIZES = {
    "Double": 8, "Long": 8, "Float": 4, "Int": 4, "Half": 2, "BFloat16": 2, "Short": 2, "Char": 1,
    "Byte": 1, "Bool": 1, "Float8_e4m3fn": 1, "Float8_e5m2": 1, "Float8_e4m3fnuz": 1,
    "Float8_e5m2fnuz": 1, "ComplexFloat": 8, "ComplexDouble": 16,
}  # fmt: skip
"""Bytes of an element by its type's name from ``c10::toString``."""

_RESULT_HAS_ALL = {"all_gather": True, "reduce_scatter": False}
"""Collectives whose size is the sum over all ranks: whether their result has that size."""

CollectiveKey: TypeAlias = tuple[int, str, str, int]
"""Key of a collective: step, process group, kind, and its index among equal ones."""


class MatchedCollective(Struct, frozen=True):
    """One collective of a step, matched over the given ranks.

    Attributes:
        key: its step, process group, kind and index.
        times: microseconds of its kernel by rank.
        nbytes: its size by the definition of nccl-tests, maximum over ranks; ``None`` if unknown.
        ranks: number of ranks in its group, 0 if neither group nor job is recorded.
        complete: whether all given ranks of its group have it, and there are at least two.
    """

    key: CollectiveKey
    times: Mapping[int, float]
    nbytes: int | None
    ranks: int
    complete: bool

    @property
    def transfer(self) -> float:
        """Microseconds of its shortest kernel: no data moves before the last rank arrives."""
        return min(self.times.values())

    def waiting(self, rank: int) -> float:
        """Return the microseconds that a rank waits for the last one to arrive."""
        return self.times[rank] - self.transfer

    def bandwidth(self) -> tuple[float | None, float | None]:
        """Return algorithm and bus bandwidth in GB/s, ``None`` if unknown.

        Source of the factors: nccl-tests, doc/PERFORMANCE.md.
        """
        if self.nbytes is None or not self.transfer:
            return None, None
        rate = self.nbytes / self.transfer / 1e3
        factor = bus_factor(self.key[2], self.ranks)
        return rate, None if factor is None else rate * factor

    def row(self) -> dict[str, Any]:
        """Return the figures as plain values; waiting is ``None`` unless complete."""
        step, group, kind, number = self.key
        waits = [self.waiting(rank) for rank in self.times] if self.complete else []
        algorithm, bus = self.bandwidth()
        return {
            "step": step,
            "group": group or "all ranks given",
            "collective": kind,
            "number": number,
            "ranks_given": len(self.times),
            "ranks": self.ranks or None,
            "bytes": self.nbytes,
            "time_us": round(max(self.times.values()), 3),
            "transfer_us": round(self.transfer, 3) if waits else None,
            "waiting_mean_us": round(float(np.mean(waits)), 3) if waits else None,
            "waiting_max_us": round(max(waits), 3) if waits else None,
            "last_rank": min(self.times, key=self.times.__getitem__) if waits else None,
            "algorithm_gb_s": None if algorithm is None else float(f"{algorithm:.4g}"),
            "bus_gb_s": None if bus is None else float(f"{bus:.4g}"),
        }


def bus_factor(kind: str, ranks: int) -> float | None:
    """Return the factor from algorithm bandwidth to bus bandwidth, ``None`` if unknown."""
    if kind in ("broadcast", "reduce", "send_recv"):
        return 1.0
    share = (ranks - 1) / ranks if ranks else None
    if share is None or kind not in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
        return None
    return 2 * share if kind == "all_reduce" else share


def collectives(replayers: Sequence[Replayer]) -> list[MatchedCollective]:
    """Return the collectives of the typical steps, matched over the ranks of their process group.

    The n-th collective of a kind in a step and a group is the same on every rank. No data moves
    before the last rank arrives, so the transfer time is the minimum over ranks, and the remaining
    time on each rank is waiting. (Clocks of ranks differ too much to compare starts.) If a trace
    does not name groups, all ranks of the job are one group.
    """
    ranks = [replayer.tree.trace.rank for replayer in replayers]
    if len(set(ranks)) < len(ranks):
        ranks = list(range(len(ranks)))
    facts_by_key: dict[CollectiveKey, dict[int, tuple[float, int | None, int]]] = defaultdict(dict)
    for rank, replayer in zip(ranks, replayers, strict=True):
        for key, facts in _facts_of_rank(replayer).items():
            facts_by_key[key][rank] = facts
    return [_matched_collective(key, facts, ranks) for key, facts in sorted(facts_by_key.items())]


def by_kind(matched: Sequence[MatchedCollective], steps: int) -> list[dict[str, Any]]:
    """Return means of collectives, a row for each group, kind and size, longest first."""
    groups: dict[tuple[str, str, int | None], list[MatchedCollective]] = defaultdict(list)
    for collective in matched:
        groups[collective.key[1], collective.key[2], collective.nbytes].append(collective)
    result = []
    for (group, kind, nbytes), members in groups.items():
        rows = [member.row() for member in members]
        means = {
            name: _mean([row[name] for row in rows])
            for name in ("time_us", "transfer_us", "waiting_mean_us", "algorithm_gb_s", "bus_gb_s")
        }
        calls = round(len(members) / max(1, steps), 2)
        head = {"group": group or "all ranks given", "collective": kind, "bytes": nbytes}
        result.append({**head, "ranks": members[0].ranks or None, "calls": calls, **means})
    return sorted(result, key=lambda row: -row["time_us"] * row["calls"])


def stragglers(matched: Sequence[MatchedCollective]) -> list[dict[str, Any]]:
    """Return the time per step that each rank waits, and that other ranks wait for it."""
    complete = [collective for collective in matched if collective.complete]
    steps = len({collective.key[0] for collective in complete}) or 1
    waits: dict[int, float] = defaultdict(float)
    last_count: dict[int, int] = defaultdict(int)
    caused_waiting: dict[int, float] = defaultdict(float)
    for collective in complete:
        last_rank = min(collective.times, key=collective.times.__getitem__)
        last_count[last_rank] += 1
        caused_waiting[last_rank] += sum(collective.waiting(rank) for rank in collective.times) / (
            len(collective.times) - 1
        )
        for rank in collective.times:
            waits[rank] += collective.waiting(rank)
    return [
        {
            "rank": rank,
            "waiting_us": round(waits[rank] / steps, 3),
            "last": round(last_count[rank] / steps, 2),
            "others_waiting_us": round(caused_waiting[rank] / steps, 3),
        }
        for rank in sorted(waits)
    ]


def _mean(values: Sequence[float | None]) -> float | None:
    recorded = [value for value in values if value is not None]
    return float(f"{np.mean(recorded):.6g}") if recorded else None


def _matched_collective(
    key: CollectiveKey, facts: Mapping[int, tuple[float, int | None, int]], ranks: Sequence[int]
) -> MatchedCollective:
    times = {rank: time for rank, (time, _, _) in facts.items()}
    sizes = [nbytes for _, nbytes, _ in facts.values() if nbytes is not None]
    complete = len(times) > 1 and times.keys() >= _members(key[1], ranks)
    return MatchedCollective(
        key, times, max(sizes, default=None), max(n for _, _, n in facts.values()), complete
    )


def _members(group: str, ranks: Sequence[int]) -> set[int]:
    """Return the given ranks that are listed in a process group; all if it has no list.

    Torch shortens long lists: ``[0, 8, ..., 56, 64]``.
    """
    listing = re.search(r"\[([\d., ]+)\]", group)
    if listing is None:
        return set(ranks)
    return set(ranks) & {int(rank) for rank in re.findall(r"\d{1,18}", listing[1])}


def _facts_of_rank(replayer: Replayer) -> dict[CollectiveKey, tuple[float, int | None, int]]:
    """Return time, size and ranks of the collectives of one rank."""
    tree = replayer.tree
    step_numbers = {i: tree.steps[i].number for i in replayer.typical_step_indices}
    counts: dict[tuple[int, str, str], int] = defaultdict(int)
    result = {}
    kinds, numbers = tree.trace.columns["kind"], tree.trace.columns["collective"]
    job_size = _job_size(replayer)
    for row in np.flatnonzero(tree.trace.on_device & (tree.launch >= 0)).tolist():
        step = step_numbers.get(int(tree.step[row]))
        name = tree.trace.text(row)
        if step is None or family_of(name, int(kinds[row])) != COMMUNICATION:
            continue
        metadata = tree.trace.collectives[int(numbers[row])]
        label, range_nbytes = _enclosing_range(replayer, row)
        kind = _kind(metadata.name) or _kind(label) or _kind(name) or "collective"
        size = metadata.size if metadata.size > 0 else job_size
        nbytes = (
            _nbytes_by_metadata(metadata, kind)
            if metadata.name
            else _collective_nbytes(range_nbytes, kind, size)
        )
        number = counts[step, metadata.group, kind]
        counts[step, metadata.group, kind] += 1
        time = float(tree.trace.columns["duration"][row]) / US
        result[step, metadata.group, kind, number] = time, nbytes, size
    return result


def _job_size(replayer: Replayer) -> int:
    """Return the number of ranks of the job, 0 if it is not recorded."""
    info = replayer.tree.trace.header.get("distributedInfo")
    size = info.get("world_size") if isinstance(info, dict) else None
    return size if isinstance(size, int) and size > 0 else 0


def _kind(text: str) -> str:
    match = _KIND.search(text)
    return NAMES.get(match[0].replace("_", "").lower(), "") if match else ""


def _nbytes_by_metadata(metadata: Collective, kind: str) -> int | None:
    """Return the size of a collective by its NCCL metadata, ``None`` if unknown."""
    largest = max(metadata.sent, metadata.received) if kind in _RESULT_HAS_ALL else metadata.sent
    if largest < 0 or metadata.dtype not in _SIZES:
        return None
    return largest * _SIZES[metadata.dtype]


def _collective_nbytes(nbytes: int | None, kind: str, ranks: int) -> int | None:
    """Return the size of a collective by the bytes of a rank's operands, ``None`` if unknown."""
    if nbytes is None or not _RESULT_HAS_ALL.get(kind, False):
        return nbytes
    return nbytes * ranks if ranks else None


def _enclosing_range(replayer: Replayer, row: int) -> tuple[str, int | None]:
    """Return name and bytes of torch's range around a collective, ``""`` and ``None`` if none."""
    tree = replayer.tree
    for ancestor in ancestors(tree, int(tree.launch[row])):
        name = tree.trace.text(ancestor)
        if name.startswith(("nccl:", "rccl:")):
            return name, _operand_bytes(
                *tree.trace.shapes[int(tree.trace.columns["shape"][ancestor])]
            )
    return "", None


def _operand_bytes(dims: bytes, types: bytes) -> int | None:
    """Return the bytes of all tensors of a call, ``None`` if they are not recorded."""
    try:
        sizes = [
            prod(map(index, shape)) * ITEMSIZE[FROM_CPP[kind]]
            for shape, kind in zip(*(operands(dims, types) or ((), ())), strict=True)
        ]
    except (KeyError, TypeError, ValueError):
        return None
    return sum(sizes) if sizes and min(sizes) >= 0 else None
