"""Matrix products: linear, addmm, mm, bmm, baddbmm, matrix-vector products, and fused epilogues."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from costmodels.elements import broadcast_copy
from costmodels.families.concat import cat
from costmodels.machine import SMALL, Machine, Rule, work
from costmodels.tiles import Product, tiled_time
from irgraph.ir.cost import Kernel
from irgraph.ir.op import Op, Value
from irgraph.ir.tensor import Tensor
from irgraph.ir.tf32 import PLAIN, factors

SOURCE = (
    "tiles and rounds of the library's kernels (NeuSight's training split, traced V100 products); "
    "trained on V100, A100, P100, T4 in f32"
)

ERROR = 0.25
"""90 % of the traced V100 products lie within this of the tile model."""

TILED = "tiles x rounds over a multiprocessor's peak share (NVIDIA, Matrix Multiplication Guide)"
VECTOR = "roofline of memory [Williams 2009; paper, III-B-1b], share from traced gemv kernels"
SMALL_TILE = "rounds of one small tile a multiprocessor, from traced gemmSN kernels"

VECTOR_SHARE = 0.62
"""Share of DRAM bandwidth of products with a vector (traced gemv2T, gemvNSP, gemmk1: 0.5-0.7)."""

SMALL_SIDE, MOST_SMALL, SMALL_ROUND = 16, 128, 1.3
"""Batched products with a side this short, and none longer than that, run kernels of their own
(gemmSN), one block each, which take this many microseconds a round."""

FUSED = ("linear_relu", "addmm_relu", "_addmm_activation")
"""Products that add a bias and apply an activation in one kernel."""


def product_kernels(product: Product, machine: Machine) -> tuple[Kernel, ...]:
    """Return the kernels of a product: one, and a second where a split vector is summed up."""
    p = product
    batch = f"{p.batch} x " if p.batch > 1 else ""
    name = f"gemm {batch}{p.rows}x{p.columns}x{p.depth} {p.layout}"
    sizes = {"batch": p.batch, "m": p.rows, "n": p.columns, "k": p.depth}
    told = machine.ask("gemm", name, dtype=p.dtype, layout=p.layout, **sizes)
    if told:
        return (told,)
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
    time = max(time, memory) + SMALL
    outside = units or machine.sheet.architecture not in ("volta", "ampere", "pascal")
    error = 2 * ERROR if outside else ERROR
    return (work("gemm", f"{name} {tile}", time, error, formula, outside=outside),)


def _is_small(product: Product) -> bool:
    """Tell whether a batched product runs a kernel for small matrices."""
    p = product
    sides = (p.rows, p.columns, p.depth)
    short = min(p.rows, p.columns) <= SMALL_SIDE and max(sides) <= MOST_SMALL
    return p.batch > 1 and short and p.layout != "nt"


def _vector(product: Product, machine: Machine, name: str) -> tuple[Kernel, ...]:
    time = machine.stream(product.traffic, VECTOR_SHARE) + SMALL
    first = work("gemm", f"{name} vector", time, ERROR, VECTOR)
    if product.rows == 1 and product.depth >= 1024 and product.columns > 1:
        add_up = work("gemm", f"{name} add up the parts", SMALL + 1.5, 0.3, VECTOR)
        return first, add_up
    return (first,)


def layout(first: Tensor, second: Tensor) -> str:
    """Return how cuBLAS sees row-major ``first @ second``: the second factor comes first."""
    return _letter(second) + _letter(first)


def _letter(tensor: Tensor) -> str:
    if tensor.rank < 2 or tensor.strides is None:
        return "n"
    return "t" if tensor.strides[-2] == 1 and tensor.strides[-1] != 1 else "n"


def _product(first: Tensor, second: Tensor) -> Product:
    """Return the product of two tensors of rank 2 or 3."""
    batch = int(first.shape[0]) if first.rank == 3 else 1
    rows, depth = (int(size) for size in first.shape[-2:])
    return Product(batch, rows, int(second.shape[-1]), depth, first.dtype, layout(first, second))


def _two(op: Op, at: int, rank: int) -> tuple[Tensor, Tensor] | None:
    """Return two neighbouring tensor operands of a rank, or nothing."""
    pair = op.operands[at : at + 2]
    if len(pair) == 2 and all(isinstance(t, Tensor) and t.rank == rank for t in pair):
        return pair[0], pair[1]  # type: ignore[return-value]
    return None


def _mm(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    pair = _two(op, 0, 3 if op.base == "bmm" else 2)
    return product_kernels(_product(*pair), machine) if pair else None


def _addmm(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    pair = _two(op, 1, 3 if op.base in ("baddbmm", "baddbmm_") else 2)
    added = op.operands[0] if op.operands else None
    if pair is None or not isinstance(added, Tensor):
        return None
    before = () if op.written else _bias(added, op, machine)
    return (*before, *product_kernels(_product(*pair), machine))


def _bias(bias: Tensor, op: Op, machine: Machine) -> tuple[Kernel, ...]:
    """Return the copy of a bias into the result, if the product does not add it.

    Fused ops add it in their epilogue; the paper's formulas have no copy.
    """
    if machine.paper or op.base in FUSED:
        return ()
    result = op.outputs[0] if op.outputs else bias
    vector = bias.rank == 1 and machine.software.bias_in_gemm and 1 not in result.shape
    return () if vector else (broadcast_copy(bias, result, machine),)


def _linear(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    if len(op.operands) < 2 or not op.outputs:
        return None
    data, weight, *rest = op.operands
    if not isinstance(data, Tensor) or not isinstance(weight, Tensor) or weight.rank != 2:
        return None
    columns, depth = (int(size) for size in weight.shape)
    rows = data.numel // max(depth, 1)
    product = Product(1, rows, columns, depth, data.dtype, "t" + _letter(data))
    bias = rest[0] if rest and isinstance(rest[0], Tensor) else None
    before = _bias(bias, op, machine) if bias is not None else ()
    return (*before, *product_kernels(product, machine))


def _matmul(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price a matmul that recorded no calls of its own; else its calls are priced."""
    pair = _two(op, 0, 2) or _two(op, 0, 3)
    return product_kernels(_product(*pair), machine) if pair and not op.body else None


def _mv(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    tensors = [t for t in op.operands if isinstance(t, Tensor)]
    matrix = next((t for t in tensors if t.rank == 2), None)
    if matrix is None:
        return None
    rows, depth = (int(size) for size in matrix.shape)
    return product_kernels(Product(1, rows, 1, depth, matrix.dtype, "tn"), machine)


def _batched(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price several products as one; results are views of one block.

    Factors are stacked first, if they do not lie so; biases too, and spread over the results.
    """
    first, second = (tensors_of(value) for value in op.operands[:2])
    if not first or len(first) != len(second) or not op.outputs:
        return None
    product = replace(_product(_stacked(first), _stacked(second)), batch=len(first))
    copies = [_stack(list_, machine) for list_ in (first, second) if not lie_stacked(list_)]
    bias = tensors_of(op.attributes.get("bias", ()))
    if bias:
        copies += [_stack(bias, machine)] * (not lie_stacked(bias))
        copies.append(broadcast_copy(bias[0], _whole(op.outputs), machine))
    return (*copies, *product_kernels(product, machine))


def tensors_of(value: Value) -> list[Tensor]:
    """Return the tensors of a list."""
    return [t for t in value if isinstance(t, Tensor)] if isinstance(value, tuple) else []


def lie_stacked(tensors: Sequence[Tensor]) -> bool:
    """Tell whether tensors of one type lie at equal distances in one buffer, or are the same."""
    starts = [int(t.offset) for t in tensors]
    steps = {b - a for a, b in pairwise(starts)}
    return len({t.buffer for t in tensors}) == 1 and len(steps) <= 1


def _stacked(tensors: Sequence[Tensor]) -> Tensor:
    """Return one of the factors as it lies in the stack: copies are row by row."""
    return tensors[0] if lie_stacked(tensors) else replace(tensors[0], strides=None)


def _whole(tensors: Sequence[Tensor]) -> Tensor:
    return replace(tensors[0], shape=(len(tensors), *tensors[0].shape), strides=None)


def _stack(tensors: Sequence[Tensor], machine: Machine) -> Kernel:
    whole = _whole(tensors)
    stacked = Op("aten.stack", (tuple(tensors),), (whole,))
    return (cat(stacked, machine) or ())[0]


def _in_tf32(rule: Rule) -> Rule:
    """Price a product in tf32: as one of f32 where the device has no units for it."""

    def price(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
        kind = "tf32" if machine.sheet.has_tf32 else "f32"
        rounded = [
            replace(v, dtype=kind) if place in factors(op) and isinstance(v, Tensor) else v
            for place, v in enumerate(op.operands)
        ]
        return rule(replace(op, name=PLAIN[op.name], operands=tuple(rounded)), machine)

    return price


RULES: dict[str, Rule] = {
    "aten.mm": _mm,
    "aten.bmm": _mm,
    "aten.addmm": _addmm,
    "aten.addmm_": _addmm,
    "aten.baddbmm": _addmm,
    "aten.baddbmm_": _addmm,
    "aten._addmm_activation": _addmm,
    "aten.linear": _linear,
    "aten.matmul": _matmul,
    "aten.mv": _mv,
    "aten.addmv": _mv,
    "irgraph.addmm_relu": _addmm,
    "irgraph.linear_relu": _linear,
    "irgraph.mm_relu_backward": _mm,
    "irgraph.batched_gemm": _batched,
}
RULES |= {form: _in_tf32(RULES[name]) for form, name in PLAIN.items()}
