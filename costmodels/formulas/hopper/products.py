"""Products on Hopper that its own matrix units do not compute.

These are products in 16 bits whose rows are not aligned to 16 bytes, and batched ones in f32.
Hopper's own instructions read operands through the tensor memory accelerator, which requires rows
at multiples of 16 bytes. For others cuBLAS 13 runs CUTLASS's kernels of Turing if some row starts
at an odd element (``cutlass_75_tensorop_bf16_s1688gemm_bf16_256x128_nn_align1``), and of Ampere
if all start at even ones (``cutlass_80_tensorop_bf16_s16816gemm_..._align2``; also at multiples of
four). They reach a seventh and a fifth of the card's rate with aligned rows.
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
"""Targets whose own instructions require aligned rows; only one was measured, the others are
assumed to run the same kernels at the same rate per multiprocessor and cycle."""

TYPES = ("f16", "bf16")

ODD = ((256, 128, 543), (128, 128, 536), (64, 64, 253), (32, 32, 130))
EVEN = (
    (256, 128, 796), (128, 256, 796), (256, 64, 536), (64, 256, 536), (128, 128, 536),
    (128, 64, 352), (64, 64, 352), (32, 32, 207), (16, 16, 122),
)  # fmt: skip
KERNELS = {step: Kernels(tiles, 0.257, 0.0, 32, 2.0) for step, tiles in ((1, ODD), (2, EVEN))}
"""Kernels by alignment of all rows, in elements; tiles by names of kernels. Fitted to 167 batched
products of an H100 SXM 80 GB (torch 2.11, cuBLAS 13), with a mean error of 10 %. Results are
stored one or two elements at a time."""


def unaligned_kernel(product: Product, step: int, name: str, machine: Machine) -> Kernel | None:
    """Return the kernel of a product whose rows start at multiples of ``step`` elements.

    Return ``None`` if another kernel runs: on other cards, and in other types.
    """
    if machine.sheet.target not in TARGETS or product.dtype not in TYPES:
        return None
    is_measured = machine.sheet.name == MEASURED
    time = KERNELS[step].time(product, machine)
    spread = FEW if is_measured else BORROWED
    return work("gemm", f"{name} align{step}", time, spread, NOTE, outside=not is_measured)


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


def batched_kernel(product: Product, name: str, machine: Machine) -> Kernel | None:
    """Return the kernel of a batched f32 product on Hopper's plain cores, ``None`` for others."""
    p, sheet = product, machine.sheet
    is_unbatched = not p.batch > 1 or 1 in (p.rows, p.columns, p.depth)
    if sheet.target != TARGETS[0] or p.dtype != "f32" or is_unbatched or machine.paper:
        return None
    if sheet.peak("f32")[1]:
        return None
    is_measured = sheet.name == MEASURED
    time = SINGLE.time(product, machine)
    return work(
        "gemm", name, time, FEW if is_measured else BORROWED, BATCHED, outside=not is_measured
    )
