"""The search: baselines, longest processing time first, and steps that make a plan better.

Two kinds of steps take turns until neither helps: parts move between ranks or change places, and
tables are spread another way, after which all parts are placed anew. Then some tables are spread
another way at random, and the search goes on from there, for a number of rounds or seconds.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from itertools import product

from irgraph.planning.problem import KEYS, Layout, Problem, packed

ROUNDS, SECONDS = 30, 30.0
"""Times that the search starts anew, and how long it goes on."""

TABLES_PER_STEP = 12
"""Tables that are tried to be spread another way in one step: the largest on the slowest rank."""

IMPROVEMENT_FACTOR = 1.0 - 1e-9
"""A step must make a plan better by more than rounding."""


def baselines(problem: Problem, seed: int = 0) -> dict[str, Layout]:
    """Return what greedy sharders make of whole tables, and a random plan; those that fit."""
    whole = [0] * len(problem.tables)
    found = {name: packed(problem, whole, key) for name, key in KEYS.items()}
    found["random"] = _random(problem, random.Random(seed))
    return {name: layout for name, layout in found.items() if layout is not None}


def _random(problem: Problem, source: random.Random) -> Layout | None:
    """Return whole tables on random ranks with memory for them."""
    memory = [0.0] * problem.ranks
    ranks: list[tuple[int, ...]] = []
    for table in problem.tables:
        size = table.choices[0].memory
        free = [rank for rank, held in enumerate(memory) if held + size <= problem.capacity]
        if not free:
            return None
        ranks.append((source.choice(free),))
        memory[ranks[-1][0]] += size
    return Layout(problem, [0] * len(ranks), ranks)


def search(
    problem: Problem, seed: int = 0, rounds: int = ROUNDS, seconds: float = SECONDS
) -> Layout | None:
    """Return the best plan found, ``None`` where none fits into the memory."""
    source, end = random.Random(seed), time.monotonic() + seconds
    starts = [packed(problem, [0] * len(problem.tables)), *baselines(problem, seed).values()]
    starts += [_least_memory_plan(problem)]
    fitting = [layout for layout in starts if layout is not None]
    if not fitting:
        return None
    best = min((_local_search(layout, end) for layout in fitting), key=Layout.cost)
    for _ in range(rounds):
        if time.monotonic() > end:
            break
        started = _perturbed(best, source)
        found = _local_search(started, end) if started is not None else best
        best = min(best, found, key=Layout.cost)
    return best


def _least_memory_plan(problem: Problem) -> Layout | None:
    """Return the plan that takes least memory of any one rank."""
    smallest = [
        min(range(len(table.choices)), key=lambda at, t=table: t.choices[at].memory)  # type: ignore[misc]
        for table in problem.tables
    ]
    return packed(problem, smallest)


def _perturbed(layout: Layout, source: random.Random) -> Layout | None:
    """Return a plan in which a few tables are spread another way, or lie elsewhere."""
    problem, chosen = layout.problem, list(layout.chosen)
    for number in source.sample(range(len(chosen)), min(len(chosen), source.randint(1, 3))):
        chosen[number] = source.randrange(len(problem.tables[number].choices))
    made = packed(problem, chosen)
    if made is None:
        return None
    for number in source.sample(range(len(chosen)), min(len(chosen), 2)):
        free = [r for r in range(problem.ranks) if r not in made.ranks[number]]
        if free:
            made.move(number, source.choice(made.ranks[number]), source.choice(free))
    return made if made.feasible else None


def _local_search(layout: Layout, end: float) -> Layout:
    """Return a plan that neither kind of step makes better."""
    while True:
        _move_shards(layout)
        better = _best_resharding(layout)
        if better is None or time.monotonic() > end:
            return layout
        layout = better


def _best_resharding(layout: Layout) -> Layout | None:
    """Return the best plan with one table spread another way, if that is better."""
    problem, best, least = layout.problem, None, layout.cost() * IMPROVEMENT_FACTOR
    slowest = max(range(problem.ranks), key=layout.time.__getitem__)
    heavy = sorted(range(len(layout.chosen)), key=lambda t: -layout.choice(t).time)
    here = [t for t in heavy if slowest in layout.ranks[t]][:TABLES_PER_STEP]
    for number in dict.fromkeys([*here, *heavy[:TABLES_PER_STEP]]):
        for made in _reshardings(layout, number):
            if made.cost() < least:
                best, least = made, made.cost() * IMPROVEMENT_FACTOR
    return best


def _reshardings(layout: Layout, number: int) -> Iterator[Layout]:
    """Yield the plans with one table spread in each other way."""
    for at in range(len(layout.problem.tables[number].choices)):
        if at != layout.chosen[number]:
            chosen = [*layout.chosen[:number], at, *layout.chosen[number + 1 :]]
            made = packed(layout.problem, chosen)
            if made is not None:
                yield made


def _move_shards(layout: Layout) -> None:
    """Move parts between ranks, and let them change places, while that helps."""
    while _apply_improvement(layout):
        pass


def _apply_improvement(layout: Layout) -> bool:
    """Make the first step that helps."""
    least = layout.cost() * IMPROVEMENT_FACTOR
    for steps in _shard_moves(layout):
        for step in steps:
            layout.move(*step)
        if layout.feasible and layout.cost() < least:
            return True
        for table, source, target in reversed(steps):
            layout.move(table, target, source)
    return False


Step = tuple[int, int, int]


def _shard_moves(layout: Layout) -> Iterator[list[Step]]:
    """Yield moves off the slowest rank and the one that sends most, then exchanges with others."""
    count = layout.problem.ranks
    loads = (layout.time, layout.sent)
    for busy in dict.fromkeys(max(range(count), key=load.__getitem__) for load in loads):
        parts = _movable(layout, busy)
        others = sorted((r for r in range(count) if r != busy), key=layout.time.__getitem__)
        moves = ((t, rank) for t, rank in product(parts, others) if rank not in layout.ranks[t])
        yield from ([(table, busy, rank)] for table, rank in moves)
        for rank in others:
            pairs = product(parts, _movable(layout, rank))
            yield from (
                [(table, busy, rank), (other, rank, busy)]
                for table, other in pairs
                if rank not in layout.ranks[table] and busy not in layout.ranks[other]
            )


def _movable(layout: Layout, rank: int) -> list[int]:
    """Return the tables of a rank that may move."""
    return [t for t, held in enumerate(layout.ranks) if rank in held and layout.movable(t)]
