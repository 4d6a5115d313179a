"""Products on Hopper that its own matrix units do not compute.

Such are products in 16 bits whose rows begin off 16 bytes, and batched ones in f32. Hopper's own
instructions read operands through the tensor memory accelerator, which wants rows at
multiples of 16 bytes. For others cuBLAS 13 runs CUTLASS's kernels of Turing where some row begins
at an odd element (``cutlass_75_tensorop_bf16_s1688gemm_bf16_256x128_nn_align1``), and of Ampere
where all begin at even ones (``cutlass_80_tensorop_bf16_s16816gemm_..._align2``; at multiples of
four, too). They reach a seventh and a fifth of what the card does with aligned rows.
"""

from __future__ import annotations

from costmodels.formulas.hopper.cycles import Kernels
from costmodels.formulas.intervals import BORROWED, FEW
from costmodels.formulas.machine import Machine, work
from costmodels.formulas.tiles import Product
from irgraph.ir.cost import Kernel

NOTE = "rows begin off 16 bytes: tiles of kernels for older matrix units (H100, torch 2.11)"

MEASURED = "H100-80GB-HBM3"
TARGETS = ("sm_90", "sm_100", "sm_103")
"""Cards whose own instructions want such rows; only one was measured, the others are taken to run
the same kernels as fast by multiprocessor and cycle."""

TYPES = ("f16", "bf16")

ODD = ((256, 128, 543), (128, 128, 536), (64, 64, 253), (32, 32, 130))
EVEN = (
    (256, 128, 796), (128, 256, 796), (256, 64, 536), (64, 256, 536), (128, 128, 536),
    (128, 64, 352), (64, 64, 352), (32, 32, 207), (16, 16, 122),
)  # fmt: skip
KERNELS = {step: Kernels(tiles, 0.257, 0.0, 32, 2.0) for step, tiles in ((1, ODD), (2, EVEN))}
"""By elements at whose multiples all rows begin; tiles by names of kernels. Fitted to 167 batched
products of an H100 SXM 80 GB (torch 2.11, cuBLAS 13), which they miss by 10 % on average. Results
are stored one or two elements at a time."""


def unaligned(product: Product, step: int, name: str, machine: Machine) -> Kernel | None:
    """Return the kernel of a product whose rows begin at multiples of ``step`` elements.

    Nothing where another kernel runs: on other cards, and in other types.
    """
    if machine.sheet.target not in TARGETS or product.dtype not in TYPES:
        return None
    known = machine.sheet.name == MEASURED
    time = KERNELS[step].time(product, machine)
    spread = FEW if known else BORROWED
    return work("gemm", f"{name} align{step}", time, spread, NOTE, outside=not known)


SINGLE = Kernels(
    (
        (128, 128, 176), (128, 64, 165), (64, 128, 165), (64, 64, 157), (128, 32, 119),
        (32, 128, 119), (64, 32, 119), (32, 64, 119), (32, 32, 57),
    ),
    0.198, 356.0, 8, 2.1,
)  # fmt: skip
"""Batched products in f32 on Hopper's plain cores (``sm80_xmma_gemm_f32f32_..._tilesize64x64x8``):
fitted to 203 of them (torch 2.11, cuBLAS 13), 8 % off on average."""

BATCHED = "tiles of cuBLAS's batched f32 kernels, by cycles (H100, torch 2.11)"


def batched(product: Product, name: str, machine: Machine) -> Kernel | None:
    """Return the kernel of a batched product in f32 on Hopper's plain cores; nothing for others."""
    p, sheet = product, machine.sheet
    alone = not p.batch > 1 or 1 in (p.rows, p.columns, p.depth)
    if sheet.target != TARGETS[0] or p.dtype != "f32" or alone or machine.paper:
        return None
    if sheet.peak("f32")[1]:
        return None
    known = sheet.name == MEASURED
    time = SINGLE.time(product, machine)
    return work("gemm", name, time, FEW if known else BORROWED, BATCHED, outside=not known)
