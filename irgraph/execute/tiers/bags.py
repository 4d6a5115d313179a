"""A cache of pooled bags, in plain torch: probe, and fill.

Keys [slots, 2 + longest] hold for each slot the length of its bag (-1: none), when it was used
last, or how often, and the bag's indices in order. A bag lies in the set that its indices hash to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from irgraph.execute.tiers.ops import EMPTY, FOUND, sets_of
from irgraph.execute.torch_values import Torch

Tensors = Sequence[torch.Tensor]

FACTOR, PRIME = 1_000_003, 2**61 - 1


def bag_probe(
    keys: Tensors,
    indices: Tensors,
    offsets: Tensors,
    include_last_offset: bool = False,
    ways: int = 32,
) -> tuple[list[Torch], list[Torch]]:
    """Return each bag's slot, -1 where none holds it; and what to do about each index.

    That is -1 for an index that is wanted, -2 for one whose bag was found.
    """
    found, wanted = [], []
    for held, index, offset in zip(keys, indices, offsets, strict=True):
        lists = lists_of(index, offset, include_last_offset)
        slots = [_slot(held, one, ways) for one in lists]
        found.append(torch.tensor(slots, dtype=torch.int64).view(len(lists)))
        marks = torch.full((len(index),), EMPTY, dtype=torch.int64)
        start = int(offset[0]) if len(offset) else 0
        for slot, one in zip(slots, lists, strict=True):
            if slot >= 0:
                marks[start : start + len(one)] = FOUND
            start += len(one)
        wanted.append(marks)
    return found, wanted


def lists_of(index: Torch, offset: Torch, closed: bool) -> list[list[int]]:
    """Return the indices of each bag."""
    every, starts = index.tolist(), offset.tolist()
    ends = starts[1:] if closed else [*starts[1:], len(every)]
    return [every[a:b] for a, b in zip(starts, ends, strict=False)]


def set_of(indices: Sequence[int], sets: int) -> int:
    """Return the set that a bag belongs to."""
    found = 0
    for index in indices:
        found = (found * FACTOR + index + 1) % PRIME
    return found % sets


def _slot(keys: torch.Tensor, bag: list[int], ways: int) -> int:
    """Return the slot that holds a bag; empty bags, and those that are too long, lie in none."""
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
    """Keep bags that were pooled, in place of those used least lately, or least often."""
    tables = zip(keys, bags, indices, offsets, found, pooled, strict=True)
    for held, values, index, offset, slots, made in tables:
        used = held[:, 1]
        now = int(used.max()) + 1 if used.numel() else 0
        hits = slots[slots >= 0].unique()
        used[hits] = now if policy == "lru" else used[hits] + 1
        kept = set(hits.tolist())
        for number, bag in enumerate(lists_of(index, offset, include_last_offset)):
            if int(slots[number]) < 0:
                put_bag(
                    held, values, bag, made[number], (kept, now if policy == "lru" else 1, ways)
                )


def put_bag(
    keys: torch.Tensor,
    bags: torch.Tensor,
    bag: list[int],
    made: torch.Tensor,
    how: tuple[set[int], int, int],
) -> None:
    """Put a bag into its set, unless it is there; slots in use this step stay."""
    kept, stamp, ways = how
    sets, wide = sets_of(len(keys), ways)
    first = set_of(bag, sets) * wide
    free = [slot for slot in range(first, first + wide) if slot not in kept]
    if not bag or len(bag) > keys.shape[1] - 2 or not free or _slot(keys, bag, ways) >= 0:
        return
    least = min(free, key=lambda slot: (int(keys[slot, 0]) >= 0, int(keys[slot, 1])))
    keys[least] = 0
    keys[least, 0], keys[least, 1] = len(bag), stamp
    keys[least, 2 : 2 + len(bag)] = torch.tensor(bag, dtype=keys.dtype)
    bags[least] = made
    kept.add(least)


BAGS: Mapping[str, Callable[..., object]] = {
    f"irgraph.{function.__name__}": function for function in (bag_probe, bag_fill)
}
"""Reference implementation of each op of a cache of pooled bags."""
