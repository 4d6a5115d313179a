"""Lookups through a cache, in plain torch: probe, reads of what is missing, pooling, fill.

A directory [2, slots] holds which row each slot of the cache holds (-1: none), and when it was used
last, or how often. Slots are in sets of ``ways``; row r can lie in set r modulo their number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from irgraph.execute.narrow.ops import embedding_bag_rows
from irgraph.execute.narrow.rows import SCALED
from irgraph.execute.torch_values import Torch
from irgraph.ir.narrow.ops import LOOKUPS

Tensors = Sequence[torch.Tensor]

EMPTY, SKIPPED = -1, -2
"""What stands for a slot: no slot holds the row; nobody wants it, as its whole bag was found."""


def sets_of(slots: int, ways: int) -> tuple[int, int]:
    """Return how many sets a cache has, and how many slots each."""
    wide = max(min(slots, ways), 1)
    return max(slots // wide, 1), wide


def tier_probe(
    directories: Tensors, indices: Tensors, wanted: Tensors = (), ways: int = 32
) -> list[Torch]:
    """Return for each index the slot that holds its row, -1 where none does; -2 if not wanted."""
    slot_lists = []
    for number, (directory, index) in enumerate(zip(directories, indices, strict=True)):
        sets, wide = sets_of(directory.shape[1], ways)
        row_sets = index.long() % sets
        matches = directory[0][: sets * wide].view(sets, wide)[row_sets] == index.long().unsqueeze(
            1
        )
        slot = row_sets * wide + matches.int().argmax(1)
        slots = torch.where(matches.any(1), slot, EMPTY)
        if wanted:
            slots = torch.where(wanted[number] == SKIPPED, SKIPPED, slots)
        slot_lists.append(slots)
    return slot_lists


def tier_read(weights: Tensors, indices: Tensors, slots: Tensors = (), **_: object) -> list[Torch]:
    """Return the rows of the indices that no slot holds, zeros for the others."""
    slot_lists = slots or [torch.full_like(index, EMPTY) for index in indices]
    read = []
    for weight, index, slot in zip(weights, indices, slot_lists, strict=True):
        table = _movable(weight)
        rows = table.new_zeros(index.numel(), weight.shape[1])
        missing = slot == EMPTY
        rows[missing] = table[index[missing].long()]
        read.append(rows.view(weight.dtype))
    return read


def _movable(rows: Torch) -> Torch:
    """Return rows of a type of one byte as bytes: torch moves few elements of f8 about."""
    return rows.view(torch.uint8) if rows.element_size() == 1 else rows


def tier_pool(
    staged: Tensors,
    offsets: Tensors,
    held: Tensors = (),
    slots: Tensors = (),
    mode: int = 0,
    include_last_offset: bool = False,
    kinds: Sequence[str] = (),
    scales: Tensors = (),
    found: Tensors = (),
    bags: Tensors = (),
) -> list[Torch]:
    """Return the bags of rows: those in a slot from the cache, all others as they were read.

    ``kinds`` are the rows' formats, ``""`` for plain elements; ``scales`` those of tables of f8.
    Bags that were ``found`` are taken from those that were pooled before.
    """
    results, table_scales = [], iter(scales)
    formats = kinds or ("",) * len(staged)
    for number, (rows, offset, kind) in enumerate(zip(staged, offsets, formats, strict=True)):
        if held:
            slot = slots[number]
            cached = _movable(held[number])[slot.clamp(min=0)]
            merged = torch.where((slot >= 0).unsqueeze(1), cached, _movable(rows))
            rows = merged.view(rows.dtype)
        scale = next(table_scales) if kind in SCALED else None
        table_bags = _bags(rows, offset, kind, scale, mode, include_last_offset)
        if found:
            hits = (found[number] >= 0).unsqueeze(1)
            table_bags = torch.where(hits, bags[number][found[number].clamp(min=0)], table_bags)
        results.append(table_bags)
    return results


def _bags(rows: Torch, offset: Torch, kind: str, scale: Torch, mode: int, closed: bool) -> Torch:
    """Return the bags of rows of one table, by the lookup that reads such rows."""
    positions = torch.arange(len(rows), dtype=offset.dtype)
    if not kind:
        return torch.ops.aten._embedding_bag(
            rows, positions, offset, False, mode, False, None, closed
        )[0]
    if kind not in LOOKUPS:
        return embedding_bag_rows(rows, positions, offset, scale, None, closed)
    lookup = getattr(torch.ops.quantized, LOOKUPS[kind].partition(".")[2])
    return lookup(rows, positions, offset, include_last_offset=closed)


def tier_fill(
    directories: Tensors,
    held: Tensors,
    indices: Tensors,
    slots: Tensors,
    staged: Tensors,
    policy: str = "lru",
    ways: int = 32,
) -> None:
    """Put rows that were read into the cache, in place of those used least lately, or least often.

    What this step found stays; a row for which its set has no slot left is not kept.
    """
    for directory, rows, index, slot, read in zip(
        directories, held, indices, slots, staged, strict=True
    ):
        last_use = directory[1]
        stamp = int(last_use.max()) + 1 if last_use.numel() else 0
        hits = slot[slot >= 0].unique()
        last_use[hits] = stamp if policy == "lru" else last_use[hits] + 1
        _insert_rows(directory, rows, index, slot, read, (set(hits.tolist()), stamp, policy, ways))


def _insert_rows(
    directory: torch.Tensor,
    rows: torch.Tensor,
    index: torch.Tensor,
    slot: torch.Tensor,
    read: torch.Tensor,
    state: tuple[set[int], int, str, int],
) -> None:
    """Put each row that was read once into its set."""
    used_slots, stamp, policy, ways = state
    sets, wide = sets_of(directory.shape[1], ways)
    seen: set[int] = set()
    for position in (slot == EMPTY).nonzero().view(-1).tolist():
        row = int(index[position])
        first = row % sets * wide
        free = [s for s in range(first, first + wide) if s not in used_slots]
        if row in seen or not free:
            continue
        seen.add(row)
        victim = min(free, key=lambda s: (int(directory[0, s]) >= 0, int(directory[1, s])))
        directory[0, victim], directory[1, victim] = row, stamp if policy == "lru" else 1
        rows[victim] = read[position]
        used_slots.add(victim)


TIERS: Mapping[str, Callable[..., Torch]] = {
    f"irgraph.{function.__name__}": function
    for function in (tier_probe, tier_read, tier_pool, tier_fill)
}
"""Reference implementation of each op of a lookup through a tier."""
