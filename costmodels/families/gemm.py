"""Matrix products: linear, addmm, mm, bmm, baddbmm, matrix-vector products, and fused epilogues."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
from msgspec.structs import replace

from costmodels.benchmarks.bench import Bench, Call
from costmodels.benchmarks.networks import bench_product
from costmodels.benchmarks.sweep import Sweep
from costmodels.families.concat import cat
from costmodels.formulas.elements import ROOFLINE, broadcast_copy, streaming, transposed_copy
from costmodels.formulas.intervals import CLOSE
from costmodels.formulas.machine import SMALL, Machine, Rule, members, shape_text, traffic, work
from costmodels.formulas.offsets import unvectorized_time
from costmodels.formulas.products import product_kernels
from costmodels.formulas.tiles import Product
from costmodels.learnable.family import LearnedFamily, Query
from costmodels.learnable.hardware import Hardware
from costmodels.learnable.inputs import START, Inputs, Sizes, log2, multiples, settling, waves
from costmodels.learnable.launch import linear_in_waves
from costmodels.learnable.settings import Settings
from costmodels.learnable.tiling import tiling
from irgraph.ir.cost import Kernel
from irgraph.ir.op import Op
from irgraph.ir.points.point_values import maximum, minimum, to_float, to_int
from irgraph.ir.tensor import Tensor, canonical_strides, row_major
from irgraph.ir.tf32 import PLAIN, factors

SOURCE = (
    "tiles and rounds of the library's kernels (NeuSight's training split, traced V100 products); "
    "trained on V100, A100, P100, T4 in f32"
)

FUSED = ("linear_relu", "addmm_relu", "_addmm_activation")
"""Products that add a bias and apply an activation in one kernel."""


def layout(first: Tensor, second: Tensor) -> str:
    """Return cuBLAS's layout of row-major ``first @ second``: the second factor comes first."""
    return _letter(second) + _letter(first)


def _letter(tensor: Tensor) -> str:
    if tensor.rank < 2 or tensor.strides is None:
        return "n"
    return "t" if tensor.strides[-2] == 1 and tensor.strides[-1] != 1 else "n"


def _product(first: Tensor, second: Tensor) -> Product:
    """Return the product of two tensors of rank 2 or 3."""
    batch = to_int(first.shape[0]) if first.rank == 3 else 1
    rows, depth = (to_int(size) for size in first.shape[-2:])
    return Product(batch, rows, to_int(second.shape[-1]), depth, first.dtype, layout(first, second))


def _operand_pair(op: Op, position: int, rank: int) -> tuple[Tensor, Tensor] | None:
    """Return the two tensor operands of a rank at ``position``, or else ``None``."""
    pair = op.operands[position : position + 2]
    if len(pair) == 2 and all(isinstance(t, Tensor) and t.rank == rank for t in pair):
        return pair[0], pair[1]  # type: ignore[return-value]
    return None


def _mm(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    pair = _operand_pair(op, 0, 3 if op.base == "bmm" else 2)
    return product_kernels(_product(*pair), machine) if pair else None


def _addmm(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    pair = _operand_pair(op, 1, 3 if op.base in ("baddbmm", "baddbmm_") else 2)
    addend = op.operands[0] if op.operands else None
    if pair is None or not isinstance(addend, Tensor):
        return None
    before = () if op.written else _bias(addend, op, machine)
    return (*before, *product_kernels(_product(*pair), machine))


def _bias(bias: Tensor, op: Op, machine: Machine) -> tuple[Kernel, ...]:
    """Return the copy of a bias into the result, if the product does not add the bias.

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
    columns, depth = (to_int(size) for size in weight.shape)
    rows = data.numel // maximum(depth, 1)
    product = Product(1, rows, columns, depth, data.dtype, "t" + _letter(data))
    bias = rest[0] if rest and isinstance(rest[0], Tensor) else None
    if (
        data.rank > 2
        and canonical_strides(data.shape, data.strides) is not None
        and not machine.paper
    ):
        return _linear_of_strided(op, product, machine)
    before = _bias(bias, op, machine) if bias is not None else ()
    return (*before, *product_kernels(product, machine))


def _linear_of_strided(op: Op, product: Product, machine: Machine) -> tuple[Kernel, ...]:
    """Price a linear layer over strided rows: a plain product, and an addition of the bias.

    torch fuses bias and product for matrices and contiguous data only; rows without a constant
    stride are copied first (Linear.cpp, ``should_fold`` of matmul).
    """
    data, _, *rest = op.operands
    assert isinstance(data, Tensor)
    ordered = replace(data, strides=None)
    copies = () if _folds(data) else (transposed_copy(data, ordered, machine),)
    kernels = (*copies, *product_kernels(product, machine))
    if not (rest and isinstance(rest[0], Tensor)):
        return kernels
    result, bias = replace(op.outputs[0], strides=None), rest[0]
    memory_time = streaming(machine, traffic(result, result, bias))
    element_time = (
        unvectorized_time((result, bias), (result,), result.numel, machine) + machine.start
    )
    name = f"bias of {shape_text(result)}"
    return *kernels, work("elementwise", name, maximum(memory_time, element_time), CLOSE, ROOFLINE)


def _folds(tensor: Tensor) -> bool:
    """Return whether rows have a constant stride, over all axes but the last."""
    steps = tensor.strides or row_major(tensor.shape)
    axes = [(n, step) for n, step in zip(tensor.shape[:-1], steps, strict=False) if n != 1]
    return all(outer == inner * n for (_, outer), (n, inner) in pairwise(axes))


def _matmul(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price a matmul without recorded inner calls; otherwise its inner calls are priced."""
    pair = _operand_pair(op, 0, 2) or _operand_pair(op, 0, 3)
    return product_kernels(_product(*pair), machine) if pair and not op.body else None


def _mv(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    tensors = members(op.operands)
    matrix = next((t for t in tensors if t.rank == 2), None)
    if matrix is None:
        return None
    rows, depth = (to_int(size) for size in matrix.shape)
    return product_kernels(Product(1, rows, 1, depth, matrix.dtype, "tn"), machine)


def _batched(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price several products as one batched product, whose results are views of one block.

    Factors that are not stacked in memory are copied first; biases are copied into every result.
    """
    first, second = (members(value) for value in op.operands[:2])
    if not first or len(first) != len(second) or not op.outputs:
        return None
    product = replace(_product(_factor_in_stack(first), _factor_in_stack(second)), batch=len(first))
    copies = [_stack(list_, machine) for list_ in (first, second) if not are_stacked(list_)]
    bias = members(op.attributes.get("bias", ()))
    if bias:
        copies += [_stack(bias, machine)] * (not are_stacked(bias))
        copies.append(broadcast_copy(bias[0], _stack_result(op.outputs), machine))
    return (*copies, *product_kernels(product, machine))


ROUNDING = 3
"""Bytes to read and write for each element of an activation to round from bf16 to fp8."""


def _scaled(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price a product in fp8 of rounded factors.

    Learned times include the rounding of the first factor, a separate kernel; it is subtracted.
    They are for e4m3, whose rate also applies to e5m2, and for results in bf16: wider results take
    longer to write.
    """
    pair = _operand_pair(op, 0, 2)
    if pair is None:
        return None
    product = _product(*pair)
    same = replace(product, dtype="f8e4m3") if product.dtype == "f8e5m2" else product
    (kernel, *others) = product_kernels(same, machine)
    if kernel.by == "learned":
        rounding = minimum(machine.stream(ROUNDING * pair[0].numel) + SMALL, kernel.time / 2)
        spread = kernel.spread + rounding / 2
        kernel = replace(kernel, time=kernel.time - rounding, spread=spread)
    floor = machine.stream(traffic(*pair, *op.outputs)) + SMALL
    return (replace(kernel, time=maximum(kernel.time, floor)), *others)


def _grouped(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price products of groups of rows, columns or depth, assumed to be of equal size.

    In bf16 cards since Hopper run one kernel for all; otherwise torch calls products in sequence.
    """
    pair = [t for t in op.operands[:2] if isinstance(t, Tensor)]
    offsets = op.operands[2] if len(op.operands) > 2 else op.attributes.get("offs")
    if len(pair) < 2 or not op.outputs:
        return None
    first, second = pair
    stacked = next((t.shape[0] for t in (*pair, *op.outputs) if t.rank == 3), 1)
    groups = maximum(to_int(offsets.shape[0] if isinstance(offsets, Tensor) else stacked), 1)
    full_product = _product(first, second)
    rows = full_product.rows if first.rank == 3 else -(-full_product.rows // groups)
    columns, depth = full_product.columns, full_product.depth
    if first.rank == second.rank == 2:
        rows, depth = full_product.rows, -(-depth // groups)
    elif second.rank == 2:
        columns = -(-columns // groups)
    is_one_kernel = first.dtype == "bf16" and machine.sheet.architecture in ("hopper", "blackwell")
    product = replace(
        full_product, batch=groups if is_one_kernel else 1, rows=rows, columns=columns, depth=depth
    )
    return product_kernels(product, machine) * (1 if is_one_kernel else groups)


def are_stacked(tensors: Sequence[Tensor]) -> bool:
    """Return whether tensors of one type are equally spaced in one buffer, or identical."""
    starts = [to_int(t.offset) for t in tensors]
    steps = {b - a for a, b in pairwise(starts)}
    return len({t.buffer for t in tensors}) == 1 and len(steps) <= 1


def _factor_in_stack(tensors: Sequence[Tensor]) -> Tensor:
    """Return one of the factors with its layout in the stack: copies are row-major."""
    return tensors[0] if are_stacked(tensors) else replace(tensors[0], strides=None)


def _stack_result(tensors: Sequence[Tensor]) -> Tensor:
    return replace(tensors[0], shape=(len(tensors), *tensors[0].shape), strides=None)


def _stack(tensors: Sequence[Tensor], machine: Machine) -> Kernel:
    result = _stack_result(tensors)
    stack_op = Op("aten.stack", (tuple(tensors),), (result,))
    return (cat(stack_op, machine) or ())[0]


def _in_tf32(rule: Rule) -> Rule:
    """Return the rule of a product in tf32, or in f32 if the device has no units for it."""

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
    "aten._grouped_mm": _grouped,
    "aten._scaled_mm": _scaled,
    "aten.mv": _mv,
    "aten.addmv": _mv,
    "irgraph.addmm_relu": _addmm,
    "irgraph.linear_relu": _linear,
    "irgraph.mm_relu_backward": _mm,
    "irgraph.batched_gemm": _batched,
}
RULES |= {form: _in_tf32(RULES[name]) for form, name in PLAIN.items()}


def _bench_batched(bench: Bench) -> Call:
    torch, op = bench.torch, bench.case.op
    first = bench.values(bench["batch"], bench["m"], bench["k"])
    if op == "bmm_transposed":
        transposed = bench.values(bench["batch"], bench["n"], bench["k"])
        return lambda: torch.bmm(first, transposed.transpose(1, 2))
    second = bench.values(bench["batch"], bench["k"], bench["n"])
    if op == "bmm":
        return lambda: torch.bmm(first, second)
    addend = bench.values(bench["batch"], bench["m"], bench["n"])
    return lambda: torch.baddbmm(addend, first, second)


SWEEPS = {
    "linear": Sweep(
        dict.fromkeys(("linear", "addmm", "input_gradient", "weight_gradient"), bench_product),
        {"batch": (1, 1), "m": (4, 2**14), "n": (1, 2**14), "k": (1, 2**14)},
        ((1, 2048, 1, 1024), (1, 2048, 512, 13), (1, 2048, 1024, 1024), (1, 64, 16, 8)),
    ),
    "bmm": Sweep(
        dict.fromkeys(("bmm", "baddbmm", "bmm_transposed"), _bench_batched),
        {"batch": (2, 2**12), "m": (4, 2**11), "n": (2, 2**11), "k": (2, 2**11)},
        ((2048, 27, 27, 128), (2048, 9, 9, 64), (2048, 27, 128, 27), (4, 8, 8, 8)),
    ),
}

SIZES = ("batch", "m", "n", "k")

LONG_SIDE = np.float32(1024)
"""Length of a product's side beyond which its time per element hardly changes."""

OTHER_LAYOUT = 0.15
"""Half a 90 % interval of log errors to add for products whose operands have another layout than in
training (weight and input gradients): the difference of their kernels in traces of a V100."""


def _inputs(sizes: Sizes, device: Hardware) -> Inputs:
    """Return inputs of float32 products (batch, m, k) x (k, n); op 0 is ``linear``, 1 ``bmm``.

    The base is the time of tiles on multiprocessors. Inputs that distinguish tile shapes and sides
    are personal: on an unseen card the library may choose differently.
    """
    batch, m, n, k = (sizes[name] for name in SIZES)
    flops = 2 * batch * m * n * k
    single = 1 - sizes["op"]
    weights = np.where(single > 0, np.float32(1), batch)
    nbytes = 4 * (batch * m * k + weights * k * n + batch * m * n + single * n)
    memory = nbytes / (device.bandwidth * np.float32(1e3))
    tiles = tiling(batch, m, n, k, sizes["op"].astype(np.intp), device)
    base = np.maximum(tiles.time, memory) + np.float32(START)
    columns = [sizes["op"], np.clip(log2(tiles.time / memory), -4, 4)]
    columns += [settling(base / np.float32(START)), settling(nbytes / device.l2)]
    columns += [log2(tiles.rounds / tiles.share), settling(tiles.rounds), log2(tiles.padded)]
    columns += [log2(tiles.rival / tiles.time), tiles.cache, settling(k / 32)]
    personal = [settling(k / LONG_SIDE), *waves(m, n, batch, device)]
    for side in (m, n, k):
        personal += multiples(side, 2, 4)
    personal += [settling(side / LONG_SIDE) for side in (batch, m, n)]
    personal += [log2(tiles.columns), log2(tiles.rows), device.dual]
    return Inputs(base, columns, personal, log2(flops), device.indicators)


def _query(arguments: Mapping[str, float | str]) -> Query | None:
    """Return a product, ``None`` for unmeasured vectors; ``layout`` as in ``Product``."""
    sizes = {name: to_float(arguments[name]) for name in SIZES}
    if minimum(sizes["m"], sizes["n"], sizes["k"]) < 2:
        return None
    op, measured_layout = ("linear", "tn") if sizes["batch"] == 1 else ("bmm", "nn")
    return Query(op, sizes, 0.0 if arguments.get("layout") == measured_layout else OTHER_LAYOUT)


LEARNED = LearnedFamily(
    "gemm",
    ("linear", "bmm"),
    SIZES,
    _inputs,
    _query,
    Settings(steps=9000),
    linear_in_waves,
    similar="elementwise",
    measured_as=("linear", "bmm"),
)
