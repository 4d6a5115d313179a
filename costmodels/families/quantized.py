"""Quantised models: lookups in narrow rows, products of integers, what rounds and scales rows."""

from __future__ import annotations

from msgspec.structs import replace

from costmodels.families.embedding import CORRECTED
from costmodels.formulas.elements import ROOFLINE, streaming
from costmodels.formulas.intervals import BORROWED, UNTRACED
from costmodels.formulas.lookup import Table, forward_time
from costmodels.formulas.machine import SMALL, Machine, Rule, members, shape_text, traffic, work
from costmodels.formulas.products import product_kernels
from costmodels.formulas.tiles import Product
from irgraph.ir.cost import Kernel
from irgraph.ir.narrow.ops import DEQUANTIZE, FORMAT_OF, PRODUCT, QUANTIZE, ROWS_LOOKUP
from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor

SOURCE = (
    "traffic of lookups with the row bytes of FBGEMM's formula; i8 products as tiles at the "
    "datasheet's integer peak (none was measured); rounding and scaling by bytes (paper, III-B-1b)"
)


def _lookup(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price a lookup that dequantises inside: bytes of packed rows in, sums in f32 out."""
    tensors = members(op.operands)
    if len(tensors) < 2 or tensors[0].rank != 2 or not op.outputs:
        return None
    weight, indices, out = tensors[0], tensors[1], op.outputs[0]
    rows, stored = int(weight.shape[0]), int(weight.shape[1]) * weight.itemsize
    bags, width = int(out.shape[0]), int(out.shape[-1])
    law = machine.indices.of(indices, rows)
    lookups = int(indices.numel)
    lengths = machine.indices.bags(indices, rows)
    one = Table(rows, width, bags, lookups, 4, indices.itemsize, law, stored, lengths)
    weights = op.attributes.get("per_sample_weights")
    extra = float(weights.nbytes) if isinstance(weights, Tensor) else 0.0
    kind = FORMAT_OF.get(op.name, weight.dtype)
    name = f"lookup {kind} B{bags} T1 L{lookups / max(bags, 1):g} D{width}"
    time = forward_time([one], machine, extra)
    return (work("quantized", name, time, BORROWED, CORRECTED.format(law), outside=True),)


def _product(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price a product of integers at the peak of units for them, else at that of plain cores."""
    pair = members(op.operands)
    if len(pair) < 2 or any(t.rank != 2 for t in pair[:2]):
        return None
    (rows, depth), columns = pair[0].shape, pair[1].shape[1]
    product = Product(1, int(rows), int(columns), int(depth), "i8", "tn")
    floor = machine.stream(traffic(*op.inputs, *op.outputs)) + SMALL  # sums take four bytes
    kernels = product_kernels(product, machine)
    return tuple(replace(kernel, time=max(kernel.time, floor)) for kernel in kernels)


def _by_bytes(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price one pass over rows: read once, and what is made of them written."""
    moved = traffic(*op.inputs, *op.outputs)
    what = "round" if op.name == QUANTIZE else "scale"
    name = f"{what} rows {shape_text(op.inputs[0])}"
    return (work("quantized", name, streaming(machine, moved), UNTRACED, ROOFLINE),)


RULES: dict[str, Rule] = {
    **dict.fromkeys((*FORMAT_OF, ROWS_LOOKUP), _lookup),
    PRODUCT: _product,
    QUANTIZE: _by_bytes,
    DEQUANTIZE: _by_bytes,
}
