"""Memory that torch's caching allocator reserves on a device for a step.

The allocator takes segments from the driver, cuts blocks off them, and stores freed blocks for
later allocations of the same stream. Segments (``torch.cuda.memory_reserved``) exceed the tensors
by the free blocks. Rules and constants are torch's (``CUDACachingAllocator.cpp``).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

from irgraph.ir.graph import Graph, check_graph
from irgraph.schedule.memory.peak import ROUND, Lifetimes, check_device

MIB = 2**20

MAX_SMALL = MIB
"""Maximum size of an allocation from the small pool, in bytes."""

SMALL_SEGMENT = 2 * MIB
"""Size of a segment of the small pool, in bytes."""

LARGE_SEGMENT = 20 * MIB
"""Size of a segment for allocations below ``OWN_SEGMENT``, in bytes."""

OWN_SEGMENT = 10 * MIB
"""Minimum size of an allocation with a separate segment, in bytes."""

ROUND_SEGMENT = 2 * MIB
"""Granularity of such segments, in bytes."""

STEPS = 2
"""Number of simulated steps: the first starts without free blocks, and others repeat the second."""


class PoolKey(NamedTuple):
    """Pool of free blocks: allocations of one stream, small or large."""

    stream: str
    is_small: bool


@dataclass(eq=False, slots=True)
class MemoryBlock:
    """A contiguous part of a segment, in a list of the segment's parts in order of addresses."""

    pool: PoolKey
    segment: int
    start: int
    size: int
    is_free: bool = False
    before: MemoryBlock | None = None
    after: MemoryBlock | None = None

    @property
    def order(self) -> tuple[int, int, int]:
        """Position among the free blocks of a pool."""
        return self.size, self.segment, self.start


@dataclass
class CachingAllocator:
    """A simulated caching allocator of torch.

    Attributes:
        expandable: whether segments grow (``expandable_segments:True``).
        reserved: bytes of all segments.
    """

    expandable: bool = False
    reserved: int = 0
    _segments: int = 0
    _free: dict[PoolKey, list[MemoryBlock]] = field(default_factory=lambda: defaultdict(list))
    _last: dict[PoolKey, MemoryBlock] = field(default_factory=dict)

    def allocate(self, size: int, stream: str = "") -> MemoryBlock:
        """Return a block of at least ``size`` bytes for a stream."""
        size = max(ROUND, -(-size // ROUND) * ROUND)
        pool = PoolKey(stream, size <= MAX_SMALL)
        block = self._best_fit(pool, size)
        if block is None:
            block = self._grow(pool, size) if self.expandable else self._new_segment(pool, size)
        self._split(block, size)
        return block

    def release(self, block: MemoryBlock) -> None:
        """Free a block and join it with free neighbours."""
        if block.before is not None and block.before.is_free:
            self._remove(block.before)
            block = self._join(block.before, block)
        if block.after is not None and block.after.is_free:
            self._remove(block.after)
            block = self._join(block, block.after)
        self._add(block)

    def _best_fit(self, pool: PoolKey, size: int) -> MemoryBlock | None:
        """Remove and return the smallest free block that fits."""
        free = self._free[pool]
        place = bisect_left(free, (size, 0, 0), key=attrgetter("order"))
        if place == len(free):
            return None
        # the last block of an expandable segment is as large as it can grow
        is_last = self.expandable and free[place] is self._last[pool]
        if is_last and place + 1 < len(free):
            place += 1
        block = free.pop(place)
        block.is_free = False
        return block

    def _new_segment(self, pool: PoolKey, size: int) -> MemoryBlock:
        segment_size = LARGE_SEGMENT if size < OWN_SEGMENT else _round_up(size, ROUND_SEGMENT)
        if pool.is_small:
            segment_size = SMALL_SEGMENT
        self._segments += 1
        self.reserved += segment_size
        return MemoryBlock(pool, self._segments, 0, segment_size)

    def _grow(self, pool: PoolKey, size: int) -> MemoryBlock:
        """Return the last block of a pool's expandable segment after adding pages to it."""
        last = self._last.get(pool)
        page = SMALL_SEGMENT if pool.is_small else LARGE_SEGMENT
        if last is not None and last.is_free:
            self._remove(last)
            pages = _round_up(size - last.size, page)
            last.size += pages
            last.is_free = False
        elif last is not None:
            pages = _round_up(size, page)
            block = MemoryBlock(pool, last.segment, last.start + last.size, pages, before=last)
            last.after = last = block
        else:
            pages = _round_up(size, page)
            self._segments += 1
            last = MemoryBlock(pool, self._segments, 0, pages)
        self._last[pool] = last
        self.reserved += pages
        return last

    def _split(self, block: MemoryBlock, size: int) -> None:
        """Return the rest of a block that is larger than ``size`` to its pool, if it is useful."""
        rest = block.size - size
        is_fine_grained = block.pool.is_small or self.expandable
        if rest < ROUND if is_fine_grained else rest <= MAX_SMALL:
            return
        remainder = MemoryBlock(
            block.pool, block.segment, block.start + size, rest, before=block, after=block.after
        )
        if block.after is not None:
            block.after.before = remainder
        block.after, block.size = remainder, size
        self._move_end(block, remainder)
        self._add(remainder)

    def _join(self, block: MemoryBlock, after: MemoryBlock) -> MemoryBlock:
        """Extend a block by the next one of its segment."""
        block.size += after.size
        block.after = after.after
        if after.after is not None:
            after.after.before = block
        self._move_end(after, block)
        return block

    def _move_end(self, block: MemoryBlock, successor: MemoryBlock) -> None:
        """Replace a block as the last one of its expandable segment."""
        if self._last.get(block.pool) is block:
            self._last[block.pool] = successor

    def _add(self, block: MemoryBlock) -> None:
        block.is_free = True
        insort(self._free[block.pool], block, key=attrgetter("order"))

    def _remove(self, block: MemoryBlock) -> None:
        free = self._free[block.pool]
        del free[bisect_left(free, block.order, key=attrgetter("order"))]
        block.is_free = False


def _round_up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def reserved_memory(graph: Graph, device: str = "", *, expandable: bool = False) -> int:
    """Return the bytes that the caching allocator reserves in a loop of a step.

    Tensors from before the step are allocated first, in order. Unknown are allocations before
    the loop and the workspace of libraries.

    Args:
        graph: the step.
        device: one of its devices; its first one by default.
        expandable: whether the allocator uses expandable segments.

    Raises ``IrgraphError`` (exit code 2) for a device that the step does not use.
    """
    check_graph(graph)
    check_device(graph, device)
    lifetimes = Lifetimes(graph, device or graph.device)
    allocator = CachingAllocator(expandable)
    created, deleted = _changes(lifetimes)
    # torch allocates nothing for empty tensors
    for buffer in filter(lifetimes.sizes.get, lifetimes.declared):
        allocator.allocate(lifetimes.sizes[buffer])
    for _ in range(STEPS):
        blocks: dict[str, MemoryBlock] = {}
        for leaf, new, old in zip(lifetimes.leaves, created, deleted, strict=True):
            for buffer in new:
                blocks[buffer] = allocator.allocate(lifetimes.sizes[buffer], leaf.stream)
            for buffer in old:
                allocator.release(blocks[buffer])
    return allocator.reserved


def _changes(lifetimes: Lifetimes) -> tuple[Sequence[list[str]], Sequence[list[str]]]:
    """Return the buffers that each op creates, and the buffers that are freed after it."""
    created: list[list[str]] = [[] for _ in lifetimes.leaves]
    deleted: list[list[str]] = [[] for _ in lifetimes.leaves]
    temporary: Iterable[str] = (
        buffer
        for buffer, size in lifetimes.sizes.items()
        if size and buffer not in lifetimes.declared
    )
    for buffer in temporary:
        created[lifetimes.first_op[buffer]].append(buffer)
        deleted[lifetimes.last_op[buffer]].append(buffer)
    return created, deleted
