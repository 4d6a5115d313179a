"""Lookups through a cache, in plain torch: probe, reads of missing rows, pooling, fill.

A directory [2, slots] has the row in each slot of the cache (-1: none), and the time of its last
use or the number of uses. Slots are in sets of ``ways``; row r can only be in set r modulo their
number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch

from irgraph.ir.narrow.ops import LOOKUPS
from irgraph.ir.narrow.rows import FORMATS
from irgraph.ops.references.narrow import embedding_bag_rows
from irgraph.ops.references.rows import SCALED

Torch: TypeAlias = Any

Tensors = Sequence[torch.Tensor]

EMPTY, SKIPPED = -1, -2
"""Values instead of a slot: no slot contains the row; the row is not needed, as its bag is
cached."""


def sets_of(slots: int, ways: int) -> tuple[int, int]:
    """Return the number of sets of a cache, and the number of slots in each."""
    wide = max(min(slots, ways), 1)
    return max(slots // wide, 1), wide


def tier_probe(
    directories: Tensors, indices: Tensors, wanted: Tensors = (), ways: int = 32
) -> list[Torch]:
    """Return the slot of each index's row, -1 if it is not cached, -2 if it is not needed."""
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
    """Return the rows of indices without a slot, zeros for the others."""
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
    """Return rows of a one-byte type as bytes: torch supports few copies of f8."""
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
    """Return the bags of rows, from the cache for rows with a slot, else from the staged rows.

    ``kinds`` are the rows' formats, ``""`` for plain elements; ``scales`` are the scales of f8
    tables. Bags with a slot in ``found`` are copied from the cached ``bags``.
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


def pooled_types(
    staged: Tensors,
    offsets: Tensors,
    include_last_offset: bool = False,
    kinds: Sequence[str] = (),
    **_: object,
) -> list[Torch]:
    """Return bags without elements: of plain elements in their type, of formats in f32."""
    results = []
    formats = kinds or ("",) * len(staged)
    for rows, offset, kind in zip(staged, offsets, formats, strict=True):
        width = rows.shape[1]
        if kind in FORMATS and FORMATS[kind].packed:
            width = (width - FORMATS[kind].scales) * FORMATS[kind].elements_per_byte
        dtype = torch.float32 if kind else rows.dtype
        shape = (len(offset) - include_last_offset, width)
        results.append(rows.new_empty(shape, dtype=dtype))
    return results


def _bags(rows: Torch, offset: Torch, kind: str, scale: Torch, mode: int, closed: bool) -> Torch:
    """Return the bags of rows of one table, by the lookup for their format."""
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
    """Cache rows that were read instead of the least recently, or least frequently, used ones.

    Rows found in this step are not evicted; a row is not cached if its set has no other slot.
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
    """Insert each row that was read into its set, once.

    ``state`` has the slots used in this step, the current stamp, the policy and the ways.
    """
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
