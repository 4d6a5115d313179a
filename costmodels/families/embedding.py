"""Embedding lookups: single bags, batches of them, their gradients and fused updates."""

from __future__ import annotations

import math
from collections.abc import Sequence

from costmodels.elements import ERROR as STREAM_ERROR
from costmodels.elements import ROOFLINE, streaming
from costmodels.lookup import (
    Table,
    forward_time,
    paper_hit_rate_time,
    paper_time,
    update_traffic_time,
)
from costmodels.machine import Machine, Rule, work
from costmodels.scatter import SCATTER_ERROR, UPDATE, sort_kernel, tiny_kernels, update_time
from irgraph.ir.cost import Kernel
from irgraph.ir.op import Op, Value
from irgraph.ir.tensor import ITEMSIZE, Tensor

ERROR = 0.3
"""90 % interval: traced forward kernels lie within 11 %, backward within 13 %; one card only."""

PLAIN = "paper, III-B-1a: all traffic to DRAM"
HIT_RATE = "paper, III-B-1a: DRAM and L2 traffic by hit rate p = C(X, L) / C(E, L)"
CORRECTED = "paper, III-B-1a, with expected distinct rows per table and repeats found in L2"


def table(weight: Tensor, indices: Tensor, offsets: Tensor, last: bool) -> Table:
    """Return one table's part of a lookup; ``last`` says that offsets end with the total."""
    bags = int(offsets.numel) - (1 if last else 0)
    rows, width = (int(size) for size in weight.shape)
    return Table(rows, width, bags, int(indices.numel), weight.itemsize, indices.itemsize)


def lookup_kernel(tables: Sequence[Table], machine: Machine, extra: float = 0.0) -> Kernel:
    """Return the kernel that looks up all bags of all tables."""
    if machine.paper:
        return _paper_kernel("lookup", tables, machine, backward=False)
    time = forward_time(tables, machine, extra)
    return work("embedding", f"lookup {_sizes(tables)}", time, ERROR, CORRECTED)


def update_kernel(tables: Sequence[Table], machine: Machine) -> Kernel:
    """Return the kernel that subtracts scaled gradients from the rows that were looked up."""
    if machine.paper:
        return _paper_kernel("lookup update", tables, machine, backward=True)
    time = update_traffic_time(tables, machine)
    return work("embedding", f"lookup update {_sizes(tables)}", time, ERROR, CORRECTED)


def _paper_kernel(name: str, tables: Sequence[Table], machine: Machine, backward: bool) -> Kernel:
    by_hit_rate = machine.mode == "paper-hit-rate"
    estimate = paper_hit_rate_time if by_hit_rate else paper_time
    time = estimate(tables, machine, backward)
    formula = HIT_RATE if by_hit_rate else PLAIN
    return work("embedding", f"{name} {_sizes(tables)}", time, ERROR, formula)


def _sizes(tables: Sequence[Table]) -> str:
    first = tables[0]
    each = first.lookups / max(first.bags, 1)
    return f"B{first.bags} T{len(tables)} L{each:g} D{first.width}"


def _tensors(value: Value) -> list[Tensor]:
    return [t for t in value if isinstance(t, Tensor)] if isinstance(value, tuple) else []


def _bag(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price one embedding bag, which also writes the bag of each index."""
    tensors = [t for t in op.operands if isinstance(t, Tensor)]
    if len(tensors) < 3 or tensors[0].rank != 2:
        return None
    last = op.attributes.get("include_last_offset") is True
    one = table(tensors[0], tensors[1], tensors[2], last)
    return (lookup_kernel([one], machine, extra=8.0 * one.lookups),)


def _bag_backward(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price one bag's gradient: a row for each index if sparse, else a table of mostly zeros."""
    tensors = [t for t in op.operands if isinstance(t, Tensor)]
    count = op.attributes.get("num_weights")
    if len(tensors) < 3 or not isinstance(count, int):
        return None
    gradient, indices = tensors[:2]
    width, lookups = int(gradient.shape[-1]), int(indices.numel)
    one = Table(count, width, int(gradient.shape[0]), lookups, gradient.itemsize, indices.itemsize)
    if op.attributes.get("sparse") is True or op.base == "_embedding_bag_sparse_backward":
        return (_rows_of_gradient(one, machine),)
    return dense_gradient(one, machine)


def _rows_of_gradient(one: Table, machine: Machine) -> Kernel:
    """Return the copy of a bag's gradient to each of its indices."""
    nbytes = one.lookups * (one.row + 8.0) + one.bags * one.row
    name = f"gradient rows {one.lookups}x{one.width}"
    return work("embedding", name, streaming(machine, nbytes), STREAM_ERROR, ROOFLINE)


def dense_gradient(one: Table, machine: Machine) -> tuple[Kernel, ...]:
    """Return the kernels of a dense table gradient (torch, EmbeddingBackwardKernel.cu).

    Zeros of the whole table, a sort of the indices, kernels that find equal ones, partial sums of
    their gradients, and these sums written to their rows.
    """
    whole = one.rows * one.width * one.size
    part = one.lookups * one.row
    zeros = work(
        "fill", f"fill {one.rows}x{one.width}", streaming(machine, whole), STREAM_ERROR, ROOFLINE
    )
    sums = streaming(machine, part + 16.0 * one.lookups)
    rows = update_time(machine, part, one.distinct * one.row / 2)
    name = f"{one.lookups}x{one.width}"
    return (
        zeros,
        *tiny_kernels(1, one.lookups, machine),
        sort_kernel(one.lookups, max(one.rows - 1, 1).bit_length(), machine),
        *tiny_kernels(4, one.lookups, machine),
        work("embedding", f"partial sums {name}", sums, SCATTER_ERROR, UPDATE),
        work("embedding", f"sums to rows {name}", rows, SCATTER_ERROR, UPDATE),
    )


def _batched(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price a batch of lookups: lists of weights, indices and offsets."""
    weights, indices, offsets = (_tensors(v) for v in (*op.operands, (), (), ())[:3])
    if not weights or len(weights) != len(indices) or len(weights) != len(offsets):
        return None
    last = op.attributes.get("include_last_offset") is True
    parts = [table(*each, last) for each in zip(weights, indices, offsets, strict=True)]
    return (lookup_kernel(parts, machine),)


def _batched_tables(
    gradients: list[Tensor], indices: list[Tensor], rows: Sequence[int]
) -> list[Table]:
    """Return the tables of a batched gradient, one for each of the lists' members."""
    return [
        Table(count, int(g.shape[-1]), int(g.shape[0]), int(i.numel), g.itemsize, i.itemsize)
        for g, i, count in zip(gradients, indices, rows, strict=True)
    ]


def _batched_backward(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price the dense gradients of a batch: zeros of all tables, then one update of the rows."""
    gradients, indices = (_tensors(v) for v in (*op.operands, (), ())[:2])
    given = op.attributes.get("num_weights")
    rows = [int(n) for n in given if isinstance(n, int)] if isinstance(given, tuple) else []
    if not gradients or not len(gradients) == len(indices) == len(rows):
        return None
    parts = _batched_tables(gradients, indices, rows)
    whole = sum(math.prod((p.rows, p.width, p.size)) for p in parts)
    name = f"fill {len(parts)} tables"
    zeros = work("fill", name, streaming(machine, whole), STREAM_ERROR, ROOFLINE)
    return zeros, update_kernel(parts, machine)


def _batched_sgd(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price the fused backward and update of a batch: no gradient table is ever made."""
    weights, gradients, indices = (_tensors(v) for v in (*op.operands, (), (), ())[:3])
    if not weights or not len(weights) == len(gradients) == len(indices):
        return None
    rows = [int(weight.shape[0]) for weight in weights]
    return (update_kernel(_batched_tables(gradients, indices, rows), machine),)


def _embedding_backward(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price the gradient of ``aten::embedding``: each index is a bag of its own."""
    tensors = [t for t in op.operands if isinstance(t, Tensor)]
    count = op.attributes.get("num_weights")
    if len(tensors) < 2 or not isinstance(count, int):
        return None
    gradient, indices = tensors[:2]
    lookups, width = int(indices.numel), int(gradient.shape[-1])
    size = ITEMSIZE[gradient.dtype]
    return dense_gradient(Table(count, width, lookups, lookups, size, indices.itemsize), machine)


def _fbgemm(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price FBGEMM's batched lookup; it lists no rows of each table: they are taken as equal."""
    given = {t: op.attributes.get(t) for t in ("indices", "offsets", "total_D", "max_D")}
    indices, offsets, total, width = given.values()
    tensors = [t for t in op.operands if isinstance(t, Tensor)]
    weights = max(tensors, key=lambda t: t.numel, default=None)
    if not isinstance(indices, Tensor) or not isinstance(offsets, Tensor) or weights is None:
        return None
    if not isinstance(total, int) or not isinstance(width, int):
        return None
    count = max(total // width, 1)
    bags, lookups = (offsets.numel - 1) // count, indices.numel // count
    rows = max(weights.numel // (count * width), 1)
    one = Table(rows, width, bags, lookups, weights.itemsize, indices.itemsize)
    return (lookup_kernel([one] * count, machine),)


FBGEMM = tuple(
    f"fbgemm.split_embedding_codegen_lookup_{name}_function"
    for name in ("sgd", "adagrad", "rowwise_adagrad", "adam", "partial_rowwise_adam", "lamb")
)

RULES: dict[str, Rule] = {
    **dict.fromkeys(
        ("aten.embedding_bag", "aten._embedding_bag", "aten._embedding_bag_forward_only"), _bag
    ),
    **dict.fromkeys(
        ("aten._embedding_bag_backward", "aten._embedding_bag_dense_backward",
         "aten._embedding_bag_sparse_backward"),
        _bag_backward,
    ),
    "aten.embedding_dense_backward": _embedding_backward,
    **dict.fromkeys((*FBGEMM, "fbgemm.dense_embedding_codegen_lookup_function"), _fbgemm),
    "irgraph.batched_embedding": _batched,
    "irgraph.batched_embedding_backward": _batched_backward,
    "irgraph.batched_embedding_sgd": _batched_sgd,
}  # fmt: skip
