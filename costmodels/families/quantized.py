"""Quantised models: lookups of narrow rows, products of integers, rounding and scaling of rows."""

from __future__ import annotations

from msgspec.structs import replace

from costmodels.families.embedding import CORRECTED
from costmodels.formulas.elements import ROOFLINE, streaming
from costmodels.formulas.intervals import BORROWED, UNTRACED
from costmodels.formulas.lookup import SECTOR, LookupTable, forward_time
from costmodels.formulas.machine import SMALL, Machine, Rule, members, shape_text, traffic, work
from costmodels.formulas.products import product_kernels
from costmodels.formulas.tiles import TILES, Product
from costmodels.lookups.popularity import Distribution, distinct_rows
from irgraph.ir.cost import Kernel
from irgraph.ir.narrow.ops import (
    DEQUANTIZE,
    FORMAT_OF,
    MEANS,
    PRODUCT,
    PRODUCT_I4,
    QUANTIZE,
    ROWS_LOOKUP,
    SCALED,
    STATIC,
    round_up,
)
from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor

SOURCE = (
    "traffic of lookups with the row bytes of FBGEMM's formula; i8 products as tiles at the "
    "datasheet's integer peak (none was measured), i4 weights by flop in bf16 or their bytes; "
    "rounding and scaling by bytes (paper, III-B-1b)"
)


UNPACKED = "flop in bf16 at the least share of the peak of any tile, or bytes of i4 weights"

MIN_SIDE = 16
"""Minimum number of rows that matrix units multiply."""


def _lookup(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price a lookup that dequantises: it reads packed rows and writes sums in f32."""
    tensors = members(op.operands)
    if len(tensors) < 2 or tensors[0].rank != 2 or not op.outputs:
        return None
    weight, indices, out = tensors[0], tensors[1], op.outputs[0]
    rows, row_bytes = int(weight.shape[0]), int(weight.shape[1]) * weight.itemsize
    bags, width = int(out.shape[0]), int(out.shape[-1])
    law = machine.indices.distribution_of(indices, rows)
    lookups = int(indices.numel)
    lengths = machine.indices.bags(indices, rows)
    table = LookupTable(rows, width, bags, lookups, 4, indices.itemsize, law, row_bytes, lengths)
    weights = op.attributes.get("per_sample_weights")
    extra = float(weights.nbytes) if isinstance(weights, Tensor) else 0.0
    extra += _mapping(op, law, lookups)
    kind = FORMAT_OF.get(op.name, weight.dtype)
    name = f"lookup {kind} B{bags} T1 L{lookups / max(bags, 1):g} D{width}"
    time = forward_time([table], machine, extra)
    return (work("quantized", name, time, BORROWED, CORRECTED.format(law), outside=True),)


def _mapping(op: Op, law: Distribution, lookups: int) -> float:
    """Return the bytes of the sectors of a pruned table's mapping that lookups read."""
    mapping = op.attributes.get("compressed_indices_mapping")
    if not isinstance(mapping, Tensor) or not op.attributes.get("pruned_weights"):
        return 0.0
    read = distinct_rows(law, int(mapping.shape[0]), lookups) * SECTOR
    return min(read, float(mapping.nbytes))


def _product(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price a product of integers at the integer peak of matrix units, else of plain cores."""
    pair = members(op.operands)
    if len(pair) < 2 or any(t.rank != 2 for t in pair[:2]):
        return None
    (rows, depth), columns = pair[0].shape, pair[1].shape[1]
    product = Product(1, int(rows), int(columns), int(depth), "i8", "tn")
    floor = machine.stream(traffic(*op.inputs, *op.outputs)) + SMALL  # sums take four bytes
    kernels = product_kernels(product, machine)
    return tuple(replace(kernel, time=max(kernel.time, floor)) for kernel in kernels)


def _by_groups(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price rows in bf16 times a weight in i4: by FLOP in bf16, or by the bytes that it reads.

    Kernels that unpack weights as they multiply reach less of the peak, and no rate of torch's was
    published: they get the smallest share of any tile, and a wide interval.
    """
    pair = members(op.operands)
    if len(pair) < 3 or not op.outputs or pair[0].rank != 2:
        return None
    (rows, depth), columns = pair[0].shape, op.outputs[0].shape[1]
    share = min(share for _, _, share in TILES["units"])
    flops = 2.0 * round_up(rows, MIN_SIDE) * int(columns) * int(depth)
    compute = flops / (share * machine.sheet.peak("bf16")[0]) / 1e3
    time = max(compute, machine.stream(traffic(*op.inputs, *op.outputs))) + SMALL
    name = f"gemm {rows}x{columns}x{depth} i4 weights"
    return (work("quantized", name, time, BORROWED, UNPACKED, outside=True),)


def _by_bytes(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price one pass over rows: operands are read once, and results are written."""
    nbytes = traffic(*op.inputs, *op.outputs)
    action = "round" if op.name in (QUANTIZE, STATIC) else "scale"
    name = f"{action} rows {shape_text(op.inputs[0])}"
    return (work("quantized", name, streaming(machine, nbytes), UNTRACED, ROOFLINE),)


def _means(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price one pass over sums of bags and offsets; only the number of indices matters."""
    tensors = members(op.operands)
    if len(tensors) < 3 or not op.outputs:
        return None
    name = f"means of bags {shape_text(op.outputs[0])}"
    nbytes = traffic(tensors[0], tensors[2], *op.outputs)
    return (work("quantized", name, streaming(machine, nbytes), UNTRACED, ROOFLINE),)


RULES: dict[str, Rule] = {
    **dict.fromkeys((*FORMAT_OF, ROWS_LOOKUP), _lookup),
    PRODUCT: _product,
    PRODUCT_I4: _by_groups,
    MEANS: _means,
    **dict.fromkeys((QUANTIZE, STATIC, DEQUANTIZE, SCALED), _by_bytes),
}
