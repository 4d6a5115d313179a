"""Gradients of one embedding table, dense or sparse, kernel by kernel as torch launches them."""

from __future__ import annotations

from costmodels.formulas.elements import ROOFLINE, streaming
from costmodels.formulas.intervals import BORROWED, CLOSE, FEW
from costmodels.formulas.lookup import CACHE_SHARE, SECTOR, LookupTable
from costmodels.formulas.machine import Machine, work
from costmodels.formulas.rows import PICKED, atomic_time, blocks_time, has_row_laws, picked_time
from costmodels.formulas.scatter import sort_kernel, tiny_kernels, update_time
from costmodels.lookups.cache import Reads, lru_misses
from costmodels.lookups.popularity import UNIFORM, max_chance
from irgraph.ir.cost import Kernel
from irgraph.ir.points.point_values import maximum, minimum

PARTIAL = 10
"""Rows of a partial sum, which one warp adds up (torch, EmbeddingBackwardKernel.cu)."""

MAX_FEATURE_INDICES, FEATURE_WIDTH = 3072, 32
"""Maximum number of indices of the kernel that needs no sort, and columns of one of its blocks
(torch, Embedding.cu, ``embedding_backward_feature_kernel``)."""

PART_CYCLES = 90
"""Cycles in which a block adds one part of a row (H100 SXM 80 GB, torch 2.11: 190 us for the 4,400
parts of a row with 40 % of 110,682 lookups)."""

ROW_CYCLES = 65
"""Cycles of each index in that kernel, for any row (the same card: 64 us for 1,815 indices, 10 for
356)."""

SUMS = (
    "rows of gradients, partial sums and distinct rows, moved once, or (H100) the blocks that "
    "start and the parts of the most popular row (EmbeddingBackwardKernel.cu)"
)
FEATURE = (
    "gradients and rows through the few multiprocessors that have a block (torch, Embedding.cu)"
)
COUNTS = "a number of 8 bytes (torch 1.11, EmbeddingBackwardKernel.cu and thrust's unique_by_key)"
ATOMIC = "a sector read and written for each element, in place (torch, EmbeddingBag.cu, max)"


def dense_gradient(
    table: LookupTable, machine: Machine, weighted: bool = False
) -> tuple[Kernel, ...]:
    """Return the kernels of a table's dense gradient from the gradient of its bags.

    They fill the whole table with zeros; copy, number and sort the indices by all their bits,
    regardless of the table's rows (torch, EmbeddingBag.cu); find the starts of equal indices and
    the number of their sums (six kernels); compute the partial sums; and add these to their rows.
    ``weighted``: whether each index has a weight. If the software counts rows and sums on the host,
    the host waits for three counts.
    """
    name = f"{table.lookups}x{table.width}"
    distinct = table.distinct
    partial = distinct + (table.lookups - distinct) / PARTIAL
    sums = partial * table.width * max(table.size, 4)
    read = _bag_bytes_read(table, machine) + table.lookups * (
        2 * table.index_size + weighted * table.size
    )
    parts = _partial_sums_time(table, read + sums, machine)
    return (
        zero_fill(table, machine),
        *tiny_kernels(2, table.lookups, machine),
        sort_kernel(table.lookups, 8 * table.index_size, machine),
        *tiny_kernels(2, table.lookups, machine),
        *_host_counts(1, machine),
        *tiny_kernels(3, table.lookups, machine),
        *_host_counts(2, machine),
        *tiny_kernels(1, table.lookups, machine),
        work("embedding", f"partial sums {name}", parts, FEW, SUMS),
        work("embedding", f"sums to rows {name}", _sums_time(table, sums, machine), FEW, SUMS),
    )


def _partial_sums_time(table: LookupTable, nbytes: float, machine: Machine) -> float:
    """Return microseconds of the partial sums of rows, a block each, which move ``nbytes``.

    The number of blocks is the maximum number of parts (torch, EmbeddingBackwardKernel.cu).
    """
    blocks = table.lookups / PARTIAL + minimum(table.lookups, table.rows)
    return maximum(streaming(machine, nbytes), blocks_time(blocks, machine) + machine.start)


def _sums_time(table: LookupTable, sums: float, machine: Machine) -> float:
    """Return microseconds to add up the parts of each row, in sequence by one block."""
    memory_time = update_time(machine, sums, table.distinct * table.row_bytes / 2)
    if not has_row_laws(machine) or not table.rows:
        return memory_time
    hottest_parts = table.lookups * max_chance(table.indices, table.rows) / PARTIAL
    blocks = blocks_time(minimum(table.lookups, table.rows), machine)
    return maximum(
        memory_time, maximum(blocks, machine.cycles(hottest_parts * PART_CYCLES)) + machine.start
    )


def _host_counts(count: int, machine: Machine) -> tuple[Kernel, ...]:
    """Return the copies of ``count`` numbers that the host waits for, if it does."""
    if not machine.software.counts_on_host:
        return ()
    time = machine.start
    copy = work("copy", "count to host", time, CLOSE, COUNTS, launch="memcpy", blocking=True)
    return (copy,) * count


def zero_fill(table: LookupTable, machine: Machine) -> Kernel:
    """Return the zero fill of a gradient of the table's size."""
    name = f"fill {table.rows}x{table.width}"
    nbytes = table.rows * table.width * table.size
    return work("fill", name, streaming(machine, nbytes), CLOSE, ROOFLINE)


def few_rows_gradient(table: LookupTable, machine: Machine) -> tuple[Kernel, ...]:
    """Return the dense gradient of few indices (``MAX_FEATURE_INDICES``), by blocks of 32 columns.

    Each block reads all gradients of its columns and reads and writes their rows, at the bandwidth
    of one multiprocessor.
    """
    blocks = maximum(-(-table.width // FEATURE_WIDTH), 1)
    nbytes = 3 * table.lookups * table.row_bytes
    share = minimum(blocks / machine.sheet.sms, 1.0)
    walk_time = machine.cycles(ROW_CYCLES * table.lookups) if has_row_laws(machine) else 0.0
    time = maximum(machine.stream(nbytes, share), walk_time) + machine.start
    name = f"gradient of {table.lookups} rows x{table.width}"
    return zero_fill(table, machine), work("embedding", name, time, BORROWED, FEATURE, outside=True)


def max_gradient(table: LookupTable, machine: Machine) -> tuple[Kernel, ...]:
    """Return the dense gradient of bags pooled by the maximum of each column."""
    elements = table.bags * table.width
    update_bytes = minimum(2 * SECTOR * elements, 2 * table.rows * table.row_bytes)
    time = update_time(machine, elements * (table.size + table.index_size), update_bytes / 2)
    if has_row_laws(machine):  # each element is added to another row
        time = maximum(time, atomic_time(elements, table.size, 0.0, machine) + machine.start)
    name = f"max gradient {table.bags}x{table.width}"
    return zero_fill(table, machine), work("embedding", name, time, FEW, ATOMIC)


def sparse_gradient(table: LookupTable, machine: Machine, factors: int = 0) -> tuple[Kernel, ...]:
    """Return the kernels of a gradient row for each index, scaled by each of ``factors`` vectors.

    Factors are weights of the indices and sizes of averaged bags, which two small kernels invert
    and expand to the indices.
    """
    size = table.lookups * table.row_bytes
    nbytes = size + table.lookups * table.index_size + _bag_bytes_read(table, machine)
    time, formula = streaming(machine, nbytes), ROOFLINE
    if has_row_laws(machine):
        time, formula = picked_time(table.lookups, table.width, table.size, nbytes, machine), PICKED
    name = f"gradient rows {table.lookups}x{table.width}"
    rows = work("embedding", name, time, CLOSE, formula)
    scaled = work(
        "elementwise",
        f"scale {table.lookups}x{table.width}",
        streaming(machine, 2 * size, elements=table.lookups * table.width),
        CLOSE,
        ROOFLINE,
    )
    return (
        rows,
        *(
            kernel
            for _ in range(factors)
            for kernel in (*tiny_kernels(2, table.lookups, machine), scaled)
        ),
    )


def weights_gradient(table: LookupTable, machine: Machine) -> Kernel:
    """Return the gradient of the indices' weights: each row of the table times its bag's."""
    read = _bag_bytes_read(table, machine) + table.lookups * (2 * table.index_size + table.size)
    reads = Reads(table.indices, table.rows, table.lookups, table.row_bytes)
    missed = lru_misses([reads], CACHE_SHARE * machine.sheet.l2_bytes)[0] * table.row_bytes
    name = f"weight gradients {table.lookups}x{table.width}"
    return work("embedding", name, streaming(machine, read + missed), FEW, SUMS)


def _bag_bytes_read(table: LookupTable, machine: Machine) -> float:
    """Return the bytes read from DRAM if indices read their bags' gradients in any order."""
    if not table.bags:
        return 0.0
    bags = Reads(UNIFORM, table.bags, table.lookups, table.row_bytes)
    return lru_misses([bags], CACHE_SHARE * machine.sheet.l2_bytes)[0] * table.row_bytes
