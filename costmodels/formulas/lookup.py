"""Traffic of embedding-table lookups: the paper's heuristics, and a corrected count of them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct

from costmodels.formulas.machine import SMALL, Machine
from costmodels.formulas.rows import measured, picked_time
from costmodels.formulas.scatter import UPDATE_SHARE
from costmodels.lookups.cache import Reads, lru_misses
from costmodels.lookups.pooling import EQUAL, Pooling, longest
from costmodels.lookups.popularity import UNIFORM, Distribution, distinct_rows
from irgraph.ir.points.point_values import fsum, maximum, minimum, to_float

SECTOR = 32
"""Bytes that memory moves at once (paper, III-B-1a)."""

TABLE_OFFSETS, OFFSETS = 32, 64
"""Bytes of table offsets and of offsets that each row of the output reads (paper, III-B-1a)."""

CACHE_SHARE = 0.9
"""Share of the second-level cache that rows can hold (the paper's program)."""

DRAM_CYCLES, L2_CYCLES = 400, 200
"""Clock cycles until a load comes back from DRAM and from the second-level cache, on V100, A100 and
H100 alike (doi:10.1016/j.ultsonch.2023.106546, table 3)."""

FAR_CYCLES, NEAR_CYCLES, WARP_CYCLES = 560, 240, 5
"""The same of each row of a bag where that was measured, and beside it for each warp that waits in
the same multiprocessor (H100 SXM 80 GB, torch 2.11: 20 to 700,000 rows, bags of 5 to 58)."""

BAG_WARPS = 8192
"""Warps of a lookup: 1024 blocks of eight, which take bags and 32 columns in turn (torch,
EmbeddingBag.cu)."""

PIECE_CYCLES, PIECE_ROW_CYCLES = 70, 10.7
"""Cycles of a multiprocessor for each bag and 32 columns, and for each row of them (the same card:
9.2 us for 2,577 bags of three rows of 224 elements, 8.1 for 1,506 of 17 of 99)."""

WARP = 32
"""Threads of a warp."""

RESIDENT_THREADS = 2048
"""Threads that a multiprocessor holds at once, on every card with a sheet but turing's."""


class Table(Struct, frozen=True):
    """One table's part of a batched lookup.

    Attributes:
        rows, width: of the table, in rows and elements.
        bags, lookups: output rows, and indices over all of them.
        size, index_size: bytes of an element and of an index.
        indices: how often each row is looked up.
        stored: bytes of a row in memory where it is not kept as elements of ``size``.
        pooling: how the bags share the lookups.
    """

    rows: int
    width: int
    bags: int
    lookups: int
    size: int = 4
    index_size: int = 8
    indices: Distribution = UNIFORM
    stored: int = 0
    pooling: Pooling = EQUAL

    @property
    def longest(self) -> float:
        """Lookups that the longest bag is expected to have."""
        return longest(self.pooling, self.bags, self.lookups)

    @property
    def row(self) -> int:
        """Bytes of the sectors that a row touches; packed ones begin anywhere in a sector."""
        if not self.stored:
            return sectors(self.size * self.width)
        return self.stored - math.gcd(self.stored, SECTOR) + SECTOR

    @property
    def distinct(self) -> float:
        """Rows that are expected to be looked up at least once."""
        if not self.rows:
            return 0.0
        return distinct_rows(self.indices, self.rows, self.lookups)


def sectors(nbytes: float) -> int:
    """Return bytes rounded up to whole sectors."""
    return math.ceil(nbytes / SECTOR) * SECTOR


def paper_time(tables: Sequence[Table], machine: Machine, backward: bool) -> float:
    """Return the paper's plain estimate in microseconds: every access goes to DRAM.

    Each output row reads 32 + 64 bytes of offsets, its indices of 4 bytes, L rows of weights
    (twice that backward) and moves one row of output, all of 4-byte elements in whole sectors.
    """
    total = 0
    for table in tables:
        index, weights, output = _row_traffic(table, backward)
        total += table.bags * (TABLE_OFFSETS + OFFSETS + index + weights + output)
    return machine.stream(total)


def _row_traffic(table: Table, backward: bool) -> tuple[int, int, int]:
    """Return bytes of indices, weights and output of one output row, as the paper counts them."""
    each = table.lookups / max(table.bags, 1)
    output = sectors(4 * table.width)
    weights = sectors(8 * each * table.width) if backward else round(each * output)
    return sectors(4 * each), weights, output


def paper_hit_rate_time(tables: Sequence[Table], machine: Machine, backward: bool) -> float:
    """Return the paper's enhanced estimate: a share p of the weights comes from the L2 cache."""
    dram = cached = 0.0
    for table in tables:
        index, weights, output = _row_traffic(table, backward)
        p = paper_hit_rate(table, machine)
        dram += table.bags * (index + output + (1 - p) * weights)
        cached += table.bags * (TABLE_OFFSETS + OFFSETS + p * weights)
    return machine.stream(dram) + cached / machine.sheet.l2_bandwidth / 1e3


def paper_hit_rate(table: Table, machine: Machine) -> float:
    """Return p = C(X, L) / C(E, L), with X rows of the table in the cache (paper, III-B-1a)."""
    each = round(table.lookups / max(table.bags, 1))
    rows_per_block = max(256 // table.width, 1)
    in_flight = max(math.ceil(rows_per_block * machine.sheet.sms / max(table.bags, 1)), 1)
    held = min(int(machine.sheet.l2_bytes / (in_flight * 4 * table.width)), table.rows)
    if held < each:
        return 0.0
    return math.prod((held - i) / (table.rows - i) for i in range(each))


def misses(tables: Sequence[Table], machine: Machine) -> list[float]:
    """Return how many lookups of each table go to DRAM, by Che's approximation for the L2 cache.

    What earlier kernels left there is taken to be lost.
    """
    if any(not table.rows for table in tables):
        return [0.0] * len(tables)
    reads = [Reads(t.indices, t.rows, t.lookups, t.row) for t in tables]
    capacity = CACHE_SHARE * machine.sheet.l2_bytes
    return lru_misses(reads, capacity, tables_in_flight(tables, machine))


def tables_in_flight(tables: Sequence[Table], machine: Machine) -> float:
    """Return how many tables are read at once: resident output rows over rows of a table."""
    lanes = maximum(minimum(fsum(*(t.width for t in tables)) / len(tables) / 4, 32.0), 1.0)
    rows = machine.sheet.sms * RESIDENT_THREADS / lanes
    bags = maximum(fsum(*(t.bags for t in tables)) / len(tables), 1.0)
    return to_float(minimum(maximum(rows / bags, 1.0), len(tables)))


def forward_time(tables: Sequence[Table], machine: Machine, extra: float = 0.0) -> float:
    """Return microseconds of a lookup: the longest of DRAM traffic, cache traffic and longest bag.

    A row found in the cache is read while others wait for DRAM: taking the longer, as the paper's
    program does, fits the traces better than its text's sum. ``extra`` are bytes that a variant
    streams beside indices, rows and output.
    """
    missing = misses(tables, machine)
    moved = _traffic_time(tables, missing, machine, extra)
    # A lookup waits for offsets, then an index, then a row: the start of older cards on all.
    pieces = _pieces_time(tables, machine)
    return maximum(moved, bag_time(tables, missing, machine), pieces) + SMALL


def _pieces_time(tables: Sequence[Table], machine: Machine) -> float:
    """Return microseconds of what multiprocessors do for each bag, where that was measured."""
    if not measured(machine):
        return 0.0
    cycles = 0.0
    for table in tables:
        columns = -(-table.width // WARP)
        cycles += columns * (PIECE_CYCLES * table.bags + PIECE_ROW_CYCLES * table.lookups)
    return machine.cycles(cycles / machine.sheet.sms)


def _row_cycles(table: Table, machine: Machine) -> tuple[float, float]:
    """Return the cycles of a row of a bag that comes from DRAM, and of one from the cache."""
    if not measured(machine):
        return DRAM_CYCLES, L2_CYCLES
    warps = minimum(table.bags * -(-table.width // WARP), BAG_WARPS) / machine.sheet.sms
    return FAR_CYCLES + WARP_CYCLES * warps, NEAR_CYCLES + WARP_CYCLES * warps


def bag_time(tables: Sequence[Table], missing: Sequence[float], machine: Machine) -> float:
    """Return microseconds that the longest bag of any table takes beyond its first row.

    One thread adds up a column of a bag, row by row, and writes where each index belongs before it
    asks for the next row (torch, EmbeddingBag.cu): every row takes a load's latency. ``missing``
    are the lookups of each table that come from DRAM. Indices come from the first cache; a kernel
    with next to nothing to do waits for a load, too, so that the first row is in ``SMALL``.
    """
    found = 0.0
    for table, missed in zip(tables, missing, strict=True):
        share = missed / maximum(table.lookups, 1)
        far, near = _row_cycles(table, machine)
        cycles = near + share * (far - near)
        found = maximum(found, machine.cycles(maximum(table.longest - 1.0, 0.0) * cycles))
    return found


def _traffic_time(
    tables: Sequence[Table], missing: Sequence[float], machine: Machine, extra: float
) -> float:
    dram, cached = extra, 0.0
    for table, missed in zip(tables, missing, strict=True):
        output = sectors(table.size * table.width) * table.bags
        dram += table.lookups * table.index_size + output + missed * table.row
        cached += table.bags * (TABLE_OFFSETS + OFFSETS) + (table.lookups - missed) * table.row
    return maximum(machine.stream(dram), cached / machine.sheet.l2_bandwidth / 1e3)


LOOKED_UP = 0.52
"""Elements that a multiprocessor looks up in a cycle: ``index_select`` computes the place of each
(medians of 0.46 to 0.57 on A40, A100 and H100 in f16, whatever the table; microsoft/vidur)."""


def gather_time(table: Table, machine: Machine) -> float:
    """Return microseconds to copy a row for each index, as ``index_select`` does.

    There are no offsets; DRAM moves indices, rows and output, the cache the rows that repeat. The
    paper counts bytes alone.
    """
    missed = misses([table], machine)[0]
    dram = table.lookups * (table.index_size + table.row) + missed * table.row
    if measured(machine):
        return picked_time(table.lookups, table.width, table.size, dram, machine)
    elements = 0 if machine.paper else table.lookups * table.width
    walk = machine.cycles(elements / (LOOKED_UP * machine.sheet.sms))
    cached = (table.lookups - missed) * table.row
    moved = maximum(machine.stream(dram), cached / machine.sheet.l2_bandwidth / 1e3)
    return maximum(moved, walk) + machine.start


def update_traffic_time(tables: Sequence[Table], machine: Machine) -> float:
    """Return microseconds to read gradients and to read, change and write back the rows.

    A row's write waits for its read, so that cache and DRAM traffic add up (paper, III-B-1a). Bags
    are walked row by row, as in a lookup.
    """
    missing = misses(tables, machine)
    dram = changed = cached = 0.0
    for table, missed in zip(tables, missing, strict=True):
        dram += table.lookups * table.index_size + table.row * table.bags
        changed += 2 * missed * table.row
        cached += table.bags * (TABLE_OFFSETS + OFFSETS)
        cached += 2 * (table.lookups - missed) * table.row
    streamed = machine.stream(dram) + machine.stream(changed, UPDATE_SHARE)
    moved = streamed + cached / machine.sheet.l2_bandwidth / 1e3
    return maximum(moved, bag_time(tables, missing, machine)) + machine.start
