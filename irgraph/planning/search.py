"""Local search for sharding plans, from greedy baselines (longest processing time first).

Two moves alternate until neither improves the plan: shards move or swap between ranks, and a table
gets another sharding, after which all shards are packed again. Then a few random tables are
resharded, and the search restarts from there, for a number of rounds or seconds.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from itertools import product

from irgraph.planning.placement_costs import KEYS, PlacementProblem, TableLayout, pack

ROUNDS, SECONDS = 30, 30.0
"""Number of random restarts, and the time limit in seconds."""

TABLES_PER_STEP = 12
"""Maximum number of tables to reshard in one move, the slowest first: once among those on the
slowest rank, once among all."""

IMPROVEMENT_FACTOR = 1.0 - 1e-9
"""Required ratio of costs: a move must improve the plan by more than rounding errors."""


def baselines(problem: PlacementProblem, seed: int = 0) -> dict[str, TableLayout]:
    """Return greedy plans of unsplit tables and a random plan, by name, if they fit into memory."""
    unsplit = [0] * len(problem.tables)
    layouts = {name: pack(problem, unsplit, key) for name, key in KEYS.items()}
    layouts["random"] = _random_layout(problem, random.Random(seed))
    return {name: layout for name, layout in layouts.items() if layout is not None}


def _random_layout(problem: PlacementProblem, rng: random.Random) -> TableLayout | None:
    """Place unsplit tables on random ranks with enough memory; ``None`` if a table does not fit."""
    memory = [0.0] * problem.ranks
    ranks: list[tuple[int, ...]] = []
    for table in problem.tables:
        size = table.choices[0].memory
        feasible_ranks = [
            rank for rank, used in enumerate(memory) if used + size <= problem.capacity
        ]
        if not feasible_ranks:
            return None
        ranks.append((rng.choice(feasible_ranks),))
        memory[ranks[-1][0]] += size
    return TableLayout(problem, [0] * len(ranks), ranks)


def search(
    problem: PlacementProblem, seed: int = 0, rounds: int = ROUNDS, seconds: float = SECONDS
) -> TableLayout | None:
    """Return the best plan found, ``None`` if no plan fits into memory."""
    rng, end = random.Random(seed), time.monotonic() + seconds
    starts = [pack(problem, [0] * len(problem.tables)), *baselines(problem, seed).values()]
    starts += [_least_memory_plan(problem)]
    fitting = [layout for layout in starts if layout is not None]
    if not fitting:
        return None
    best = min((_local_search(layout, end) for layout in fitting), key=TableLayout.cost)
    for _ in range(rounds):
        if time.monotonic() > end:
            break
        start = _perturb(best, rng)
        candidate = _local_search(start, end) if start is not None else best
        best = min(best, candidate, key=TableLayout.cost)
    return best


def _least_memory_plan(problem: PlacementProblem) -> TableLayout | None:
    """Return a plan that shards every table so that its largest shard is as small as possible."""
    choice_indices = [
        min(range(len(table.choices)), key=lambda choice, t=table: t.choices[choice].memory)  # type: ignore[misc]
        for table in problem.tables
    ]
    return pack(problem, choice_indices)


def _perturb(layout: TableLayout, rng: random.Random) -> TableLayout | None:
    """Perturb a plan: reshard up to three random tables, and move shards of up to two."""
    problem, choice_indices = layout.problem, list(layout.choice_indices)
    for table in rng.sample(
        range(len(choice_indices)), min(len(choice_indices), rng.randint(1, 3))
    ):
        choice_indices[table] = rng.randrange(len(problem.tables[table].choices))
    candidate = pack(problem, choice_indices)
    if candidate is None:
        return None
    for table in rng.sample(range(len(choice_indices)), min(len(choice_indices), 2)):
        other_ranks = [r for r in range(problem.ranks) if r not in candidate.ranks[table]]
        if other_ranks:
            candidate.move(table, rng.choice(candidate.ranks[table]), rng.choice(other_ranks))
    return candidate if candidate.feasible else None


def _local_search(layout: TableLayout, end: float) -> TableLayout:
    """Improve a plan by both moves until neither helps or time is up."""
    while True:
        _move_shards(layout)
        better = _best_resharding(layout)
        if better is None or time.monotonic() > end:
            return layout
        layout = better


def _best_resharding(layout: TableLayout) -> TableLayout | None:
    """Return the best plan that reshards one table, ``None`` if none is better."""
    problem, best, max_cost = layout.problem, None, layout.cost() * IMPROVEMENT_FACTOR
    slowest_rank = max(range(problem.ranks), key=layout.time.__getitem__)
    slowest_tables = sorted(range(len(layout.choice_indices)), key=lambda t: -layout.choice(t).time)
    on_slowest = [t for t in slowest_tables if slowest_rank in layout.ranks[t]][:TABLES_PER_STEP]
    for table in dict.fromkeys([*on_slowest, *slowest_tables[:TABLES_PER_STEP]]):
        for candidate in _reshardings(layout, table):
            if candidate.cost() < max_cost:
                best, max_cost = candidate, candidate.cost() * IMPROVEMENT_FACTOR
    return best


def _reshardings(layout: TableLayout, table: int) -> Iterator[TableLayout]:
    """Yield plans with every other sharding of one table."""
    for choice in range(len(layout.problem.tables[table].choices)):
        if choice != layout.choice_indices[table]:
            choice_indices = [
                *layout.choice_indices[:table],
                choice,
                *layout.choice_indices[table + 1 :],
            ]
            candidate = pack(layout.problem, choice_indices)
            if candidate is not None:
                yield candidate


def _move_shards(layout: TableLayout) -> None:
    """Move and swap shards between ranks while that improves the plan."""
    while _apply_improvement(layout):
        pass


def _apply_improvement(layout: TableLayout) -> bool:
    """Apply the first move or swap that improves the plan; return whether there is one."""
    max_cost = layout.cost() * IMPROVEMENT_FACTOR
    for moves in _shard_moves(layout):
        for move in moves:
            layout.move(*move)
        if layout.feasible and layout.cost() < max_cost:
            return True
        for table, source, target in reversed(moves):
            layout.move(table, target, source)
    return False


ShardMove = tuple[int, int, int]


def _shard_moves(layout: TableLayout) -> Iterator[list[ShardMove]]:
    """Yield moves, then swaps, of shards on the slowest rank and on the rank that sends most."""
    count = layout.problem.ranks
    loads = (layout.time, layout.sent)
    for busy in dict.fromkeys(max(range(count), key=load.__getitem__) for load in loads):
        busy_tables = _movable_tables(layout, busy)
        other_ranks = sorted((r for r in range(count) if r != busy), key=layout.time.__getitem__)
        moves = (
            (t, rank)
            for t, rank in product(busy_tables, other_ranks)
            if rank not in layout.ranks[t]
        )
        yield from ([(table, busy, rank)] for table, rank in moves)
        for rank in other_ranks:
            pairs = product(busy_tables, _movable_tables(layout, rank))
            yield from (
                [(table, busy, rank), (other_table, rank, busy)]
                for table, other_table in pairs
                if rank not in layout.ranks[table] and busy not in layout.ranks[other_table]
            )


def _movable_tables(layout: TableLayout, rank: int) -> list[int]:
    """Return the movable tables of a rank."""
    return [t for t, ranks in enumerate(layout.ranks) if rank in ranks and layout.movable(t)]
