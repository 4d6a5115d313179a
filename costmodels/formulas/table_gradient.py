"""Gradients of one embedding table, dense or sparse, kernel by kernel as torch launches them."""

from __future__ import annotations

from costmodels.formulas.elements import ROOFLINE, streaming
from costmodels.formulas.intervals import BORROWED, CLOSE, FEW
from costmodels.formulas.lookup import CACHE_SHARE, SECTOR, Table
from costmodels.formulas.machine import Machine, work
from costmodels.formulas.rows import PICKED, atomic_time, blocks_time, measured, picked_time
from costmodels.formulas.scatter import sort_kernel, tiny_kernels, update_time
from costmodels.lookups.cache import Reads, lru_misses
from costmodels.lookups.popularity import UNIFORM, greatest_chance
from irgraph.ir.cost import Kernel
from irgraph.ir.points.point_values import maximum, minimum

PARTIAL = 10
"""Rows that one warp sums before the sums are summed (torch, EmbeddingBackwardKernel.cu)."""

FEATURE_MOST, FEATURE_WIDTH = 3072, 32
"""Most indices of the kernel that needs no sort, and columns of one of its blocks (torch,
Embedding.cu, ``embedding_backward_feature_kernel``)."""

PART_CYCLES = 90
"""Cycles until a block that adds up the parts of a row has added one more (H100 SXM 80 GB, torch
2.11: 190 us for the 4,400 of a row that 40 % of 110,682 lookups take)."""

ROW_CYCLES = 65
"""Cycles of each index in that kernel, whatever its row (the same card: 64 us for 1,815 indices, 10
for 356)."""

SUMS = (
    "rows of gradients, partial sums and distinct rows, moved once, or (H100) the blocks that "
    "start and the parts of the most popular row (EmbeddingBackwardKernel.cu)"
)
FEATURE = (
    "gradients and rows through the few multiprocessors that have a block (torch, Embedding.cu)"
)
COUNTS = "a number of 8 bytes (torch 1.11, EmbeddingBackwardKernel.cu and thrust's unique_by_key)"
ATOMIC = "a sector read and written for each element, in place (torch, EmbeddingBag.cu, max)"


def dense_gradient(one: Table, machine: Machine, weighted: bool = False) -> tuple[Kernel, ...]:
    """Return the kernels of a table's dense gradient from that of its bags.

    Zeros of the whole table; the indices copied, numbered and sorted by all their bits, however few
    the table's rows need (torch, EmbeddingBag.cu); where equal ones begin and how many sums they
    need (six kernels); the partial sums; and these summed into their rows.
    ``weighted`` says that each index has a weight of its own. Where the software counts rows and
    sums on the host, that waits for three counts.
    """
    name = f"{one.lookups}x{one.width}"
    distinct = one.distinct
    partial = distinct + (one.lookups - distinct) / PARTIAL
    sums = partial * one.width * max(one.size, 4)
    read = _bags_read(one, machine) + one.lookups * (2 * one.index_size + weighted * one.size)
    parts = _partial_sums_time(one, read + sums, machine)
    return (
        zeros(one, machine),
        *tiny_kernels(2, one.lookups, machine),
        sort_kernel(one.lookups, 8 * one.index_size, machine),
        *tiny_kernels(2, one.lookups, machine),
        *_counts(1, machine),
        *tiny_kernels(3, one.lookups, machine),
        *_counts(2, machine),
        *tiny_kernels(1, one.lookups, machine),
        work("embedding", f"partial sums {name}", parts, FEW, SUMS),
        work("embedding", f"sums to rows {name}", _sums_time(one, sums, machine), FEW, SUMS),
    )


def _partial_sums_time(one: Table, moved: float, machine: Machine) -> float:
    """Return microseconds to add up the parts of rows, a block each, over bytes that they move.

    As many blocks start as there can be parts (torch, EmbeddingBackwardKernel.cu).
    """
    blocks = one.lookups / PARTIAL + minimum(one.lookups, one.rows)
    return maximum(streaming(machine, moved), blocks_time(blocks, machine) + machine.start)


def _sums_time(one: Table, sums: float, machine: Machine) -> float:
    """Return microseconds to add up the parts of each row: a block walks all those of its own."""
    moved = update_time(machine, sums, one.distinct * one.row / 2)
    if not measured(machine) or not one.rows:
        return moved
    hottest = one.lookups * greatest_chance(one.indices, one.rows) / PARTIAL
    blocks = blocks_time(minimum(one.lookups, one.rows), machine)
    return maximum(moved, maximum(blocks, machine.cycles(hottest * PART_CYCLES)) + machine.start)


def _counts(count: int, machine: Machine) -> tuple[Kernel, ...]:
    """Return the copies of so many numbers that the host waits for before it can go on."""
    if not machine.software.counts_on_host:
        return ()
    time = machine.start
    copy = work("copy", "count to host", time, CLOSE, COUNTS, launch="memcpy", blocking=True)
    return (copy,) * count


def zeros(one: Table, machine: Machine) -> Kernel:
    """Return the fill of a gradient as large as the table."""
    name = f"fill {one.rows}x{one.width}"
    nbytes = one.rows * one.width * one.size
    return work("fill", name, streaming(machine, nbytes), CLOSE, ROOFLINE)


def few_rows_gradient(one: Table, machine: Machine) -> tuple[Kernel, ...]:
    """Return the dense gradient of at most ``FEATURE_MOST`` indices: one block for 32 columns.

    Each block reads all gradients of its columns and reads and writes the rows they belong to, at
    the bandwidth that one multiprocessor can have.
    """
    blocks = maximum(-(-one.width // FEATURE_WIDTH), 1)
    moved = 3 * one.lookups * one.row
    share = minimum(blocks / machine.sheet.sms, 1.0)
    walked = machine.cycles(ROW_CYCLES * one.lookups) if measured(machine) else 0.0
    time = maximum(machine.stream(moved, share), walked) + machine.start
    name = f"gradient of {one.lookups} rows x{one.width}"
    return zeros(one, machine), work("embedding", name, time, BORROWED, FEATURE, outside=True)


def max_gradient(one: Table, machine: Machine) -> tuple[Kernel, ...]:
    """Return the dense gradient of bags that took the greatest of each column."""
    elements = one.bags * one.width
    places = minimum(2 * SECTOR * elements, 2 * one.rows * one.row)
    time = update_time(machine, elements * (one.size + one.index_size), places / 2)
    if measured(machine):  # each element is added to a row of its own
        time = maximum(time, atomic_time(elements, one.size, 0.0, machine) + machine.start)
    name = f"max gradient {one.bags}x{one.width}"
    return zeros(one, machine), work("embedding", name, time, FEW, ATOMIC)


def sparse_gradient(one: Table, machine: Machine, factors: int = 0) -> tuple[Kernel, ...]:
    """Return a row of gradient for each index, scaled in place by each of ``factors`` vectors.

    Weights of the indices are such a factor, and so are the sizes of averaged bags, which two
    small kernels invert and spread over the indices.
    """
    size = one.lookups * one.row
    nbytes = size + one.lookups * one.index_size + _bags_read(one, machine)
    time, formula = streaming(machine, nbytes), ROOFLINE
    if measured(machine):
        time, formula = picked_time(one.lookups, one.width, one.size, nbytes, machine), PICKED
    name = f"gradient rows {one.lookups}x{one.width}"
    rows = work("embedding", name, time, CLOSE, formula)
    scaled = work(
        "elementwise",
        f"scale {one.lookups}x{one.width}",
        streaming(machine, 2 * size, elements=one.lookups * one.width),
        CLOSE,
        ROOFLINE,
    )
    return (
        rows,
        *(
            kernel
            for _ in range(factors)
            for kernel in (*tiny_kernels(2, one.lookups, machine), scaled)
        ),
    )


def weights_gradient(one: Table, machine: Machine) -> Kernel:
    """Return the gradient of the indices' weights: each row of the table times its bag's."""
    read = _bags_read(one, machine) + one.lookups * (2 * one.index_size + one.size)
    reads = Reads(one.indices, one.rows, one.lookups, one.row)
    missed = lru_misses([reads], CACHE_SHARE * machine.sheet.l2_bytes)[0] * one.row
    name = f"weight gradients {one.lookups}x{one.width}"
    return work("embedding", name, streaming(machine, read + missed), FEW, SUMS)


def _bags_read(one: Table, machine: Machine) -> float:
    """Return the bytes that come from DRAM as indices read their bags' gradients in any order."""
    if not one.bags:
        return 0.0
    bags = Reads(UNIFORM, one.bags, one.lookups, one.row)
    return lru_misses([bags], CACHE_SHARE * machine.sheet.l2_bytes)[0] * one.row
