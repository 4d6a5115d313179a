"""The kernels of one matrix product: tiled, small, or with a vector."""

from __future__ import annotations

from msgspec.structs import replace

from costmodels.devices.sheet import UNITS_SHARE
from costmodels.formulas.hopper.products import batched, unaligned
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

SMALL_SIDE, MOST_SMALL, SMALL_ROUND = 16, 128, 1.3
"""Batched products with a side this short, and none longer than that, run kernels of their own
(gemmSN), one block each, which take this many microseconds a round."""

BORDER = 16
"""Bytes at which rows of both factors and of the result must begin for the kernels of matrix units
that libraries otherwise choose; with odd sides they take ones that load element by element."""

UNALIGNED, UNALIGNED_HALVED = 2.0, 1.4
"""How many times as long those compute. GeForce cards, whose units run at half rate: 156 TFLOP/s in
bf16 with sides of 2,040 and 107 to 116 with odd ones around it on an RTX 4090 (pytorch/pytorch
issue 181718, which names the kernels: ``s1688gemm ... align1``). Others: a vocabulary of 50,257 in
place of 50,304 makes a step of GPT-2 on an A100 some 25 % longer (A. Karpathy, February 2023; 30 %
in intel/torch-xpu-ops issue 1129); the products with it are about a quarter of the step."""

ALIGNED = ("f16", "bf16", "f32", "tf32")
"""Types whose kernels want borders; narrower ones refuse such sides."""

BORDERS = (4, 8, BORDER)
"""Multiples in bytes that are asked for one after the other."""

HALF_BORDER = 0.5
"""Share of that surcharge where rows begin at 8 bytes: an assumption."""

UNALIGNED_NOTE = "rows begin off 16 bytes: slower kernels (torch issue 181718; GPT-2's vocabulary)"


def product_kernels(product: Product, machine: Machine) -> tuple[Kernel, ...]:
    """Return the kernels of a product: one, and a second where a split vector is summed up."""
    own = batched(product, _name(product), machine)
    if own is not None:
        return (own,)
    left = _off_border(product, machine)
    if left == 0:
        return _aligned_kernels(product, machine)
    own = odd_product(product, machine)
    if own is not None:
        return (own,)
    surcharge = (UNALIGNED_HALVED if machine.sheet.halved else UNALIGNED) - 1
    surcharge *= HALF_BORDER if left == BORDER // 2 else 1.0
    return _unaligned(_aligned_kernels(product, machine), product, machine, surcharge)


def odd_product(product: Product, machine: Machine) -> Kernel | None:
    """Return the kernel of a product whose rows begin off borders, where it has one of its own."""
    left = _off_border(product, machine)
    step = 1 if left == ITEMSIZE[product.dtype] else 2
    return unaligned(product, step, _name(product), machine) if left else None


def _off_border(product: Product, machine: Machine) -> int:
    """Return the bytes at whose multiples all rows begin; 0 where that costs nothing."""
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
    odd = [side * ITEMSIZE[p.dtype] % BORDER for side in sides]
    for step in BORDERS:
        if any(left % step != 0 for left in odd):
            return step // 2
    return 0


def _unaligned(
    kernels: tuple[Kernel, ...], product: Product, machine: Machine, surcharge: float
) -> tuple[Kernel, ...]:
    """Add to a product what its arithmetic takes longer; what only moves is no slower."""
    p, sheet = product, machine.sheet
    first, *rest = kernels
    reached = sheet.shared(p.dtype, sheet.reached(p.dtype) or UNITS_SHARE)
    flop = 2.0 * p.batch * p.rows * p.columns * p.depth
    more = surcharge * minimum(flop / (sheet.peak(p.dtype)[0] * reached) / 1e3, first.time)
    spread = first.spread + BORROWED * more
    formula = f"{first.formula}; {UNALIGNED_NOTE}"
    slower = replace(first, time=first.time + more, spread=spread, outside=True, formula=formula)
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
    return min(p.rows, p.columns) <= SMALL_SIDE and max(p.rows, p.columns, p.depth) <= MOST_SMALL


def _vector(product: Product, machine: Machine, name: str) -> tuple[Kernel, ...]:
    time = machine.stream(product.traffic, VECTOR_SHARE) + SMALL
    first = work("gemm", f"{name} vector", time, FAIR, VECTOR)
    if product.rows == 1 and product.depth >= 1024 and product.columns > 1:
        add_up = work("gemm", f"{name} add up the parts", SMALL + 1.5, FEW, VECTOR)
        return first, add_up
    return (first,)
