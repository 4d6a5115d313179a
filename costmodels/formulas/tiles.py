"""Matrix products as tiles on multiprocessors: a roofline with waves and quantisation.

A library kernel computes the result in tiles, each by one block of threads on one
multiprocessor; a multiprocessor computes its tiles in sequential rounds. Constants come from
kernels of named tile size in the training split of NeuSight's measurements (V100, A100, P100) and
from the 31 products in the traced V100 steps of DLRM at batch 2048.
"""

from __future__ import annotations

import math
from functools import cache

from msgspec import Struct

from costmodels.devices.sheet import HALVED
from costmodels.formulas.machine import Machine
from irgraph.ir.dtypes import ITEMSIZE
from irgraph.ir.points.choices import min_over_choices, stack_choices, stack_conditions
from irgraph.ir.points.point_values import if_else, maximum, minimum, point_count

Menu = tuple[tuple[int, int, float], ...]
"""Tiles: columns and rows of the result, and the share of the peak that a tile reaches."""

TILES: dict[str, Menu] = {
    "pascal": ((32, 128, 0.68), (128, 32, 0.60), (64, 64, 0.67)),
    "volta": (
        (128, 128, 0.98), (128, 64, 0.955), (128, 32, 0.87), (32, 128, 0.87),
        (64, 32, 0.78), (32, 64, 0.78), (32, 32, 0.66),
    ),
    "ampere": (
        (128, 128, 0.88), (128, 64, 0.83), (128, 32, 0.76), (32, 128, 0.76),
        (64, 32, 0.68), (32, 64, 0.68), (32, 32, 0.61),
    ),
    "units": ((256, 128, 0.75), (128, 128, 0.72), (128, 64, 0.65), (64, 64, 0.55)),
}  # fmt: skip
"""Median share of the peak, padding included, of kernels over 1 ms in the training split; V100's
are scaled by 1.08, because that card ran 8 % below others of its kind. ``units`` are the matrix
units, without a measurement."""

TILE_ARCHITECTURES = {
    "turing": "volta", "ada": "ampere", "hopper": "ampere", "blackwell": "ampere",
    "cdna2": "ampere", "cdna3": "ampere",
}  # fmt: skip
"""Architectures with measured tiles by the names of architectures without."""

TRANSPOSED = ("tn", "tt")
"""Layouts that read the second factor across its rows: their kernels reach less of the peak."""

STRAIGHT_GAIN = 1.07
"""Factor on the share of the peak of kernels that read both factors along their rows."""

DEEP_TILES = ((128, 32), (32, 128))
"""Tiles that cuBLAS 11 has for weight gradients (``nt``), by kernel names in the traces."""

ROUND, BATCHED_ROUND = 0.5, 0.25
"""Microseconds to start and drain a tile, of single products and of batched ones, whose many tiles
on a multiprocessor hide it in part."""

MEMORY_SHARE = 0.8
"""Share of DRAM bandwidth of memory-bound products."""


class Product(Struct, frozen=True):
    """``batch`` products of rows x depth by depth x columns.

    ``layout`` names the factors as cuBLAS sees them, column factor first: ``tn`` is a linear
    layer's forward, ``nn`` its input gradient, ``nt`` its weight gradient. ``stored`` is the number
    of bytes in memory if it is less than both factors and the result: a convolution's windows
    overlap.
    """

    batch: int
    rows: int
    columns: int
    depth: int
    dtype: str
    layout: str
    stored: int | None = None

    @property
    def traffic(self) -> int:
        """Size of both factors and the result in bytes."""
        sides = self.rows * self.depth + self.depth * self.columns + self.rows * self.columns
        return self.batch * sides * ITEMSIZE[self.dtype]


def tile_menu(product: Product, machine: Machine) -> Menu:
    """Return the library's tiles for a product, with their shares of the peak."""
    architecture = machine.sheet.architecture
    kind = TILE_ARCHITECTURES.get(architecture, architecture)
    kind = kind if kind in BATCHED else "ampere"
    units = machine.sheet.peak(product.dtype)[1]
    tiles = TILES["units" if units else kind]
    if units and machine.sheet.halved and product.dtype in HALVED:
        return tuple(
            (x, y, machine.sheet.reached_share(product.dtype, share)) for x, y, share in tiles
        )
    gain = 1.0 if product.layout in TRANSPOSED or units else STRAIGHT_GAIN
    scaled = tuple((x, y, min(share * gain, 0.985)) for x, y, share in tiles)
    scaled = _scaled_to_measured(scaled, machine.sheet.measured_share(product.dtype))
    uses_batched_tiles = product.batch > 1 or (
        kind == "pascal" and product.layout not in TRANSPOSED
    )
    if uses_batched_tiles and not units:
        batched = tuple((x, y, min(share * gain, 0.985)) for x, y, share in BATCHED[kind])
        return _scaled_to_measured(batched, machine.sheet.measured_share(product.dtype))
    if product.layout == "nt" and not machine.software.split_k_freely:
        deep = tuple(t for t in scaled if t[:2] in DEEP_TILES)
        return deep or scaled
    return scaled


def _scaled_to_measured(tiles: Menu, reached: float | None) -> Menu:
    """Scale tiles so that the best one is at most as fast as measured large products."""
    best = max(share for _, _, share in tiles)
    factor = 1.0 if reached is None else min(reached / best, 1.0)
    return tuple((x, y, share * factor) for x, y, share in tiles)


BATCHED: dict[str, Menu] = {
    "pascal": ((128, 64, 0.85),),
    "volta": ((64, 64, 0.87), (32, 128, 0.87)),
    "ampere": ((128, 128, 0.885),),
}
"""Tiles of batched products, by kernel names in the training split (for at least 64 products) and
in the traces."""

BUSY_BLOCKS = {(64, 64): 4}
"""Number of blocks that occupy a multiprocessor, for tiles with few threads: one to four 64x64
tiles take the same time (V100's training split)."""


def tiled_time(product: Product, machine: Machine) -> tuple[float, str]:
    """Return microseconds on the fastest tile and split, with their names."""
    sizes = product.batch, product.rows, product.columns, product.depth
    if 0 in sizes:
        return 0.0, "nothing to do"
    best, tile_name = math.inf, ""
    memory, parts = _memory(product, machine), _Parts(product, machine)
    area = product.batch * product.rows * product.columns * ITEMSIZE[product.dtype]
    peak = machine.sheet.peak(product.dtype)[0] / machine.sheet.sms * 1e3
    for x, y, share in tile_menu(product, machine):
        grid = product.batch * parts.columns(x) * parts.rows(y)
        write = machine.stream(area / grid * minimum(grid, machine.sheet.sms))
        candidates = tuple(s for s in split_choices(product, grid, machine) if s[1] is not False)
        for candidate_group in (
            (candidates,) if point_count(*sizes) else ((candidate,) for candidate in candidates)
        ):
            split_counts, allowed = zip(*candidate_group, strict=True)
            split = stack_choices(split_counts)
            compute = 2 * x * y * parts.depth(split_counts) / (peak * share)
            busy = _rounds(product, machine, (x, y), grid * split, compute) + write
            time = if_else(
                stack_conditions(allowed),
                parts.with_sum(maximum(busy, memory), split_counts),
                math.inf,
            )
            if not point_count(time) and time < best:
                tile_name = f"{x}x{y}" + (f" split {split}" if split > 1 else "")
            best = minimum(best, min_over_choices(time))
    return best, tile_name


def _memory(product: Product, machine: Machine) -> float:
    """Return microseconds to move a product's bytes; overlapping ones come from L2 again."""
    if product.stored is None:
        return machine.stream(product.traffic, MEMORY_SHARE)
    cached = product.traffic / machine.sheet.l2_bandwidth / 1e3
    return maximum(machine.stream(minimum(product.stored, product.traffic), MEMORY_SHARE), cached)


def split_choices(product: Product, grid: int, machine: Machine) -> tuple[tuple[int, bool], ...]:
    """Return numbers of parts of the summed dimension, each with whether a grid allows it.

    The grid is a number of tiles. Numbers that no grid allows are omitted.
    """
    sms = machine.sheet.sms
    if product.batch > 1 or product.depth < 256:
        return ((1, True),)
    if machine.software.split_k_freely:
        few = grid * 4 <= sms
        deep = tuple((s, grid * s <= sms) for s in (32, 64, 128))
        return (*((s, True if s <= 4 else few) for s in (1, 2, 3, 4, 8, 16)), *deep)
    if product.depth < maximum(product.rows, product.columns):
        return ((1, True),)
    if grid >= sms:
        return tuple((s, True) for s in (1, 2, 3, 4))
    few = grid * 5 <= sms
    deep = tuple((s, grid * s <= sms) for s in (32, 64, 128))
    return ((1, True), *((s, few) for s in (2, 4, 8, 16)), *deep)


SPLIT_COST = 5.0
"""Additional microseconds of a split: clearing semaphores, or the second kernel's start (3-4
us)."""


class _Parts:
    """Parts of a product, each computed once for all tiles and splits."""

    def __init__(self, product: Product, machine: Machine) -> None:
        self.product = product
        self.columns = cache(lambda side: -(-product.columns // side))
        self.rows = cache(lambda side: -(-product.rows // side))
        # of a part, in whole slices of eight
        self.depth = cache(lambda ways: -(-product.depth // (8 * stack_choices(ways))) * 8)
        nbytes = product.rows * product.columns * ITEMSIZE[product.dtype]
        rate = machine.sheet.l2_bandwidth
        self.sum = cache(lambda ways: nbytes * stack_choices(ways) * 2 / rate / 1e3)

    def with_sum(self, time: float, split_counts: tuple[int, ...]) -> float:
        """Return the time of all parts of splits, including their sum."""
        if split_counts == (1,):
            return time
        return if_else(
            stack_choices(split_counts) == 1, time, time + SPLIT_COST + self.sum(split_counts)
        )


def _rounds(
    product: Product, machine: Machine, tile: tuple[int, int], blocks: int, compute: float
) -> float:
    """Return microseconds of the rounds of the busiest multiprocessor, each with its start."""
    start = BATCHED_ROUND if product.batch > 1 else ROUND
    group = BUSY_BLOCKS.get(tile, 1)
    rounds = -(-blocks // (machine.sheet.sms * group)) * group
    return rounds * (compute + start)
