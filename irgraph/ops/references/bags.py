"""A cache of pooled bags, in plain torch: probe, and fill.

Keys [slots, 2 + longest] have for each slot the length of its bag (-1: none), the time of its last
use or the number of uses, and the bag's indices in order. A bag is stored in the set that its
indices hash to.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, TypeAlias

import torch

from irgraph.ops.references.tiers import EMPTY, SKIPPED, mark_hits, oldest_slot, sets_of

Torch: TypeAlias = Any

Tensors = Sequence[torch.Tensor]

HASH_FACTOR = 1_000_003
HASH_PRIME = 2**61 - 1


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
    slot_lists = []
    mark_lists = []
    for directory, index, offset in zip(keys, indices, offsets, strict=True):
        bags = bag_lists(index, offset, include_last_offset)
        slots = [_slot(directory, bag, ways) for bag in bags]
        slot_lists.append(torch.tensor(slots, dtype=torch.int64))
        marks = torch.full((len(index),), EMPTY, dtype=torch.int64)
        start = int(offset[0]) if len(offset) else 0
        for slot, bag in zip(slots, bags, strict=True):
            end = start + len(bag)
            if slot >= 0:
                marks[start:end] = SKIPPED
            start = end
        mark_lists.append(marks)
    return slot_lists, mark_lists


def bag_lists(
    index: Torch,
    offset: Torch,
    closed: bool,
) -> list[list[int]]:
    """Return the indices of each bag."""
    ids = index.tolist()
    bounds = offset.tolist()
    if not closed:
        bounds.append(len(ids))
    return [ids[start:end] for start, end in pairwise(bounds)]


def set_of(indices: Sequence[int], sets: int) -> int:
    """Return the set of a bag."""
    code = 0
    for index in indices:
        code = (code * HASH_FACTOR + index + 1) % HASH_PRIME
    return code % sets


def _slot(keys: torch.Tensor, bag: list[int], ways: int) -> int:
    """Return the slot of a bag, -1 if it is not cached; empty and too long bags never are."""
    if not _fits(keys, bag):
        return EMPTY
    end = 2 + len(bag)
    for slot in _slots_of(keys, bag, ways):
        has_length = bool(keys[slot, 0] == len(bag))
        if has_length and keys[slot, 2:end].tolist() == bag:
            return slot
    return EMPTY


def _fits(keys: torch.Tensor, bag: list[int]) -> bool:
    """Return whether a bag can be cached: it has indices, and not too many."""
    max_length = int(keys.shape[1]) - 2
    return 0 < len(bag) <= max_length


def _slots_of(
    keys: torch.Tensor,
    bag: list[int],
    ways: int,
) -> range:
    """Return the slots of the set of a bag."""
    sets, width = sets_of(len(keys), ways)
    first = set_of(bag, sets) * width
    return range(first, first + width)


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
        used_slots, stamp = mark_hits(directory[:, 1], slots, policy)
        lists = bag_lists(index, offset, include_last_offset)
        for slot, bag, pooled_bag in zip(slots, lists, pooled_bags, strict=True):
            if int(slot) < 0:
                insert_bag(directory, values, bag, pooled_bag, (used_slots, stamp, ways))


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
    if not _fits(keys, bag) or _slot(keys, bag, ways) >= 0:
        return
    lengths, uses = keys[:, 0], keys[:, 1]
    slots = _slots_of(keys, bag, ways)
    victim = oldest_slot(lengths, uses, slots, used_slots)
    if victim is None:
        return
    keys[victim] = 0
    end = 2 + len(bag)
    keys[victim, 0] = len(bag)
    keys[victim, 1] = stamp
    keys[victim, 2:end] = torch.tensor(bag, dtype=keys.dtype)
    bags[victim] = pooled
    used_slots.add(victim)
