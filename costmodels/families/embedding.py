"""Embedding lookups: single bags, batches of them, their gradients and fused updates."""

from __future__ import annotations

import math
from collections.abc import Sequence

from costmodels.benchmarks.bench import Array, Bench, Call, gradient
from costmodels.benchmarks.networks import bench_rows
from costmodels.benchmarks.sweep import DISTRIBUTIONS, Sweep
from costmodels.formulas.elements import ROOFLINE, streaming
from costmodels.formulas.intervals import CLOSE, FEW
from costmodels.formulas.lookup import (
    LookupTable,
    forward_time,
    gather_time,
    is_gather_measured,
    paper_hit_rate_time,
    paper_time,
    update_traffic_time,
)
from costmodels.formulas.machine import Machine, Rule, members, shape_text, traffic, work
from costmodels.formulas.table_gradient import (
    MAX_FEATURE_INDICES,
    dense_gradient,
    few_rows_gradient,
    max_gradient,
    sparse_gradient,
    weights_gradient,
)
from costmodels.lookups.pooling import EQUAL
from irgraph.ir.cost import Kernel
from irgraph.ir.op import Op
from irgraph.ir.points.point_values import maximum, to_float, to_int
from irgraph.ir.tensor import Tensor

SOURCE = (
    "traffic of offsets, indices, rows and outputs in sectors (paper, III-B-1a); distinct rows "
    "from the indices' distribution, L2 hits by Che's approximation; at least the latency of the "
    "longest bag's rows; gradients kernel by kernel (torch, EmbeddingBag.cu, "
    "EmbeddingBackwardKernel.cu); on Hopper blocks started, rows of bags and partial sums as "
    "measured (H100 SXM 80 GB, torch 2.11)"
)

PLAIN = "paper, III-B-1a: all traffic to DRAM"
HIT_RATE = "paper, III-B-1a: DRAM and L2 traffic by hit rate p = C(X, L) / C(E, L)"
CORRECTED = "paper, III-B-1a, table by table; L2 hits by Che's approximation, indices {}"

MEAN, MAX = 1, 2
"""Pooling modes of bags other than the sum."""


def bag_table(
    weight: Tensor, indices: Tensor, offsets: Tensor, last: bool, machine: Machine
) -> LookupTable:
    """Return one table's part of a lookup; ``last``: whether offsets end with the total."""
    bags = to_int(offsets.numel) - (1 if last else 0)
    rows, width = (to_int(size) for size in weight.shape)
    return _lookup_table(rows, width, bags, indices, weight.itemsize, machine)


def _lookup_table(
    rows: int, width: int, bags: int, indices: Tensor, size: int, machine: Machine
) -> LookupTable:
    law, bags_law = (
        machine.indices.distribution_of(indices, rows),
        machine.indices.bags(indices, rows),
    )
    lookups, index_size = to_int(indices.numel), indices.itemsize
    return LookupTable(rows, width, bags, lookups, size, index_size, law, pooling=bags_law)


def lookup_kernel(tables: Sequence[LookupTable], machine: Machine, extra: float = 0.0) -> Kernel:
    """Return the kernel that looks up all bags of all tables."""
    if machine.paper:
        return _paper_kernel("lookup", tables, machine, backward=False)
    time = forward_time(tables, machine, extra)
    return work("embedding", f"lookup {_sizes(tables)}", time, FEW, _formula(tables))


def update_kernel(tables: Sequence[LookupTable], machine: Machine) -> Kernel:
    """Return the kernel that subtracts scaled gradients from the looked-up rows."""
    if machine.paper:
        return _paper_kernel("lookup update", tables, machine, backward=True)
    time = update_traffic_time(tables, machine)
    return work("embedding", f"lookup update {_sizes(tables)}", time, FEW, _formula(tables))


def _formula(tables: Sequence[LookupTable]) -> str:
    laws = dict.fromkeys(str(table.indices) for table in tables)
    bags = dict.fromkeys(str(table.pooling) for table in tables if table.pooling != EQUAL)
    formula = CORRECTED.format(", ".join(laws))
    return f"{formula}, bags {', '.join(bags)}" if bags else formula


def _paper_kernel(
    name: str, tables: Sequence[LookupTable], machine: Machine, backward: bool
) -> Kernel:
    by_hit_rate = machine.mode == "paper-hit-rate"
    estimate = paper_hit_rate_time if by_hit_rate else paper_time
    time = estimate(tables, machine, backward)
    formula = HIT_RATE if by_hit_rate else PLAIN
    return work("embedding", f"{name} {_sizes(tables)}", time, FEW, formula)


def _sizes(tables: Sequence[LookupTable]) -> str:
    first = tables[0]
    bag_lookups = first.lookups / maximum(first.bags, 1)
    return f"B{first.bags} T{len(tables)} L{bag_lookups:g} D{first.width}"


def _bag(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price one embedding bag, which also writes additional operands of its gradient."""
    tensors = members(op.operands)
    if len(tensors) < 3 or tensors[0].rank != 2:
        return None
    last = op.attributes.get("include_last_offset") is True
    lookup = bag_table(tensors[0], tensors[1], tensors[2], last, machine)
    side_bytes = maximum(traffic(*op.outputs[1:]), lookup.index_size * lookup.lookups)
    weights = op.attributes.get("per_sample_weights")
    extra = side_bytes + (weights.nbytes if isinstance(weights, Tensor) else 0)
    return (lookup_kernel([lookup], machine, extra=to_float(extra)),)


def _bag_backward(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price an embedding bag's gradient: a row for each index if sparse, else a dense table."""
    tensors = members(op.operands)
    count, mode = op.attributes.get("num_weights"), op.attributes.get("mode")
    if len(tensors) < 3 or not isinstance(count, int):
        return None
    gradient, indices = tensors[:2]
    width, bags = to_int(gradient.shape[-1]), to_int(gradient.shape[0])
    lookup = _lookup_table(count, width, bags, indices, gradient.itemsize, machine)
    has_weights = isinstance(op.attributes.get("per_sample_weights"), Tensor)
    if op.attributes.get("sparse") is True or op.base == "_embedding_bag_sparse_backward":
        return sparse_gradient(lookup, machine, factors=has_weights + (mode == MEAN))
    return (
        max_gradient(lookup, machine)
        if mode == MAX
        else dense_gradient(lookup, machine, has_weights)
    )


def _weights_backward(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price the gradient of the indices' weights."""
    tensors = members(op.operands)
    if len(tensors) < 3 or tensors[1].rank != 2:
        return None
    gradient, weight, indices = tensors[:3]
    rows, width = (to_int(size) for size in weight.shape)
    lookup = _lookup_table(
        rows, width, to_int(gradient.shape[0]), indices, weight.itemsize, machine
    )
    return (weights_gradient(lookup, machine),)


def _batched(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price a batch of lookups, of lists of weights, indices and offsets."""
    weights, indices, offsets = (members(v) for v in (*op.operands, (), (), ())[:3])
    if not weights or len(weights) != len(indices) or len(weights) != len(offsets):
        return None
    last = op.attributes.get("include_last_offset") is True
    parts = [
        bag_table(*tensors, last, machine)
        for tensors in zip(weights, indices, offsets, strict=True)
    ]
    scales = members(op.attributes.get("per_sample_weights"))
    return (lookup_kernel(parts, machine, extra=to_float(traffic(*scales))),)


def _batched_tables(
    gradients: list[Tensor], indices: list[Tensor], rows: Sequence[int], machine: Machine
) -> list[LookupTable]:
    """Return the tables of a batched gradient, one for each item of the lists."""
    return [
        _lookup_table(count, to_int(g.shape[-1]), to_int(g.shape[0]), i, g.itemsize, machine)
        for g, i, count in zip(gradients, indices, rows, strict=True)
    ]


def _batched_backward(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price the gradients of a batch: rows if sparse, else zeros of all tables and their update."""
    gradients, indices = (members(v) for v in (*op.operands, (), ())[:2])
    row_counts = op.attributes.get("num_weights")
    rows = (
        [to_int(n) for n in row_counts if isinstance(n, int)]
        if isinstance(row_counts, tuple)
        else []
    )
    if not gradients or not len(gradients) == len(indices) == len(rows):
        return None
    parts = _batched_tables(gradients, indices, rows, machine)
    if op.attributes.get("sparse") is True:
        return (_rows_of_batch(parts, op.attributes.get("mode") == MEAN, machine),)
    fill_bytes = sum(math.prod((p.rows, p.width, p.size)) for p in parts)
    name = f"fill {len(parts)} tables"
    zeros = work("fill", name, streaming(machine, fill_bytes), CLOSE, ROOFLINE)
    return zeros, update_kernel(parts, machine)


def _rows_of_batch(parts: Sequence[LookupTable], mean: bool, machine: Machine) -> Kernel:
    """Return the kernel of the sparse gradients of all tables, including the scaling of rows."""
    nbytes = 0.0
    for part in parts:
        nbytes += (
            part.lookups * (part.row_bytes + (1 + mean) * part.index_size)
            + part.bags * part.row_bytes
        )
    name = f"gradient rows of {len(parts)} tables"
    return work("embedding", name, streaming(machine, nbytes), CLOSE, ROOFLINE)


def _batched_sgd(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price the fused backward and update of a batch, which needs no gradient table."""
    weights, gradients, indices = (members(v) for v in (*op.operands, (), (), ())[:3])
    if not weights or not len(weights) == len(gradients) == len(indices):
        return None
    rows = [to_int(weight.shape[0]) for weight in weights]
    return (update_kernel(_batched_tables(gradients, indices, rows, machine), machine),)


def _embedding_backward(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price the gradient of ``aten::embedding``: each index is a separate bag."""
    tensors = members(op.operands)
    count = op.attributes.get("num_weights")
    if len(tensors) < 2 or not isinstance(count, int):
        return None
    gradient, indices = tensors[:2]
    lookups, width = to_int(indices.numel), to_int(gradient.shape[-1])
    lookup = _lookup_table(count, width, lookups, indices, gradient.itemsize, machine)
    by_frequency = op.attributes.get("scale_grad_by_freq") is True
    is_small = lookups <= MAX_FEATURE_INDICES and not by_frequency
    return few_rows_gradient(lookup, machine) if is_small else dense_gradient(lookup, machine)


def _embedding(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price ``aten::embedding``: ``index_select`` of rows, each index a separate bag."""
    tensors = members(op.operands)
    if len(tensors) < 2 or tensors[0].rank != 2:
        return None
    weight, indices = tensors[:2]
    rows, width = (to_int(size) for size in weight.shape)
    lookup = _lookup_table(rows, width, to_int(indices.numel), indices, weight.itemsize, machine)
    name = f"embedding {shape_text(indices)} of {shape_text(weight)}"
    sizes: dict[str, float | str] = {
        "rows": indices.numel,
        "cols": width,
        "depth": rows,
        "dtype": weight.dtype,
    }
    learned = machine.kernel_of_model(
        "transformer", name, "embedding", {**sizes, "op": "embedding"}
    )
    if learned:
        return (learned,)
    time = gather_time(lookup, machine)
    outside = not (machine.paper or is_gather_measured(machine))
    return (work("embedding", name, time, FEW, _formula([lookup]), outside=outside),)


RULES: dict[str, Rule] = {
    **dict.fromkeys(
        ("aten.embedding_bag", "aten._embedding_bag", "aten._embedding_bag_forward_only"), _bag
    ),
    **dict.fromkeys(
        ("aten._embedding_bag_backward", "aten._embedding_bag_dense_backward",
         "aten._embedding_bag_sparse_backward"),
        _bag_backward,
    ),
    "aten._embedding_bag_per_sample_weights_backward": _weights_backward,
    "aten.embedding": _embedding,
    "aten.embedding_dense_backward": _embedding_backward,
    "irgraph.batched_embedding": _batched,
    "irgraph.batched_embedding_backward": _batched_backward,
    "irgraph.batched_embedding_sgd": _batched_sgd,
}  # fmt: skip


def _bench(bench: Bench) -> Call:
    """Prepare lookups of one table, or of several tables of the same size, one call each."""
    make = _bench_bag if bench.case.op.startswith("embedding_bag") else bench_rows
    calls = [make(bench) for _ in range(bench["tables"])]
    return calls[0] if len(calls) == 1 else lambda: [call() for call in calls]


def _bench_bag(bench: Bench) -> Call:
    torch, count = bench.torch, bench["batch"] * bench["lookups"]
    mode = bench.case.op.removeprefix("embedding_bag_")
    backward = mode.startswith("backward")
    weight = bench.values(bench["rows"], bench["dim"], grad=backward)
    if mode in ("backward", "backward_max"):
        bench.spend(weight.nbytes)
    indices = bench.rows(bench["rows"], count)
    offsets = torch.arange(0, count, bench["lookups"], device=bench.device)
    lookup = torch.nn.functional.embedding_bag
    if mode == "weighted":
        weights = bench.values(count)
        return lambda: lookup(indices, weight, offsets, mode="sum", per_sample_weights=weights)
    if not backward:
        return lambda: lookup(indices, weight, offsets, mode=mode)
    kind = "max" if mode.endswith("max") else "sum"
    result: Array = lookup(indices, weight, offsets, mode=kind, sparse=mode.endswith("sparse"))
    return gradient(bench, result, weight)


SWEEPS = {
    "embedding": Sweep(
        dict.fromkeys(
            ("embedding_bag_sum", "embedding_bag_mean", "embedding_bag_max",
             "embedding_bag_weighted", "embedding_bag_backward", "embedding_bag_backward_sparse",
             "embedding_bag_backward_max", "embedding", "embedding_backward"),
            _bench,
        ),
        {"rows": (3, 40_000_000), "dim": (8, 256), "batch": (64, 2**12), "lookups": (1, 128),
         "tables": (1, 26)},
        ((3, 128, 2048, 1, 1), (1_000_000, 64, 2048, 100, 1), (40_000_000, 16, 2048, 1, 1),
         (100_000, 64, 512, 10, 26), (64, 16, 64, 2, 2)),
        2.0**44,
        DISTRIBUTIONS,
    )
}  # fmt: skip
