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

from irgraph.serving.problem import Problem, TableLayout

LESS = 1.0 - 1e-9
"""A step must make a placement better by more than rounding."""

ROUNDS, SECONDS = 20, 20.0
"""Times that the search starts anew, and how long it goes on."""

MOST = 12
"""Tables up to which all placements are tried by ``exhaustive``."""

WIDE = 24
"""Tables of each memory, the densest or the least dense, that are tried to change places."""


def greedy(problem: Problem) -> TableLayout:
    """Return the placement that fills fast memory in order of density, the densest first."""
    kept: list[str] = []
    room = problem.fast
    for table in sorted(problem.tables, key=lambda t: (-problem.density(t), t.name)):
        if table.nbytes <= room:
            kept.append(table.name)
            room -= table.nbytes
    return problem.placed(kept)


def search(
    problem: Problem, seed: int = 0, rounds: int = ROUNDS, seconds: float = SECONDS
) -> TableLayout | None:
    """Return the best placement found, ``None`` where none fits.

    It starts from the greedy one, from all tables behind the cache, and from each of the greedy
    one's first tables kept; then, for a number of rounds or seconds, from the best one with a few
    tables elsewhere.
    """
    source, end = random.Random(seed), time.monotonic() + seconds
    order = sorted(problem.tables, key=lambda t: (-problem.density(t), t.name))
    starts = [greedy(problem), problem.placed(())]
    for count in range(1, len(order)):
        starts.append(problem.placed([t.name for t in order[:count]]))
    best = min(starts, key=lambda placed: placed.cost)
    best = _descended(problem, best)
    for _ in range(rounds):
        if time.monotonic() > end or not best.cost:
            break
        found = _descended(problem, _shaken(problem, best, source))
        best = found if found.cost < best.cost * LESS else best
    return best if best.fits else None


def _shaken(problem: Problem, here: TableLayout, source: random.Random) -> TableLayout:
    """Return a placement in which a few tables leave fast memory, or come into it."""
    names = [table.name for table in problem.tables]
    changed = set(source.sample(names, min(len(names), source.randint(1, 3))))
    kept = frozenset(here.fast ^ changed)
    sizes = {table.name: table.nbytes for table in problem.tables}
    if sum(sizes[name] for name in kept) > problem.fast:
        kept = frozenset(here.fast - changed)
    return problem.placed(_filled(problem, kept, changed & here.fast))


def _descended(problem: Problem, best: TableLayout) -> TableLayout:
    """Move tables, and let them change places, while that helps."""
    while True:
        better = min(_steps(problem, best), key=lambda placed: placed.cost, default=best)
        if not better.cost < best.cost * LESS:
            return best
        best = better


def _steps(problem: Problem, here: TableLayout) -> Iterator[TableLayout]:
    """Yield every move of one table, and every exchange of two."""
    order = sorted(problem.tables, key=lambda t: problem.density(t))
    kept = [t.name for t in order if t.name in here.fast][:WIDE]
    moved = [t.name for t in reversed(order) if t.name not in here.fast][:WIDE]
    for name in kept:
        yield problem.placed(here.fast - {name})
        yield problem.placed(_filled(problem, here.fast - {name}, {name}))
    for name in moved:
        yield problem.placed(here.fast | {name})
        yield problem.placed(_brought(problem, here.fast, name))
    for out in kept:
        for name in moved:
            yield problem.placed((here.fast - {out}) | {name})


def _brought(problem: Problem, fast: frozenset[str], name: str) -> frozenset[str]:
    """Return a placement with one more table, for which the least dense go; then it is filled."""
    sizes = {table.name: table.nbytes for table in problem.tables}
    order = sorted(problem.tables, key=lambda t: problem.density(t))
    kept, gone = set(fast) | {name}, set[str]()
    for other in (t.name for t in order if t.name in fast):
        if sum(sizes[n] for n in kept) <= problem.fast:
            break
        kept.discard(other)
        gone.add(other)
    return _filled(problem, frozenset(kept), gone)


def _filled(problem: Problem, fast: frozenset[str], last: Collection[str]) -> frozenset[str]:
    """Return a placement with all that still fits, the densest first, those in ``last`` at last."""
    kept = set(fast)
    room = problem.fast - sum(t.nbytes for t in problem.tables if t.name in fast)
    for table in sorted(problem.tables, key=lambda t: (t.name in last, -problem.density(t))):
        if table.name not in kept and table.nbytes <= room:
            kept.add(table.name)
            room -= table.nbytes
    return frozenset(kept)


def exhaustive(problem: Problem) -> TableLayout | None:
    """Return the best of all placements of at most ``MOST`` tables; ``ValueError`` above that."""
    names = [table.name for table in problem.tables]
    if len(names) > MOST:
        raise ValueError(f"{len(names)} tables have too many placements to try all")
    every = (problem.placed(c) for n in range(len(names) + 1) for c in combinations(names, n))
    best = min(every, key=lambda placed: placed.cost)
    return best if best.fits else None
