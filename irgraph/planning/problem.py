"""What a plan costs, by a fast model: loads of ranks, and collectives over them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec import Struct

from irgraph.plans.plan import DATA, ROW, Plan, Scheme, TableSharding


class Choice(Struct, frozen=True):
    """One way to spread a table.

    Attributes:
        scheme: as of plans.
        holders: how many ranks hold a part.
        time: microseconds of kernels on each of them.
        memory: bytes on each of them.
        sent: bytes of bags that each of them sends by the all-to-all, all samples together.
        ids: bytes of ids that each of them receives.
        reduced: bytes of bags that are added up over all ranks.
        copied: bytes of gradients that are averaged over all ranks.
    """

    scheme: Scheme
    holders: int
    time: float
    memory: float
    sent: float = 0.0
    ids: float = 0.0
    reduced: float = 0.0
    copied: float = 0.0


class TableCosts(Struct, frozen=True):
    """A table, what greedy sharders know of it, and the ways to spread it, the whole one first."""

    name: str
    rows: int
    columns: int
    pooling: float
    choices: tuple[Choice, ...]


Time = Callable[[float], float]
"""Microseconds of a collective over the bytes of its message."""


class PlacementProblem(Struct, frozen=True):
    """Tables to be spread over ranks.

    Attributes:
        capacity: bytes that each rank has for tables.
        exchange: of an all-to-all; ``reduce``: of a reduce-scatter; ``copy``: of an all-reduce.
        passes: 2 where bags go forward and their gradients back, 1 in inference.
    """

    ranks: int
    capacity: float
    tables: tuple[TableCosts, ...]
    exchange: Time
    reduce: Time
    copy: Time
    passes: int = 2


@dataclass
class TableLayout:
    """A complete plan of a problem, with the loads of its ranks.

    Attributes:
        chosen: the place of each table's choice among its choices.
        ranks: which ranks hold each table's parts.
    """

    problem: PlacementProblem
    choice_indices: list[int]
    ranks: list[tuple[int, ...]]
    time: list[float] = field(init=False)
    sent: list[float] = field(init=False)
    ids: list[float] = field(init=False)
    memory: list[float] = field(init=False)

    def __post_init__(self) -> None:
        count = self.problem.ranks
        self.time, self.sent, self.ids, self.memory = ([0.0] * count for _ in range(4))
        for table in range(len(self.choice_indices)):
            for rank in self.ranks[table]:
                self.add(table, rank, 1.0)
        self.totals = self._total()

    def choice(self, table: int) -> Choice:
        """Return how a table is spread."""
        return self.problem.tables[table].choices[self.choice_indices[table]]

    def add(self, table: int, rank: int, sign: float) -> None:
        """Let a rank hold a part more, or less."""
        choice = self.choice(table)
        self.time[rank] += sign * choice.time
        self.sent[rank] += sign * choice.sent
        self.ids[rank] += sign * choice.ids
        self.memory[rank] += sign * choice.memory

    def _total(self) -> tuple[float, float, float, float]:
        """Return the time of what does not depend on who holds what, and three sums of bytes."""
        choices = list(map(self.choice, range(len(self.choice_indices))))
        reduced, copied = sum(c.reduced for c in choices), sum(c.copied for c in choices)
        fixed = self.problem.copy(copied) if copied else 0.0
        fixed += self.problem.passes * self.problem.reduce(reduced) if reduced else 0.0
        count = self.problem.ranks
        return fixed, sum(self.sent) / count, sum(self.ids) / count, 0.0

    def cost(self) -> float:
        """Return microseconds: the slowest rank's kernels, and all collectives."""
        fixed, sent, ids, _ = self.totals
        problem = self.problem
        total = max(self.time, default=0.0) + fixed
        if sent:
            total += problem.passes * problem.exchange(max(max(self.sent), sent))
        if ids:
            total += problem.exchange(max(max(self.ids), ids))
        return total

    @property
    def feasible(self) -> bool:
        """Whether every rank has memory for what it holds."""
        return max(self.memory, default=0.0) <= self.problem.capacity

    def move(self, table: int, source: int, target: int) -> None:
        """Move a part from one rank to another."""
        self.add(table, source, -1.0)
        self.add(table, target, 1.0)
        ranks = self.ranks[table]
        self.ranks[table] = tuple(target if rank == source else rank for rank in ranks)

    def movable(self, table: int) -> bool:
        """Return whether ranks without a part of a table are left."""
        return self.choice(table).holders < self.problem.ranks

    def plan(self) -> Plan:
        """Return the plan."""
        return Plan(self.problem.ranks, dict(self._shardings()))

    def _shardings(self) -> Iterator[tuple[str, TableSharding]]:
        for number, table in enumerate(self.problem.tables):
            scheme = self.choice(number).scheme
            ranks = () if scheme in (ROW, DATA) else self.ranks[number]
            yield table.name, TableSharding(scheme, ranks)


Key = Callable[[TableCosts], float]

KEYS: Mapping[str, Key] = {
    "dim": lambda table: table.columns,
    "lookups": lambda table: table.columns * table.pooling,
    "size": lambda table: table.rows * table.columns,
    "size-lookups": lambda table: table.columns * table.pooling * _log10(table.rows),
}
"""What greedy sharders balance (AutoShard, arXiv:2208.06399; NeuroShard, arXiv:2305.01868)."""


def _log10(rows: int) -> float:
    from math import log10

    return log10(max(rows, 1))


def pack(
    problem: PlacementProblem, choice_indices: Sequence[int], key: Key | None = None
) -> TableLayout | None:
    """Return tables placed one after the other, the largest first, on the least loaded ranks.

    Loads are the kernels' times, or sums of a key. ``None`` where memory does not suffice so.
    """
    loads, memory = [0.0] * problem.ranks, [0.0] * problem.ranks
    choices = [
        table.choices[index] for table, index in zip(problem.tables, choice_indices, strict=True)
    ]
    weights = [
        key(table) if key else choice.time
        for table, choice in zip(problem.tables, choices, strict=True)
    ]
    ranks: list[tuple[int, ...]] = [()] * len(choices)
    order = sorted(range(len(choices)), key=lambda i: (-choices[i].holders, -weights[i]))
    order.sort(key=lambda i: (choices[i].holders < problem.ranks, -weights[i]))
    for table_index in order:
        choice = choices[table_index]
        feasible_ranks = [
            r for r in range(problem.ranks) if memory[r] + choice.memory <= problem.capacity
        ]
        if len(feasible_ranks) < choice.holders:
            return None
        holders = sorted(feasible_ranks, key=lambda rank: (loads[rank], rank))[: choice.holders]
        for rank in holders:
            loads[rank] += weights[table_index]
            memory[rank] += choice.memory
        ranks[table_index] = tuple(holders)
    return TableLayout(problem, list(choice_indices), ranks)
