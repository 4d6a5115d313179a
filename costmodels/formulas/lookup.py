"""Traffic of embedding-table lookups: the paper's heuristics, and a corrected count of them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct

from costmodels.formulas.machine import SMALL, Machine
from costmodels.formulas.rows import has_row_laws, picked_time
from costmodels.formulas.scatter import UPDATE_SHARE
from costmodels.lookups.cache import Reads, lru_misses
from costmodels.lookups.pooling import EQUAL, Pooling, longest
from costmodels.lookups.popularity import UNIFORM, Distribution, distinct_rows
from irgraph.ir.points.point_values import fsum, maximum, minimum, to_float

SECTOR = 32
"""Bytes of one memory transfer (paper, III-B-1a)."""

TABLE_OFFSETS, OFFSETS = 32, 64
"""Bytes of table offsets and of offsets that each row of the output reads (paper, III-B-1a)."""

CACHE_SHARE = 0.9
"""Share of the second-level cache that rows can occupy (the paper's program)."""

DRAM_CYCLES, L2_CYCLES = 400, 200
"""Latency of a load from DRAM and from the second-level cache, in clock cycles, on V100, A100 and
H100 (doi:10.1016/j.ultsonch.2023.106546, table 3)."""

FAR_CYCLES, NEAR_CYCLES, WARP_CYCLES = 560, 240, 5
"""Measured latency of each row of a bag from DRAM and from the cache, and additional cycles for
each waiting warp of the same multiprocessor (H100 SXM 80 GB, torch 2.11: 20 to 700,000 rows, bags
of 5 to 58)."""

BAG_WARPS = 8192
"""Warps of a lookup: 1024 blocks of eight, which process bags and 32 columns in turn (torch,
EmbeddingBag.cu)."""

PIECE_CYCLES, PIECE_ROW_CYCLES = 70, 10.7
"""Cycles of a multiprocessor for 32 columns of a bag, and for 32 columns of a row (the same card:
9.2 us for 2,577 bags of three rows of 224 elements, 8.1 for 1,506 of 17 of 99)."""

WARP = 32
"""Threads of a warp."""

RESIDENT_THREADS = 2048
"""Maximum number of resident threads of a multiprocessor, on every card with a sheet but
turing's."""


class LookupTable(Struct, frozen=True):
    """One table's part of a batched lookup.

    Attributes:
        rows, width: size of the table, in rows and elements.
        bags, lookups: number of output rows, and of indices over all of them.
        size, index_size: bytes of an element and of an index.
        indices: distribution of lookups over rows.
        stored_bytes: bytes of a row in memory if it is not stored as elements of ``size``, else 0.
        pooling: distribution of lookups over bags.
    """

    rows: int
    width: int
    bags: int
    lookups: int
    size: int = 4
    index_size: int = 8
    indices: Distribution = UNIFORM
    stored_bytes: int = 0
    pooling: Pooling = EQUAL

    @property
    def longest(self) -> float:
        """Expected number of lookups of the longest bag."""
        return longest(self.pooling, self.bags, self.lookups)

    @property
    def row_bytes(self) -> int:
        """Bytes of the sectors of a row; packed rows start anywhere in a sector."""
        if not self.stored_bytes:
            return sectors(self.size * self.width)
        return self.stored_bytes - math.gcd(self.stored_bytes, SECTOR) + SECTOR

    @property
    def distinct(self) -> float:
        """Expected number of rows that are looked up at least once."""
        if not self.rows:
            return 0.0
        return distinct_rows(self.indices, self.rows, self.lookups)


def sectors(nbytes: float) -> int:
    """Return bytes rounded up to whole sectors."""
    return math.ceil(nbytes / SECTOR) * SECTOR


def paper_time(tables: Sequence[LookupTable], machine: Machine, backward: bool) -> float:
    """Return the paper's plain estimate in microseconds: every access goes to DRAM.

    Each output row reads 32 + 64 bytes of offsets, its indices of 4 bytes, L rows of weights
    (twice that backward) and moves one row of output, all of 4-byte elements in whole sectors.
    """
    total = 0
    for table in tables:
        index, weights, output = _row_traffic(table, backward)
        total += table.bags * (TABLE_OFFSETS + OFFSETS + index + weights + output)
    return machine.stream(total)


def _row_traffic(table: LookupTable, backward: bool) -> tuple[int, int, int]:
    """Return bytes of indices, weights and output of one output row, as the paper counts them."""
    bag_lookups = table.lookups / max(table.bags, 1)
    output = sectors(4 * table.width)
    weights = sectors(8 * bag_lookups * table.width) if backward else round(bag_lookups * output)
    return sectors(4 * bag_lookups), weights, output


def paper_hit_rate_time(tables: Sequence[LookupTable], machine: Machine, backward: bool) -> float:
    """Return the paper's enhanced estimate: a share p of the weights comes from the L2 cache."""
    dram = cached = 0.0
    for table in tables:
        index, weights, output = _row_traffic(table, backward)
        p = paper_hit_rate(table, machine)
        dram += table.bags * (index + output + (1 - p) * weights)
        cached += table.bags * (TABLE_OFFSETS + OFFSETS + p * weights)
    return machine.stream(dram) + cached / machine.sheet.l2_bandwidth / 1e3


def paper_hit_rate(table: LookupTable, machine: Machine) -> float:
    """Return p = C(X, L) / C(E, L), with X rows of the table in the cache (paper, III-B-1a)."""
    bag_lookups = round(table.lookups / max(table.bags, 1))
    rows_per_block = max(256 // table.width, 1)
    in_flight = max(math.ceil(rows_per_block * machine.sheet.sms / max(table.bags, 1)), 1)
    cached_rows = min(int(machine.sheet.l2_bytes / (in_flight * 4 * table.width)), table.rows)
    if cached_rows < bag_lookups:
        return 0.0
    return math.prod((cached_rows - i) / (table.rows - i) for i in range(bag_lookups))


def misses(tables: Sequence[LookupTable], machine: Machine) -> list[float]:
    """Return the number of lookups of each table in DRAM, by Che's approximation for the L2 cache.

    Its contents from earlier kernels are assumed to be lost.
    """
    if any(not table.rows for table in tables):
        return [0.0] * len(tables)
    reads = [Reads(t.indices, t.rows, t.lookups, t.row_bytes) for t in tables]
    capacity = CACHE_SHARE * machine.sheet.l2_bytes
    return lru_misses(reads, capacity, tables_in_flight(tables, machine))


def tables_in_flight(tables: Sequence[LookupTable], machine: Machine) -> float:
    """Return the number of concurrently read tables: resident output rows over rows of a table."""
    lanes = maximum(minimum(fsum(*(t.width for t in tables)) / len(tables) / 4, 32.0), 1.0)
    rows = machine.sheet.sms * RESIDENT_THREADS / lanes
    bags = maximum(fsum(*(t.bags for t in tables)) / len(tables), 1.0)
    return to_float(minimum(maximum(rows / bags, 1.0), len(tables)))


def forward_time(tables: Sequence[LookupTable], machine: Machine, extra: float = 0.0) -> float:
    """Return microseconds of a lookup: the longest of DRAM traffic, cache traffic and longest bag.

    A cached row is read while others wait for DRAM: the maximum, as in the paper's program, fits
    the traces better than its text's sum. ``extra`` is the number of bytes that a variant streams
    in addition to indices, rows and output.
    """
    missing = misses(tables, machine)
    traffic_time = _traffic_time(tables, missing, machine, extra)
    # A lookup waits for offsets, then an index, then a row: the start of older cards on all.
    pieces = _pieces_time(tables, machine)
    return maximum(traffic_time, bag_time(tables, missing, machine), pieces) + SMALL


def _pieces_time(tables: Sequence[LookupTable], machine: Machine) -> float:
    """Return microseconds of a multiprocessor's work for each bag; 0 for unmeasured cards."""
    if not has_row_laws(machine):
        return 0.0
    cycles = 0.0
    for table in tables:
        columns = -(-table.width // WARP)
        cycles += columns * (PIECE_CYCLES * table.bags + PIECE_ROW_CYCLES * table.lookups)
    return machine.cycles(cycles / machine.sheet.sms)


def _row_cycles(table: LookupTable, machine: Machine) -> tuple[float, float]:
    """Return the cycles of a row of a bag from DRAM, and of a row from the cache."""
    if not has_row_laws(machine):
        return DRAM_CYCLES, L2_CYCLES
    warps = minimum(table.bags * -(-table.width // WARP), BAG_WARPS) / machine.sheet.sms
    return FAR_CYCLES + WARP_CYCLES * warps, NEAR_CYCLES + WARP_CYCLES * warps


def bag_time(tables: Sequence[LookupTable], missing: Sequence[float], machine: Machine) -> float:
    """Return microseconds of the longest bag of any table, without its first row.

    One thread adds up a column of a bag, row by row, and writes the bag of each index before it
    loads the next row (torch, EmbeddingBag.cu): every row takes a load's latency. ``missing`` has
    the number of lookups of each table from DRAM. Indices come from the first-level cache. The
    first row is part of ``SMALL``, because even the smallest kernel waits for a load.
    """
    longest_time = 0.0
    for table, missed in zip(tables, missing, strict=True):
        share = missed / maximum(table.lookups, 1)
        dram_cycles, l2_cycles = _row_cycles(table, machine)
        cycles = l2_cycles + share * (dram_cycles - l2_cycles)
        longest_time = maximum(
            longest_time, machine.cycles(maximum(table.longest - 1.0, 0.0) * cycles)
        )
    return longest_time


def _traffic_time(
    tables: Sequence[LookupTable], missing: Sequence[float], machine: Machine, extra: float
) -> float:
    dram, cached = extra, 0.0
    for table, missed in zip(tables, missing, strict=True):
        output = sectors(table.size * table.width) * table.bags
        dram += table.lookups * table.index_size + output + missed * table.row_bytes
        cached += (
            table.bags * (TABLE_OFFSETS + OFFSETS) + (table.lookups - missed) * table.row_bytes
        )
    return maximum(machine.stream(dram), cached / machine.sheet.l2_bandwidth / 1e3)


LOOKUP_RATE = 0.52
"""Elements that a multiprocessor looks up in a cycle: ``index_select`` computes the offset of each
(medians of 0.46 to 0.57 on A40, A100 and H100 in f16, for any table; microsoft/vidur)."""


GATHERS_MEASURED_ON = {True: ("hopper",), False: ("ampere", "hopper")}
"""Architectures on which lookups were measured, by ``Software.gathers_rows``."""


def is_gather_measured(machine: Machine) -> bool:
    """Return whether ``index_select`` was measured on an architecture with this software."""
    return machine.sheet.architecture in GATHERS_MEASURED_ON[machine.software.gathers_rows]


def gather_time(table: LookupTable, machine: Machine) -> float:
    """Return microseconds to copy a row for each index, as ``index_select`` does.

    There are no bag offsets; DRAM moves indices, rows and output, the cache repeated rows. Older
    releases compute the offset of each element. The paper counts bytes alone.
    """
    missed = misses([table], machine)[0]
    dram = table.lookups * (table.index_size + table.row_bytes) + missed * table.row_bytes
    if machine.software.gathers_rows and not machine.paper:
        return picked_time(table.lookups, table.width, table.size, dram, machine)
    elements = 0 if machine.paper else table.lookups * table.width
    offset_time = machine.cycles(elements / (LOOKUP_RATE * machine.sheet.sms))
    cached = (table.lookups - missed) * table.row_bytes
    memory_time = maximum(machine.stream(dram), cached / machine.sheet.l2_bandwidth / 1e3)
    return maximum(memory_time, offset_time) + machine.start


def update_traffic_time(tables: Sequence[LookupTable], machine: Machine) -> float:
    """Return microseconds to read gradients and to read, change and write back the rows.

    A row's write waits for its read: cache and DRAM traffic add up (paper, III-B-1a). Bags are
    read row by row, as in a lookup.
    """
    missing = misses(tables, machine)
    dram = changed = cached = 0.0
    for table, missed in zip(tables, missing, strict=True):
        dram += table.lookups * table.index_size + table.row_bytes * table.bags
        changed += 2 * missed * table.row_bytes
        cached += table.bags * (TABLE_OFFSETS + OFFSETS)
        cached += 2 * (table.lookups - missed) * table.row_bytes
    streamed = machine.stream(dram) + machine.stream(changed, UPDATE_SHARE)
    traffic_time = streamed + cached / machine.sheet.l2_bandwidth / 1e3
    return maximum(traffic_time, bag_time(tables, missing, machine)) + machine.start
