"""Local search for placements: fills fast memory by density of reads, then moves and swaps tables.

Density is the time of a query's reads of a table, per byte of the table: the order in which tables
are worth fast memory if nothing is cached. Later moves also count the hits of the cache, which uses
the rest of fast memory.
"""

from __future__ import annotations

import random
import time
from collections.abc import Collection, Iterator
from itertools import combinations

from irgraph.serving.problem import PlacementProblem, TableLayout

IMPROVEMENT_FACTOR = 1.0 - 1e-9
"""Required ratio of costs: a move must improve a placement by more than rounding errors."""

ROUNDS, SECONDS = 20, 20.0
"""Number of random restarts, and the time limit in seconds."""

MAX_EXHAUSTIVE_TABLES = 12
"""Maximum number of tables of ``exhaustive``, which evaluates all placements."""

TABLES_PER_STEP = 24
"""Maximum number of tables to move from each memory: the least dense fast, the densest slow."""


def greedy(problem: PlacementProblem) -> TableLayout:
    """Return the placement that fills fast memory in order of density, the densest first."""
    fast: list[str] = []
    room = problem.fast
    for table in sorted(problem.tables, key=lambda t: (-problem.density(t), t.name)):
        if table.nbytes <= room:
            fast.append(table.name)
            room -= table.nbytes
    return problem.layout_for(fast)


def search(
    problem: PlacementProblem, seed: int = 0, rounds: int = ROUNDS, seconds: float = SECONDS
) -> TableLayout | None:
    """Return the best placement found, ``None`` if none fits.

    Candidates for the start are the greedy placement, all tables on the slower tier, and every
    number of the densest tables in fast memory. The search then restarts from perturbations of the
    best placement, for a number of rounds or seconds.
    """
    rng, deadline = random.Random(seed), time.monotonic() + seconds
    order = sorted(problem.tables, key=lambda t: (-problem.density(t), t.name))
    starts = [greedy(problem), problem.layout_for(())]
    for count in range(1, len(order)):
        starts.append(problem.layout_for([t.name for t in order[:count]]))
    best = min(starts, key=lambda layout: layout.cost)
    best = _local_search(problem, best)
    for _ in range(rounds):
        if time.monotonic() > deadline or not best.cost:
            break
        candidate = _local_search(problem, _perturbed(problem, best, rng))
        best = candidate if candidate.cost < best.cost * IMPROVEMENT_FACTOR else best
    return best if best.fits else None


def _perturbed(problem: PlacementProblem, layout: TableLayout, rng: random.Random) -> TableLayout:
    """Perturb a placement: move up to three random tables out of fast memory or into it."""
    names = [table.name for table in problem.tables]
    changed = set(rng.sample(names, min(len(names), rng.randint(1, 3))))
    fast = frozenset(layout.fast ^ changed)
    sizes = {table.name: table.nbytes for table in problem.tables}
    if sum(sizes[name] for name in fast) > problem.fast:
        fast = frozenset(layout.fast - changed)
    return problem.layout_for(_fill_fast_memory(problem, fast, changed & layout.fast))


def _local_search(problem: PlacementProblem, layout: TableLayout) -> TableLayout:
    """Improve a placement by the best move or swap until none improves it; return the result."""
    while True:
        neighbour = min(
            _layout_moves(problem, layout), key=lambda layout: layout.cost, default=layout
        )
        if not neighbour.cost < layout.cost * IMPROVEMENT_FACTOR:
            return layout
        layout = neighbour


def _layout_moves(problem: PlacementProblem, layout: TableLayout) -> Iterator[TableLayout]:
    """Yield the placements after every move of one table and every swap of two."""
    order = sorted(problem.tables, key=lambda t: problem.density(t))
    fast_names = [t.name for t in order if t.name in layout.fast][:TABLES_PER_STEP]
    slow_names = [t.name for t in reversed(order) if t.name not in layout.fast][:TABLES_PER_STEP]
    for name in fast_names:
        yield problem.layout_for(layout.fast - {name})
        yield problem.layout_for(_fill_fast_memory(problem, layout.fast - {name}, {name}))
    for name in slow_names:
        yield problem.layout_for(layout.fast | {name})
        yield problem.layout_for(_with_table(problem, layout.fast, name))
    for removed in fast_names:
        for name in slow_names:
            yield problem.layout_for((layout.fast - {removed}) | {name})


def _with_table(problem: PlacementProblem, fast: frozenset[str], name: str) -> frozenset[str]:
    """Move a table into fast memory and the least dense ones out, then fill the remainder."""
    sizes = {table.name: table.nbytes for table in problem.tables}
    order = sorted(problem.tables, key=lambda t: problem.density(t))
    names, removed = set(fast) | {name}, set[str]()
    for other in (t.name for t in order if t.name in fast):
        if sum(sizes[n] for n in names) <= problem.fast:
            break
        names.discard(other)
        removed.add(other)
    return _fill_fast_memory(problem, frozenset(names), removed)


def _fill_fast_memory(
    problem: PlacementProblem, fast: frozenset[str], last_names: Collection[str]
) -> frozenset[str]:
    """Add tables to fast memory while they fit, the densest first and ``last_names`` last."""
    names = set(fast)
    room = problem.fast - sum(t.nbytes for t in problem.tables if t.name in fast)
    for table in sorted(problem.tables, key=lambda t: (t.name in last_names, -problem.density(t))):
        if table.name not in names and table.nbytes <= room:
            names.add(table.name)
            room -= table.nbytes
    return frozenset(names)


def exhaustive(problem: PlacementProblem) -> TableLayout | None:
    """Return the best of all placements, ``None`` if none fits.

    Raises ``ValueError`` for more than ``MAX_EXHAUSTIVE_TABLES`` tables.
    """
    names = [table.name for table in problem.tables]
    if len(names) > MAX_EXHAUSTIVE_TABLES:
        raise ValueError(f"{len(names)} tables have too many placements to try all")
    layouts = (problem.layout_for(c) for n in range(len(names) + 1) for c in combinations(names, n))
    best = min(layouts, key=lambda layout: layout.cost)
    return best if best.fits else None
