"""The search: fast memory is filled by density of reads, then tables change places.

Density, what a query's reads of a table take for each byte that it has, is the order in which
tables earn fast memory if nothing is cached; the steps after that count what the cache, which is
what is left of fast memory, keeps off the slower tier.
"""

from __future__ import annotations

import random
import time
from collections.abc import Collection, Iterator
from itertools import combinations

from irgraph.serving.problem import PlacementProblem, TableLayout

IMPROVEMENT_FACTOR = 1.0 - 1e-9
"""A step must make a placement better by more than rounding."""

ROUNDS, SECONDS = 20, 20.0
"""Times that the search starts anew, and how long it goes on."""

MAX_EXHAUSTIVE_TABLES = 12
"""Tables up to which all placements are tried by ``exhaustive``."""

TABLES_PER_STEP = 24
"""Tables of each memory, the densest or the least dense, that are tried to change places."""


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
    """Return the best placement found, ``None`` where none fits.

    It starts from the greedy one, from all tables behind the cache, and from each of the greedy
    one's first tables kept; then, for a number of rounds or seconds, from the best one with a few
    tables elsewhere.
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
    """Return a placement in which a few tables leave fast memory, or come into it."""
    names = [table.name for table in problem.tables]
    changed = set(rng.sample(names, min(len(names), rng.randint(1, 3))))
    fast = frozenset(layout.fast ^ changed)
    sizes = {table.name: table.nbytes for table in problem.tables}
    if sum(sizes[name] for name in fast) > problem.fast:
        fast = frozenset(layout.fast - changed)
    return problem.layout_for(_fill_fast_memory(problem, fast, changed & layout.fast))


def _local_search(problem: PlacementProblem, layout: TableLayout) -> TableLayout:
    """Move tables, and let them change places, while that helps."""
    while True:
        neighbour = min(
            _layout_moves(problem, layout), key=lambda layout: layout.cost, default=layout
        )
        if not neighbour.cost < layout.cost * IMPROVEMENT_FACTOR:
            return layout
        layout = neighbour


def _layout_moves(problem: PlacementProblem, layout: TableLayout) -> Iterator[TableLayout]:
    """Yield every move of one table, and every exchange of two."""
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
    """Return a placement with one more table, for which the least dense go; then it is filled."""
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
    """Return a placement with all that still fits, the densest first, those in ``last_names`` at last."""
    names = set(fast)
    room = problem.fast - sum(t.nbytes for t in problem.tables if t.name in fast)
    for table in sorted(problem.tables, key=lambda t: (t.name in last_names, -problem.density(t))):
        if table.name not in names and table.nbytes <= room:
            names.add(table.name)
            room -= table.nbytes
    return frozenset(names)


def exhaustive(problem: PlacementProblem) -> TableLayout | None:
    """Return the best of all placements of at most ``MAX_EXHAUSTIVE_TABLES`` tables; ``ValueError`` above that."""
    names = [table.name for table in problem.tables]
    if len(names) > MAX_EXHAUSTIVE_TABLES:
        raise ValueError(f"{len(names)} tables have too many placements to try all")
    layouts = (problem.layout_for(c) for n in range(len(names) + 1) for c in combinations(names, n))
    best = min(layouts, key=lambda layout: layout.cost)
    return best if best.fits else None
