"""The kernels of one matrix product: tiled, small, or with a vector."""

from __future__ import annotations

from msgspec.structs import replace

from costmodels.devices.sheet import UNITS_SHARE
from costmodels.formulas.hopper.products import batched_kernel, unaligned_kernel
from costmodels.formulas.intervals import BORROWED, FAIR, FEW
from costmodels.formulas.machine import SMALL, Machine, work
from costmodels.formulas.tiles import Product, tiled_time
from irgraph.ir.cost import Kernel
from irgraph.ir.dtypes import ITEMSIZE
from irgraph.ir.points.point_values import maximum, minimum

TILED = "tiles x rounds over a multiprocessor's peak share (NVIDIA, Matrix Multiplication Guide)"
VECTOR = "roofline of memory [Williams 2009; paper, III-B-1b], share from traced gemv kernels"
SMALL_TILE = "rounds of one small tile a multiprocessor, from traced gemmSN kernels"

VECTOR_SHARE = 0.62
"""Share of DRAM bandwidth of products with a vector (traced gemv2T, gemvNSP, gemmk1: 0.5-0.7)."""

SMALL_SIDE, MAX_SMALL_SIDE, SMALL_ROUND = 16, 128, 1.3
"""Maximum length of the shortest side and of all sides of batched products that run separate
kernels (gemmSN), one block each, and microseconds of a round of these."""

BORDER = 16
"""Alignment in bytes of the rows of both factors and of the result that the usual kernels of matrix
units require; for odd sides libraries choose kernels that load element by element."""

UNALIGNED, UNALIGNED_HALVED = 2.0, 1.4
"""Factors on the compute time of unaligned products. GeForce cards, whose units run at half rate:
156 TFLOP/s in bf16 with sides of 2,040 and 107 to 116 with odd ones around it on an RTX 4090
(pytorch/pytorch issue 181718, which names the kernels: ``s1688gemm ... align1``). Others: with a
vocabulary of 50,257 instead of 50,304, a step of GPT-2 on an A100 is about 25 % longer (A.
Karpathy, February 2023; 30 % in intel/torch-xpu-ops issue 1129); the products with it are about a
quarter of the step."""

ALIGNED = ("f16", "bf16", "f32", "tf32")
"""Types with kernels for unaligned rows; narrower types do not support such sides."""

BORDERS = (4, 8, BORDER)
"""Alignments in bytes to check, in order."""

HALF_BORDER = 0.5
"""Share of the surcharge for rows aligned to 8 bytes: an assumption."""

UNALIGNED_NOTE = "rows begin off 16 bytes: slower kernels (torch issue 181718; GPT-2's vocabulary)"


def product_kernels(product: Product, machine: Machine) -> tuple[Kernel, ...]:
    """Return the kernels of a product: one, and a second if parts of a vector are summed up."""
    kernel = batched_kernel(product, _name(product), machine)
    if kernel is not None:
        return (kernel,)
    alignment = _costly_alignment(product, machine)
    if alignment == 0:
        return _aligned_kernels(product, machine)
    kernel = unaligned_product(product, machine)
    if kernel is not None:
        return (kernel,)
    surcharge = (UNALIGNED_HALVED if machine.sheet.halved else UNALIGNED) - 1
    surcharge *= HALF_BORDER if alignment == BORDER // 2 else 1.0
    return _with_surcharge(_aligned_kernels(product, machine), product, machine, surcharge)


def unaligned_product(product: Product, machine: Machine) -> Kernel | None:
    """Return the separate kernel of a product with unaligned rows, if there is one."""
    alignment = _costly_alignment(product, machine)
    step = 1 if alignment == ITEMSIZE[product.dtype] else 2
    return unaligned_kernel(product, step, _name(product), machine) if alignment else None


def _costly_alignment(product: Product, machine: Machine) -> int:
    """Return the alignment of all rows in bytes, 0 if it costs nothing."""
    p, sheet = product, machine.sheet
    vector = 1 in (p.rows, p.columns, p.depth)
    other = machine.paper or sheet.is_host or p.dtype not in ALIGNED
    if vector or other or not sheet.peak(p.dtype)[1]:
        return 0
    sides = [p.columns]
    if p.layout[0] == "t" or p.layout[1] == "n":
        sides.append(p.depth)
    if p.layout[1] == "t":
        sides.append(p.rows)
    remainders = [side * ITEMSIZE[p.dtype] % BORDER for side in sides]
    for step in BORDERS:
        if any(remainder % step != 0 for remainder in remainders):
            return step // 2
    return 0


def _with_surcharge(
    kernels: tuple[Kernel, ...], product: Product, machine: Machine, surcharge: float
) -> tuple[Kernel, ...]:
    """Add a surcharge to a product's compute time, but not to the time of moving its bytes."""
    p, sheet = product, machine.sheet
    first, *rest = kernels
    reached = sheet.reached_share(p.dtype, sheet.measured_share(p.dtype) or UNITS_SHARE)
    flop = 2.0 * p.batch * p.rows * p.columns * p.depth
    extra_time = surcharge * minimum(flop / (sheet.peak(p.dtype)[0] * reached) / 1e3, first.time)
    spread = first.spread + BORROWED * extra_time
    formula = f"{first.formula}; {UNALIGNED_NOTE}"
    slower = replace(
        first, time=first.time + extra_time, spread=spread, outside=True, formula=formula
    )
    return slower, *rest


def _aligned_kernels(product: Product, machine: Machine) -> tuple[Kernel, ...]:
    p, name = product, _name(product)
    sizes: dict[str, float | str] = {
        "batch": p.batch,
        "m": p.rows,
        "n": p.columns,
        "k": p.depth,
        "dtype": p.dtype,
        "layout": p.layout,
    }
    learned = machine.learned_kernel("gemm", name, **sizes)
    learned = learned or machine.kernel_of_model("gemm_units", name, "gemm", sizes)
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
    time = maximum(time, memory) + SMALL
    traced = machine.sheet.architecture in ("volta", "ampere", "pascal")
    outside = units or not traced or p.dtype not in ("f32", "f64")
    error = BORROWED if outside else FAIR
    return (work("gemm", f"{name} {tile}", time, error, formula, outside=outside),)


def _name(product: Product) -> str:
    p = product
    batch = f"{p.batch} x " if p.batch > 1 else ""
    return f"gemm {batch}{p.rows}x{p.columns}x{p.depth} {p.layout}"


def _is_small(product: Product) -> bool:
    """Return whether a batched product runs a kernel for small matrices."""
    p = product
    if p.layout == "nt" or not p.batch > 1:
        return False
    return (
        min(p.rows, p.columns) <= SMALL_SIDE and max(p.rows, p.columns, p.depth) <= MAX_SMALL_SIDE
    )


def _vector(product: Product, machine: Machine, name: str) -> tuple[Kernel, ...]:
    time = machine.stream(product.traffic, VECTOR_SHARE) + SMALL
    first = work("gemm", f"{name} vector", time, FAIR, VECTOR)
    if product.rows == 1 and product.depth >= 1024 and product.columns > 1:
        add_up = work("gemm", f"{name} add up the parts", SMALL + 1.5, FEW, VECTOR)
        return first, add_up
    return (first,)
