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

EMPTY, FOUND = -1, -2
"""What stands for a slot: no slot holds the row; nobody wants it, as its whole bag was found."""


def sets_of(slots: int, ways: int) -> tuple[int, int]:
    """Return how many sets a cache has, and how many slots each."""
    wide = max(min(slots, ways), 1)
    return max(slots // wide, 1), wide


def tier_probe(
    directories: Tensors, indices: Tensors, wanted: Tensors = (), ways: int = 32
) -> list[Torch]:
    """Return for each index the slot that holds its row, -1 where none does; -2 if not wanted."""
    found = []
    for number, (directory, index) in enumerate(zip(directories, indices, strict=True)):
        sets, wide = sets_of(directory.shape[1], ways)
        where = index.long() % sets
        held = directory[0][: sets * wide].view(sets, wide)[where] == index.long().unsqueeze(1)
        slot = where * wide + held.int().argmax(1)
        slots = torch.where(held.any(1), slot, EMPTY)
        if wanted:
            slots = torch.where(wanted[number] == FOUND, FOUND, slots)
        found.append(slots)
    return found


def tier_read(weights: Tensors, indices: Tensors, slots: Tensors = (), **_: object) -> list[Torch]:
    """Return the rows of the indices that no slot holds, zeros for the others."""
    places = slots or [torch.full_like(index, EMPTY) for index in indices]
    read = []
    for weight, index, slot in zip(weights, indices, places, strict=True):
        table = _plain(weight)
        rows = table.new_zeros(index.numel(), weight.shape[1])
        missing = slot == EMPTY
        rows[missing] = table[index[missing].long()]
        read.append(rows.view(weight.dtype))
    return read


def _plain(rows: Torch) -> Torch:
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
    made, each = [], iter(scales)
    named = kinds or ("",) * len(staged)
    for number, (rows, offset, kind) in enumerate(zip(staged, offsets, named, strict=True)):
        if held:
            slot = slots[number]
            cached = _plain(held[number])[slot.clamp(min=0)]
            both = torch.where((slot >= 0).unsqueeze(1), cached, _plain(rows))
            rows = both.view(rows.dtype)
        scale = next(each) if kind in SCALED else None
        one = _bags(rows, offset, kind, scale, mode, include_last_offset)
        if found:
            there = (found[number] >= 0).unsqueeze(1)
            one = torch.where(there, bags[number][found[number].clamp(min=0)], one)
        made.append(one)
    return made


def _bags(rows: Torch, offset: Torch, kind: str, scale: Torch, mode: int, closed: bool) -> Torch:
    """Return the bags of rows of one table, by the lookup that reads such rows."""
    every = torch.arange(len(rows), dtype=offset.dtype)
    if not kind:
        return torch.ops.aten._embedding_bag(rows, every, offset, False, mode, False, None, closed)[
            0
        ]
    if kind not in LOOKUPS:
        return embedding_bag_rows(rows, every, offset, scale, None, closed)
    lookup = getattr(torch.ops.quantized, LOOKUPS[kind].partition(".")[2])
    return lookup(rows, every, offset, include_last_offset=closed)


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
        used = directory[1]
        now = int(used.max()) + 1 if used.numel() else 0
        hits = slot[slot >= 0].unique()
        used[hits] = now if policy == "lru" else used[hits] + 1
        _put(directory, rows, index, slot, read, (set(hits.tolist()), now, policy, ways))


def _put(
    directory: torch.Tensor,
    rows: torch.Tensor,
    index: torch.Tensor,
    slot: torch.Tensor,
    read: torch.Tensor,
    how: tuple[set[int], int, str, int],
) -> None:
    """Put each row that was read once into its set."""
    kept, now, policy, ways = how
    sets, wide = sets_of(directory.shape[1], ways)
    seen: set[int] = set()
    for place in (slot == EMPTY).nonzero().view(-1).tolist():
        row = int(index[place])
        first = row % sets * wide
        free = [s for s in range(first, first + wide) if s not in kept]
        if row in seen or not free:
            continue
        seen.add(row)
        least = min(free, key=lambda s: (int(directory[0, s]) >= 0, int(directory[1, s])))
        directory[0, least], directory[1, least] = row, now if policy == "lru" else 1
        rows[least] = read[place]
        kept.add(least)


TIERS: Mapping[str, Callable[..., Torch]] = {
    f"irgraph.{function.__name__}": function
    for function in (tier_probe, tier_read, tier_pool, tier_fill)
}
"""Reference implementation of each op of a lookup through a tier."""
