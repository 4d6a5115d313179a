"""Random tasks: tables as NeuroShard draws them, on linear costs that an exact solver can take."""

from __future__ import annotations

import random

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

from irgraph.planning.placement_costs import Choice, PlacementProblem, TableCosts

BATCH = 65536
DIMS = (4, 8, 16, 32, 64, 128)
PER_BYTE = 1 / 500e3
"""Microseconds a byte over links, of 500 GB/s."""
MEGABYTE = 1e6
"""The solver's unit: bytes beside microseconds would be beyond its tolerance."""


def task(seed: int, ranks: int, tables: tuple[int, int], memory: float = 1.0) -> PlacementProblem:
    """Return tables of 4 to 128 columns, with rows and pooling over decades.

    ``memory`` is the capacity of a rank over its share of all tables, 1.0 for what a rank of
    32 GB has.
    """
    source = random.Random(seed)
    drawn = [_table(source, number, ranks) for number in range(source.randint(*tables))]
    return PlacementProblem(
        ranks,
        32e9 * memory,
        tuple(drawn),
        exchange=lambda size: 20 + size * PER_BYTE,
        reduce=lambda size: 20 + size * PER_BYTE,
        copy=lambda size: 25 + 2 * size * PER_BYTE,
    )


def _table(source: random.Random, number: int, ranks: int) -> TableCosts:
    columns = source.choice(DIMS)
    rows = int(10 ** source.uniform(2, 7))
    pooling = min(10 ** source.uniform(0, 2), 200)
    lookups = BATCH * pooling

    def time(width: int, found: float = 1.0) -> float:
        """Bytes of rows and ids over 1.2 TB/s, forward and thrice that backward."""
        penalty = 1.75 if width < 64 else 1.15 if width < 128 else 1.0
        return 4 * (lookups * found * 4 * width * penalty + lookups * 8) / 1.2e6 + 10

    def part(count: int) -> Choice:
        width = columns // count
        return Choice(
            "column-wise" if count > 1 else "table-wise",
            count,
            time(width),
            4.0 * rows * width,
            4.0 * BATCH * width,
            4.0 * lookups,
        )

    whole = [part(count) for count in (1, 2, 4) if columns // count >= 4 and count <= ranks]
    bags, ids, block = 4.0 * BATCH * columns, 4.0 * lookups, 4.0 * rows * columns / ranks

    def rows_over(count: int) -> float:
        return time(columns, 1 / count) + lookups * 16 / 1.2e6

    some = [
        Choice("table-row-wise", count, rows_over(count), 4.0 * rows * columns / count, bags, ids)
        for count in (2, 4)
        if count < ranks
    ]
    split = Choice("row-wise", ranks, rows_over(ranks), block, ids=ids, reduced=bags)
    copy = Choice(
        "data-parallel",
        ranks,
        time(columns, 1 / ranks) + 3 * block * ranks / 1.2e6,
        2 * block * ranks,
        copied=4.0 * rows * columns,
    )
    return TableCosts(f"t{number}", rows, columns, pooling, (*whole, *some, split, copy))


def exact(problem: PlacementProblem) -> float:
    """Return the least cost, by HiGHS: a program over choices, parts on ranks and their maxima."""
    return _Program(problem).solved()


class _Program:
    """Variables: a choice of each table, its parts on ranks, three maxima, four used or not."""

    def __init__(self, problem: PlacementProblem) -> None:
        self.problem = problem
        self.choices = [(t, c) for t, table in enumerate(problem.tables) for c in table.choices]
        self.count = len(self.choices)
        self.parts = self.count * problem.ranks
        self.size = self.count + self.parts + 3 + 4
        self.rows: list[tuple[np.ndarray, float, float]] = []

    def part(self, choice: int, rank: int) -> int:
        return self.count + choice * self.problem.ranks + rank

    def row(self, entries: dict[int, float], low: float, high: float) -> None:
        values = np.zeros(self.size)
        for place, value in entries.items():
            values[place] = value
        self.rows.append((values, low, high))

    def solved(self) -> float:
        problem, top = self.problem, self.count + self.parts
        for table in range(len(problem.tables)):
            mine = [i for i, (t, _) in enumerate(self.choices) if t == table]
            self.row(dict.fromkeys(mine, 1.0), 1, 1)
        for i, (_, choice) in enumerate(self.choices):
            held = {self.part(i, rank): 1.0 for rank in range(problem.ranks)}
            self.row({**held, i: -float(choice.holders)}, 0, 0)
        for rank in range(problem.ranks):
            for place, what in enumerate(("time", "sent", "ids")):
                unit = 1.0 if what == "time" else MEGABYTE
                given = {
                    self.part(i, rank): getattr(c, what) / unit
                    for i, (_, c) in enumerate(self.choices)
                }
                self.row({**given, top + place: -1.0}, -np.inf, 0)
            held = {self.part(i, rank): c.memory / 1e9 for i, (_, c) in enumerate(self.choices)}
            self.row(held, -np.inf, problem.capacity / 1e9)
        kinds = ("sent", "ids", "reduced", "copied")
        for i, (_, choice) in enumerate(self.choices):
            for place, what in enumerate(kinds):
                if getattr(choice, what):
                    self.row({i: 1.0, top + 3 + place: -1.0}, -np.inf, 0)
        found = milp(
            self.weights(top),
            integrality=self.integers(top),
            bounds=self.bounds(top),
            constraints=LinearConstraint(*map(np.array, zip(*self.rows, strict=True))),
            options={"mip_rel_gap": 1e-6, "time_limit": 60},
        )
        assert found.success, found.message
        return float(found.fun)

    def weights(self, top: int) -> np.ndarray:
        problem, found = self.problem, np.zeros(self.size)
        found[top : top + 3] = 1.0, problem.passes * PER_BYTE * MEGABYTE, PER_BYTE * MEGABYTE
        found[top + 3 :] = 20 * problem.passes, 20, 20 * problem.passes, 25
        for i, (_, choice) in enumerate(self.choices):
            found[i] = (problem.passes * choice.reduced + 2 * choice.copied) * PER_BYTE
        return found

    def integers(self, top: int) -> np.ndarray:
        found = np.ones(self.size)
        found[top : top + 3] = 0
        return found

    def bounds(self, top: int) -> Bounds:
        upper = np.ones(self.size)
        upper[top : top + 3] = np.inf
        return Bounds(np.zeros(self.size), upper)
