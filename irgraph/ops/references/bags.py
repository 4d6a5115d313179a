"""A cache of pooled bags, in plain torch: probe, and fill.

Keys [slots, 2 + longest] have for each slot the length of its bag (-1: none), the time of its last
use or the number of uses, and the bag's indices in order. A bag is stored in the set that its
indices hash to.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch

from irgraph.ops.references.tiers import EMPTY, SKIPPED, sets_of

Torch: TypeAlias = Any

Tensors = Sequence[torch.Tensor]

HASH_FACTOR, HASH_PRIME = 1_000_003, 2**61 - 1


def bag_probe(
    keys: Tensors,
    indices: Tensors,
    offsets: Tensors,
    include_last_offset: bool = False,
    ways: int = 32,
) -> tuple[list[Torch], list[Torch]]:
    """Return each bag's slot, -1 if it is not cached, and a mark for each index.

    Marks are -1 for an index that must be read, and -2 for an index of a cached bag.
    """
    slot_lists, mark_lists = [], []
    for directory, index, offset in zip(keys, indices, offsets, strict=True):
        lists = bag_lists(index, offset, include_last_offset)
        slots = [_slot(directory, bag, ways) for bag in lists]
        slot_lists.append(torch.tensor(slots, dtype=torch.int64).view(len(lists)))
        marks = torch.full((len(index),), EMPTY, dtype=torch.int64)
        start = int(offset[0]) if len(offset) else 0
        for slot, bag in zip(slots, lists, strict=True):
            if slot >= 0:
                marks[start : start + len(bag)] = SKIPPED
            start += len(bag)
        mark_lists.append(marks)
    return slot_lists, mark_lists


def bag_lists(index: Torch, offset: Torch, closed: bool) -> list[list[int]]:
    """Return the indices of each bag."""
    ids, starts = index.tolist(), offset.tolist()
    ends = starts[1:] if closed else [*starts[1:], len(ids)]
    return [ids[a:b] for a, b in zip(starts, ends, strict=False)]


def set_of(indices: Sequence[int], sets: int) -> int:
    """Return the set of a bag."""
    code = 0
    for index in indices:
        code = (code * HASH_FACTOR + index + 1) % HASH_PRIME
    return code % sets


def _slot(keys: torch.Tensor, bag: list[int], ways: int) -> int:
    """Return the slot of a bag, -1 if it is not cached; empty and too long bags never are."""
    sets, wide = sets_of(len(keys), ways)
    first = set_of(bag, sets) * wide
    if bag and len(bag) <= keys.shape[1] - 2:
        for slot in range(first, first + wide):
            if keys[slot, 0] == len(bag) and keys[slot, 2 : 2 + len(bag)].tolist() == bag:
                return slot
    return EMPTY


def bag_fill(
    keys: Tensors,
    bags: Tensors,
    indices: Tensors,
    offsets: Tensors,
    found: Tensors,
    pooled: Tensors,
    policy: str = "lru",
    include_last_offset: bool = False,
    ways: int = 32,
) -> None:
    """Cache pooled bags instead of the least recently, or least frequently, used ones."""
    tables = zip(keys, bags, indices, offsets, found, pooled, strict=True)
    for directory, values, index, offset, slots, pooled_bags in tables:
        last_use = directory[:, 1]
        stamp = int(last_use.max()) + 1 if last_use.numel() else 0
        hits = slots[slots >= 0].unique()
        last_use[hits] = stamp if policy == "lru" else last_use[hits] + 1
        used_slots = set(hits.tolist())
        for number, bag in enumerate(bag_lists(index, offset, include_last_offset)):
            if int(slots[number]) < 0:
                insert_bag(
                    directory,
                    values,
                    bag,
                    pooled_bags[number],
                    (used_slots, stamp if policy == "lru" else 1, ways),
                )


def insert_bag(
    keys: torch.Tensor,
    bags: torch.Tensor,
    bag: list[int],
    pooled: torch.Tensor,
    state: tuple[set[int], int, int],
) -> None:
    """Insert a bag into its set unless it is cached; slots used in this step are not evicted.

    ``state`` has the slots used in this step, the bag's initial stamp, and the number of ways.
    """
    used_slots, stamp, ways = state
    sets, wide = sets_of(len(keys), ways)
    first = set_of(bag, sets) * wide
    free = [slot for slot in range(first, first + wide) if slot not in used_slots]
    if not bag or len(bag) > keys.shape[1] - 2 or not free or _slot(keys, bag, ways) >= 0:
        return
    victim = min(free, key=lambda slot: (int(keys[slot, 0]) >= 0, int(keys[slot, 1])))
    keys[victim] = 0
    keys[victim, 0], keys[victim, 1] = len(bag), stamp
    keys[victim, 2 : 2 + len(bag)] = torch.tensor(bag, dtype=keys.dtype)
    bags[victim] = pooled
    used_slots.add(victim)
