"""Fast cost model of plans: loads of ranks, and collectives over them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec import Struct

from irgraph.plans.plan import DATA, ROW, Plan, Scheme, TableSharding


class Choice(Struct, frozen=True):
    """One possible sharding of a table.

    Attributes:
        scheme: scheme of the plan.
        holders: number of ranks with a shard.
        time: time of kernels on each of these ranks in microseconds.
        memory: bytes on each of these ranks.
        sent: bytes of bags that each of these ranks sends by the all-to-all, of all samples.
        ids: bytes of ids that each of these ranks receives.
        reduced: bytes of bags that are summed over all ranks.
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
    """A table: the inputs of greedy sharders, and its possible shardings, the unsplit one first."""

    name: str
    rows: int
    columns: int
    pooling: float
    choices: tuple[Choice, ...]


Time = Callable[[float], float]
"""Time of a collective in microseconds as a function of its message's bytes."""


class PlacementProblem(Struct, frozen=True):
    """Tables to place on ranks.

    Attributes:
        capacity: bytes for tables on each rank.
        exchange: time of an all-to-all; ``reduce``: of a reduce-scatter; ``copy``: of an
            all-reduce.
        passes: 2 for a forward pass of bags and a backward pass of gradients, 1 in inference.
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
        choice_indices: index of each table's sharding among its choices.
        ranks: ranks of each table's shards.
        totals: costs that do not depend on the placement, see ``_total``.
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
        """Return the sharding of a table."""
        return self.problem.tables[table].choices[self.choice_indices[table]]

    def add(self, table: int, rank: int, sign: float) -> None:
        """Add the load of a shard to a rank, or subtract it if ``sign`` is -1."""
        choice = self.choice(table)
        self.time[rank] += sign * choice.time
        self.sent[rank] += sign * choice.sent
        self.ids[rank] += sign * choice.ids
        self.memory[rank] += sign * choice.memory

    def _total(self) -> tuple[float, float, float, float]:
        """Return the time independent of the placement, the mean bytes sent and of ids, and 0."""
        choices = list(map(self.choice, range(len(self.choice_indices))))
        reduced, copied = sum(c.reduced for c in choices), sum(c.copied for c in choices)
        fixed = self.problem.copy(copied) if copied else 0.0
        fixed += self.problem.passes * self.problem.reduce(reduced) if reduced else 0.0
        count = self.problem.ranks
        return fixed, sum(self.sent) / count, sum(self.ids) / count, 0.0

    def cost(self) -> float:
        """Return the time of the slowest rank's kernels and of all collectives in microseconds."""
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
        """Whether every rank has enough memory for its shards."""
        return max(self.memory, default=0.0) <= self.problem.capacity

    def move(self, table: int, source: int, target: int) -> None:
        """Move a shard from one rank to another."""
        self.add(table, source, -1.0)
        self.add(table, target, 1.0)
        ranks = self.ranks[table]
        self.ranks[table] = tuple(target if rank == source else rank for rank in ranks)

    def movable(self, table: int) -> bool:
        """Return whether there are ranks without a shard of a table."""
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
"""Loads for greedy sharders (AutoShard, arXiv:2208.06399; NeuroShard, arXiv:2305.01868)."""


def _log10(rows: int) -> float:
    from math import log10

    return log10(max(rows, 1))


def pack(
    problem: PlacementProblem, choice_indices: Sequence[int], key: Key | None = None
) -> TableLayout | None:
    """Pack the shards of tables on the least loaded ranks, the largest first.

    Loads are the kernels' times, or sums of a key. ``None`` if a table does not fit into memory.
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
