"""Lookups through a cache, in plain torch: probe, reads of missing rows, pooling, fill.

A directory [2, slots] has the row in each slot of the cache (-1: none), and the time of its last
use or the number of uses. Slots are in sets of ``ways``; row r can only be in set r modulo their
number.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Any, TypeAlias

import torch

from irgraph.ir.narrow.ops import LOOKUPS
from irgraph.ir.narrow.rows import FORMATS
from irgraph.ops.references.narrow import embedding_bag_rows
from irgraph.ops.references.rows import SCALED

Torch: TypeAlias = Any

Tensors = Sequence[torch.Tensor]

EMPTY = -1
"""A value instead of a slot: no slot contains the row."""

SKIPPED = -2
"""A value instead of a slot: the row is not needed, as its bag is cached."""


def sets_of(slots: int, ways: int) -> tuple[int, int]:
    """Return the number of sets of a cache, and the number of slots in each."""
    wide = max(min(slots, ways), 1)
    return max(slots // wide, 1), wide


def tier_probe(
    directories: Tensors,
    indices: Tensors,
    wanted: Tensors = (),
    ways: int = 32,
) -> list[Torch]:
    """Return the slot of each index's row, -1 if it is not cached, -2 if it is not needed."""
    slot_lists = []
    for number, (directory, index) in enumerate(zip(directories, indices, strict=True)):
        sets, wide = sets_of(directory.shape[1], ways)
        row_sets = index.long() % sets
        rows = directory[0][: sets * wide].view(sets, wide)
        matches = rows[row_sets] == index.long().unsqueeze(1)
        slot = row_sets * wide + matches.int().argmax(1)
        slots = torch.where(matches.any(1), slot, EMPTY)
        if wanted:
            slots = torch.where(wanted[number] == SKIPPED, SKIPPED, slots)
        slot_lists.append(slots)
    return slot_lists


def tier_read(
    weights: Tensors,
    indices: Tensors,
    slots: Tensors = (),
    **_: object,
) -> list[Torch]:
    """Return the rows of indices without a slot, zeros for the others."""
    slot_lists = slots or [torch.full_like(index, EMPTY) for index in indices]
    read = []
    for weight, index, slot in zip(weights, indices, slot_lists, strict=True):
        table = _movable(weight)
        rows = table.new_zeros(index.numel(), weight.shape[1])
        missing = slot == EMPTY
        missing_rows = index[missing].long()
        rows[missing] = table[missing_rows]
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
    results = []
    table_scales = iter(scales)
    formats = kinds or ("",) * len(staged)
    for number, (rows, offset, kind) in enumerate(zip(staged, offsets, formats, strict=True)):
        if held:
            cached = _movable(held[number])
            merged = _with_cached(_movable(rows), cached, slots[number])
            rows = merged.view(rows.dtype)
        scale = next(table_scales) if kind in SCALED else None
        table_bags = _bags(rows, offset, kind, scale, mode, include_last_offset)
        if found:
            table_bags = _with_cached(table_bags, bags[number], found[number])
        results.append(table_bags)
    return results


def _with_cached(rows: Torch, cached: Torch, slots: Torch) -> Torch:
    """Return rows, but cached ones for rows with a slot."""
    is_cached = (slots >= 0).unsqueeze(1)
    return torch.where(is_cached, cached[slots.clamp(min=0)], rows)


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
        row_format = FORMATS.get(kind)
        if row_format is not None and row_format.packed:
            width = (width - row_format.scales) * row_format.elements_per_byte
        dtype = torch.float32 if kind else rows.dtype
        count = len(offset) - include_last_offset
        results.append(rows.new_empty((count, width), dtype=dtype))
    return results


def _bags(
    rows: Torch,
    offset: Torch,
    kind: str,
    scale: Torch,
    mode: int,
    closed: bool,
) -> Torch:
    """Return the bags of rows of one table, by the lookup for their format."""
    positions = torch.arange(len(rows), dtype=offset.dtype)
    if not kind:
        look_up = torch.ops.aten._embedding_bag
        results = look_up(rows, positions, offset, False, mode, False, None, closed)
        return results[0]
    if kind not in LOOKUPS:
        return embedding_bag_rows(rows, positions, offset, scale, None, closed)
    _, _, name = LOOKUPS[kind].partition(".")
    look_up = getattr(torch.ops.quantized, name)
    return look_up(rows, positions, offset, include_last_offset=closed)


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
    tables = zip(directories, held, indices, slots, staged, strict=True)
    for directory, rows, index, slot, read in tables:
        used_slots, stamp = mark_hits(directory[1], slot, policy)
        _insert_rows(directory, rows, index, slot, read, (used_slots, stamp, ways))


def mark_hits(
    uses: torch.Tensor,
    slots: torch.Tensor,
    policy: str,
) -> tuple[set[int], int]:
    """Mark slots as used in this step; return them, and the stamp of a new row or bag.

    ``uses`` has the time of each slot's last use, or the number of uses.
    """
    hits = slots[slots >= 0].unique()
    used_slots = set(hits.tolist())
    if policy != "lru":
        uses[hits] += 1
        return used_slots, 1
    stamp = int(uses.max()) + 1 if uses.numel() else 0
    uses[hits] = stamp
    return used_slots, stamp


def oldest_slot(
    contents: torch.Tensor,
    uses: torch.Tensor,
    slots: Sequence[int],
    used_slots: Set[int],
) -> int | None:
    """Return the slot to fill: an empty one, or else the least used; ``None`` if all are in use."""
    free = [slot for slot in slots if slot not in used_slots]

    def age(slot: int) -> tuple[bool, int]:
        return int(contents[slot]) >= 0, int(uses[slot])

    return min(free, key=age, default=None)


def _insert_rows(
    directory: torch.Tensor,
    rows: torch.Tensor,
    index: torch.Tensor,
    slot: torch.Tensor,
    read: torch.Tensor,
    state: tuple[set[int], int, int],
) -> None:
    """Insert each row that was read into its set, once.

    ``state`` has the slots used in this step, the stamp of a new row and the ways.
    """
    used_slots, stamp, ways = state
    contents, uses = directory
    sets, width = sets_of(directory.shape[1], ways)
    seen: set[int] = set()
    missing = (slot == EMPTY).nonzero().view(-1)
    for position in missing.tolist():
        row = int(index[position])
        first = row % sets * width
        slots = range(first, first + width)
        victim = oldest_slot(contents, uses, slots, used_slots)
        if row in seen or victim is None:
            continue
        seen.add(row)
        contents[victim] = row
        uses[victim] = stamp
        rows[victim] = read[position]
        used_slots.add(victim)
