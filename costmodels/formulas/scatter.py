"""Kernels that read or write rows at computed positions: sorts and sparse updates."""

from __future__ import annotations

from costmodels.formulas.elements import ROOFLINE, streaming
from costmodels.formulas.intervals import CLOSE, FEW, NEAR
from costmodels.formulas.machine import Machine, shape_text, work
from costmodels.formulas.rows import has_row_laws
from irgraph.ir.cost import Kernel
from irgraph.ir.points.point_values import minimum, to_int
from irgraph.ir.tensor import Tensor

UPDATE_SHARE = 0.8
"""Share of DRAM bandwidth of rows that are read, updated and written at random positions (the
traced embedding backward of DLRM_default on V100: 839 MB of rows in 1260 us)."""

SORT_TILE = 4096
"""Maximum number of pairs that a single block sorts (cub, DeviceRadixSortSingleTileKernel)."""

SORT_SMALL = 12.0
"""Microseconds of that kernel (traced: 11 for 36 keys, 13.4 for 351)."""

ONE_TILE, SWEEP_START, SWEEP, SWEEP_PAIR = 2304, 5.2, 7.3, 1.5e-5
"""Maximum number of pairs of eight bytes that a single block sorts in cub of CUDA 13; for more
pairs, microseconds of the histogram and its sums, of each pass, with the fill before it, and of a
pair in it (H100 SXM 80 GB, torch 2.11: 64 us for 9,435 keys of eight bytes, 88 for 204,800)."""

TILE_START, TILE_PASS, TILE_PAIR = 3.5, 0.9, 4e-4
"""Microseconds of fewer pairs: the start, each pass, and each pair in it (11 us for 154 keys of
eight bytes, 15 for 1,622)."""

SORT = "radix sort of 8 bits a pass, each reading twice and writing once [Merrill 2011]"
UPDATE = "distinct rows read and written at the share of bandwidth of random updates"


def update_time(machine: Machine, streamed: float, rows: float) -> float:
    """Return microseconds to stream ``streamed`` bytes and to update ``rows`` bytes of rows."""
    return machine.stream(streamed) + machine.stream(2 * rows, UPDATE_SHARE) + machine.start


def sort_kernel(count: int, key_bits: int, machine: Machine) -> Kernel:
    """Return the sort of pairs of 8-byte keys and values by ``key_bits`` low bits of the key."""
    passes = -(-key_bits // 8)
    if has_row_laws(machine) and count > ONE_TILE:
        time = SWEEP_START + passes * (SWEEP + SWEEP_PAIR * count)
        return work("index", f"sort {count} pairs, {passes} passes", time, NEAR, SORT)
    if has_row_laws(machine):
        time = TILE_START + passes * (TILE_PASS + TILE_PAIR * count)
        return work("index", f"sort {count} pairs", time, FEW, SORT)
    if count <= SORT_TILE:
        return work("index", f"sort {count} pairs", SORT_SMALL, FEW, SORT)
    time = passes * (machine.stream(3 * 16 * count) + 2 * machine.start)
    return work("index", f"sort {count} pairs, {passes} passes", time, FEW, SORT)


def tiny_kernels(count: int, elements: int, machine: Machine) -> tuple[Kernel, ...]:
    """Return ``count`` kernels that compute indices, each over a vector of 8-byte elements."""
    time = streaming(machine, 16 * elements)
    return (work("index", f"index arithmetic {elements}", time, CLOSE, ROOFLINE),) * count


def add_rows(target: Tensor, values: Tensor, machine: Machine) -> tuple[Kernel, ...]:
    """Return the kernels that add scaled rows at given positions, as in a sparse update.

    The values are scaled, the indices flattened, and ``index_add_`` updates the rows.
    """
    count, size = values.shape[0] if values.rank else 1, values.nbytes
    scale = work(
        "elementwise", f"mul {shape_text(values)}", streaming(machine, 2 * size), CLOSE, ROOFLINE
    )
    name = f"add {count} rows to {shape_text(target)}"
    rows = minimum(size, target.nbytes)
    update = work("index", name, update_time(machine, size, rows), FEW, UPDATE)
    return (scale, *tiny_kernels(1, to_int(count), machine), update)
