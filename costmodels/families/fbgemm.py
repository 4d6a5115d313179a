"""FBGEMM's batched embedding tables: lookups, fused updates, and preparation of indices."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from costmodels.families.embedding import lookup_kernel
from costmodels.families.fill import SOURCE as FILL
from costmodels.formulas.elements import ROOFLINE, streaming
from costmodels.formulas.intervals import BORROWED, FEW, NEAR, UNKNOWN
from costmodels.formulas.lookup import LookupTable
from costmodels.formulas.machine import Machine, Rule, members, traffic, work
from costmodels.formulas.scatter import UPDATE, sort_kernel, update_time
from irgraph.ir.cost import Kernel
from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor

SOURCE = (
    "as the embedding family, with tables assumed equally large, since the op does not list their "
    "rows; the update's kernels as in a V100 trace of TorchRec: sorted, then row by row"
)

STATES = {"sgd": 0.0, "approx_sgd": 0.0, "adagrad": 1.0, "adam": 2.0, "lamb": 2.0,
          "partial_rowwise_adam": 1.0}  # fmt: skip
"""Number of an optimizer's state tensors of the table's size; others store one number per row."""

LINEARISE_START, AFTER_SORT, ROW_START = 13.0, (2.7, 6.0, 2.7, 5.5, 4.0, 4.0), 10.0
"""Microseconds of small kernels before the sort, which map indices of all tables to one range, and
after it: equal indices are counted (2), their positions summed (2), long runs found and processed;
and of the update of rows in addition to its bytes (traced V100: 13-17, 3 + 6, 2 + 5, 4, 4 and
13)."""

LOOKUP_START = 3.5
"""Microseconds of a lookup in addition to its bytes and the launch floor (traced V100: 6 to 7 in
total)."""

PREPARATION_KERNELS = {
    "permute_2D_sparse_data": 6, "permute_1D_sparse_data": 6, "permute_sparse_data": 6,
    "asynchronous_complete_cumsum": 3, "asynchronous_inclusive_cumsum": 2,
    "asynchronous_exclusive_cumsum": 2, "bounds_check_indices": 1,
    "block_bucketize_sparse_features": 6, "expand_into_jagged_permute": 1,
    "jagged_to_padded_dense": 1, "segment_sum_csr": 1,
}  # fmt: skip
"""Number of kernels of ops that reorder or check indices (traced, or like similar ops)."""


class Lookup(Struct, frozen=True):
    """A batched lookup as described by its op: equal tables, one for each ``max_D`` columns."""

    table: LookupTable
    count: int
    bits: int
    weights: Tensor


def _lookup(op: Op, machine: Machine) -> Lookup | None:
    attributes = {t: op.attributes.get(t) for t in ("indices", "offsets", "total_D", "max_D")}
    indices, offsets, total, width = attributes.values()
    tensors = members(op.operands)
    weights = max(tensors, key=lambda t: t.numel, default=None)
    if not isinstance(indices, Tensor) or not isinstance(offsets, Tensor) or weights is None:
        return None
    if not isinstance(total, int) or not isinstance(width, int) or not width:
        return None
    count = max(total // width, 1)
    bags, lookups = (offsets.numel - 1) // count, indices.numel // count
    rows = max(weights.numel // (count * width), 1)
    law = machine.indices.distribution_of(indices, rows)
    lengths = machine.indices.bags(indices, rows)
    table = LookupTable(
        rows, width, bags, lookups, weights.itemsize, indices.itemsize, law, pooling=lengths
    )
    bits = op.attributes.get("total_hash_size_bits")
    return Lookup(table, count, bits if isinstance(bits, int) and bits else 32, weights)


def _forward(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    lookup = _lookup(op, machine)
    if lookup is None:
        return None
    kernel = lookup_kernel([lookup.table] * lookup.count, machine)
    return (replace(kernel, time=kernel.time + (0.0 if machine.paper else LOOKUP_START)),)


def _backward(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price the fused gradient and update: indices are sorted, each distinct row is updated once.

    Without an optimizer (``dense``) a gradient of the size of all tables is filled and added to.
    """
    lookup = _lookup(op, machine)
    if lookup is None:
        return None
    table, count, kind = lookup.table, lookup.count, op.base.partition("backward_")[2]
    all_lookups = table.lookups * count
    states = 0.0 if kind == "dense" else STATES.get(kind, 1.0 / table.width)
    rows = table.distinct * count * table.row_bytes
    read = all_lookups * table.index_size + table.bags * count * table.row_bytes
    update = ROW_START + update_time(machine, read, rows * (1.0 + states))
    fill = streaming(machine, traffic(lookup.weights))
    name = f"{kind} update T{count} L{all_lookups // max(table.bags * count, 1)} D{table.width}"
    return (
        *((work("fill", "fill all tables", fill, NEAR, FILL),) if kind == "dense" else ()),
        _small("linearise", LINEARISE_START, all_lookups, machine),
        sort_kernel(all_lookups, lookup.bits, machine),
        *(_small("equal indices", start, all_lookups, machine) for start in AFTER_SORT),
        work("embedding", name, update, FEW, UPDATE),
    )


def _small(name: str, start: float, count: int, machine: Machine) -> Kernel:
    """Return a kernel over a vector of indices with a fixed time in addition to its bytes."""
    time = start + machine.stream(16.0 * count)
    return work("index", f"{name} {count}", time, FEW, UPDATE)


def _unpaired(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price an update without a lookup in the graph by the bytes of its gradient alone."""
    time = streaming(machine, 3.0 * traffic(*op.inputs))
    return (work("embedding", "update of an unknown lookup", time, UNKNOWN, UPDATE, outside=True),)


def _index_preparation(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    if not op.inputs:
        return None
    count = PREPARATION_KERNELS[op.base]
    nbytes = traffic(*op.inputs, *op.outputs)
    time = streaming(machine, nbytes / count)
    return (work("index", op.base, time, BORROWED, ROOFLINE),) * count


KINDS = (
    "sgd", "approx_sgd", "adagrad", "rowwise_adagrad", "approx_rowwise_adagrad",
    "rowwise_adagrad_with_counter", "adam", "partial_rowwise_adam", "lamb",
    "partial_rowwise_lamb", "lars_sgd", "none",
)  # fmt: skip

RULES: dict[str, Rule] = {
    **{f"fbgemm.split_embedding_codegen_lookup_{kind}_function": _forward for kind in KINDS},
    "fbgemm.dense_embedding_codegen_lookup_function": _forward,
    **{f"fbgemm.backward_{kind}": _backward for kind in (*KINDS, "dense")},
    "fbgemm.backward_unpaired": _unpaired,
    **{f"fbgemm.{name}": _index_preparation for name in PREPARATION_KERNELS},
}
