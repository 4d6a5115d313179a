"""The kernels of one matrix product: tiled, small, or with a vector."""

from __future__ import annotations

from costmodels.formulas.intervals import BORROWED, FAIR, FEW
from costmodels.formulas.machine import SMALL, Machine, work
from costmodels.formulas.tiles import Product, tiled_time
from irgraph.ir.cost import Kernel
from irgraph.ir.points.many import most

TILED = "tiles x rounds over a multiprocessor's peak share (NVIDIA, Matrix Multiplication Guide)"
VECTOR = "roofline of memory [Williams 2009; paper, III-B-1b], share from traced gemv kernels"
SMALL_TILE = "rounds of one small tile a multiprocessor, from traced gemmSN kernels"

VECTOR_SHARE = 0.62
"""Share of DRAM bandwidth of products with a vector (traced gemv2T, gemvNSP, gemmk1: 0.5-0.7)."""

SMALL_SIDE, MOST_SMALL, SMALL_ROUND = 16, 128, 1.3
"""Batched products with a side this short, and none longer than that, run kernels of their own
(gemmSN), one block each, which take this many microseconds a round."""


def product_kernels(product: Product, machine: Machine) -> tuple[Kernel, ...]:
    """Return the kernels of a product: one, and a second where a split vector is summed up."""
    p = product
    batch = f"{p.batch} x " if p.batch > 1 else ""
    name = f"gemm {batch}{p.rows}x{p.columns}x{p.depth} {p.layout}"
    sizes: dict[str, float | str] = {
        "batch": p.batch, "m": p.rows, "n": p.columns, "k": p.depth, "dtype": p.dtype,
        "layout": p.layout,
    }  # fmt: skip
    learned = machine.ask("gemm", name, **sizes)
    learned = learned or machine.ask_other("gemm_units", name, "gemm", sizes)
    # beyond what was measured of fp8 the formula keeps its distance from wider types
    if learned and not (p.dtype.startswith("f8") and learned.outside):
        return (learned,)
    if 1 in (p.rows, p.columns, p.depth):
        return _vector(product, machine, name)
    memory = machine.stream(p.traffic)
    if _is_small(p):
        rounds = -(-p.batch // machine.sheet.sms)
        time, tile, formula = rounds * SMALL_ROUND, "small", SMALL_TILE
    else:
        time, tile = tiled_time(product, machine)
        formula = TILED
    units = machine.sheet.peak(p.dtype)[1]
    time = most(time, memory) + SMALL
    traced = machine.sheet.architecture in ("volta", "ampere", "pascal")
    outside = units or not traced or p.dtype not in ("f32", "f64")
    error = BORROWED if outside else FAIR
    return (work("gemm", f"{name} {tile}", time, error, formula, outside=outside),)


def _is_small(product: Product) -> bool:
    """Return whether a batched product runs a kernel for small matrices."""
    p = product
    if p.layout == "nt" or not p.batch > 1:
        return False
    return min(p.rows, p.columns) <= SMALL_SIDE and max(p.rows, p.columns, p.depth) <= MOST_SMALL


def _vector(product: Product, machine: Machine, name: str) -> tuple[Kernel, ...]:
    time = machine.stream(product.traffic, VECTOR_SHARE) + SMALL
    first = work("gemm", f"{name} vector", time, FAIR, VECTOR)
    if product.rows == 1 and product.depth >= 1024 and product.columns > 1:
        add_up = work("gemm", f"{name} add up the parts", SMALL + 1.5, FEW, VECTOR)
        return first, add_up
    return (first,)
