"""Products in 16 bits whose rows begin off 16 bytes, on Hopper: kernels of older matrix units.

Hopper's own instructions read operands through the tensor memory accelerator, which wants rows at
multiples of 16 bytes. For others cuBLAS 13 runs CUTLASS's kernels of Turing where some row begins
at an odd element (``cutlass_75_tensorop_bf16_s1688gemm_bf16_256x128_nn_align1``), and of Ampere
where all begin at even ones (``cutlass_80_tensorop_bf16_s16816gemm_..._align2``; at multiples of
four, too). They reach a seventh and a fifth of what the card does with aligned rows.
"""

from __future__ import annotations

import math

from costmodels.formulas.intervals import BORROWED, FEW
from costmodels.formulas.machine import Machine, work
from costmodels.formulas.tiles import SPLIT_COST, Product
from irgraph.ir.cost import Kernel
from irgraph.ir.dtypes import ITEMSIZE
from irgraph.ir.points.many import least, most

NOTE = "rows begin off 16 bytes: tiles of kernels for older matrix units (H100, torch 2.11)"

MEASURED = "H100-80GB-HBM3"
TARGETS = ("sm_90", "sm_100", "sm_103")
"""Cards whose own instructions want such rows; only one was measured, the others are taken to run
the same kernels as fast by multiprocessor and cycle."""

TYPES = ("f16", "bf16")

TILES = {
    1: ((256, 128, 543), (128, 128, 536), (64, 64, 253), (32, 32, 130)),
    2: (
        (256, 128, 796), (128, 256, 796), (256, 64, 536), (64, 256, 536), (128, 128, 536),
        (128, 64, 352), (64, 64, 352), (32, 32, 207), (16, 16, 122),
    ),
}  # fmt: skip
"""By elements at whose multiples all rows begin: columns and rows of a tile, by names of kernels,
and flop a cycle of a multiprocessor on it. These, ``ELEMENT`` and ``START`` were fitted to 167
batched products of an H100 SXM 80 GB (torch 2.11, cuBLAS 13), which they miss by 10 % on average;
the fastest tile counts, whichever cuBLAS took."""

ELEMENT = 0.257
"""Cycles in which a tile writes an element of its result: rows off 16 bytes are stored one or two
elements at a time."""

START = 2.0
"""Microseconds in which such a kernel starts and ends."""

SHARE, SLICE = 0.8, 32
"""Share of DRAM bandwidth that they reach at most, and depth to whose multiples sums are padded."""

SPLITS, DEEP = (2, 4, 8, 16), 512
"""Parts into which the depth of a single product is split, from this depth on."""


def unaligned(product: Product, step: int, name: str, machine: Machine) -> Kernel | None:
    """Return the kernel of a product whose rows begin at multiples of ``step`` elements.

    Nothing where another kernel runs: on other cards, and in other types.
    """
    if machine.sheet.target not in TARGETS or product.dtype not in TYPES:
        return None
    known = machine.sheet.name == MEASURED
    time = most(_tiled(product, step, machine), machine.stream(product.traffic, SHARE)) + START
    spread = FEW if known else BORROWED
    return work("gemm", f"{name} align{step}", time, spread, NOTE, outside=not known)


def _tiled(product: Product, step: int, machine: Machine) -> float:
    """Return microseconds on the fastest tile and split."""
    p, sms = product, machine.sheet.sms
    area = p.rows * p.columns * ITEMSIZE["f32"]
    best = math.inf
    for x, y, rate in TILES[step]:
        grid = p.batch * -(-p.columns // x) * -(-p.rows // y)
        for parts in (1, *(SPLITS if p.batch == 1 and p.depth >= DEEP else ())):
            depth = -(-p.depth // (SLICE * parts)) * SLICE
            cycles = x * y * (2 * depth / rate + ELEMENT)
            time = machine.cycles(-(-grid * parts // sms) * cycles)
            sums = SPLIT_COST + machine.stream(area * (parts + 1)) if parts > 1 else 0.0
            best = least(best, time + sums)
    return best
