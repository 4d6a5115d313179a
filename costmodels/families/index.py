"""Gathers and scatters by index tensors, and the gradients of slices."""

from __future__ import annotations

import math
import re

from costmodels.benchmarks.bench import Bench, Call
from costmodels.benchmarks.sweep import DISTRIBUTIONS, Sweep
from costmodels.families.copy import device_copy, host_copy
from costmodels.families.fill import fill_kernel
from costmodels.families.sort import nonzero_kernels
from costmodels.formulas.elements import streaming
from costmodels.formulas.intervals import CLOSE, FEW, NEAR
from costmodels.formulas.machine import Machine, Rule, members, shape_text, traffic, work
from costmodels.formulas.rows import (
    ADDED_TO,
    PICKED,
    atomic_time,
    elements_time,
    has_row_laws,
    picked_time,
)
from costmodels.formulas.scatter import (
    UPDATE,
    sort_kernel,
    tiny_kernels,
    update_time,
)
from costmodels.lookups.popularity import max_chance
from irgraph.ir.cost import Kernel
from irgraph.ir.op import Op
from irgraph.ir.points.point_values import map_points, maximum, minimum, to_float, to_int
from irgraph.ir.tensor import Tensor

GATHER_PER_CYCLE, GATHER_START = 0.67, 4.5
"""Elements per cycle and multiprocessor of ``index_elementwise_kernel``, which computes its source
address from every index with 64-bit divisions, and microseconds of its start (traced: 17.4 us for
718,848 elements, 8.2 for 73,728)."""

WAVE = 2.25
"""Microseconds of a wave of blocks of ``indexing_backward_kernel``: a chain of dependent reads of
the sorted index, its position, the gradient and the sum (traced: 319 us in 141 waves, 34-41 in
14)."""

HOPPER_START, HOPPER_WAVE = 2.7, 1.9
"""The same start and wave on Hopper (H100 SXM 80 GB, torch 2.11: 4.3 us from the cache and 6.8 from
memory for 395,390 elements; 611 us in 319 waves)."""

CHECKS = 6
"""Number of kernels that check each index on Hopper before an addition, unless the caller disables
the checks: minimum, maximum, comparisons and assertions (the same card and software)."""

RESIDENT_BLOCKS, INDICES_A_BLOCK, SLICE_A_BLOCK = 16, 4, 128
"""Maximum number of resident blocks of 128 threads on a multiprocessor; indices and elements of a
slice of each block (torch, Indexing.cu)."""

SOURCE = (
    "gathers by an element rate, sums at sorted indices by waves of blocks (traced V100 kernels; "
    "torch, Indexing.cu); other scatters by bytes at the rate of random updates; on Hopper rows by "
    "blocks or elements, additions by sectors and by the most popular row's lines (measured: H100 "
    "SXM 80 GB, torch 2.11)"
)

BACKWARD = "waves of blocks x a chain of reads (torch, Indexing.cu), wave time from traced kernels"
GATHER = "elements / (0.67 a cycle and multiprocessor), from traced kernels; never below memory"


ARITHMETIC = 6
"""Number of kernels that compute the offsets of values: for each of two indices the remainder and
the product with its stride, the sum, and the quotient by a slice's size. For an index on the host,
the remainder and the product are computed there before the copy (torch, Indexing.cu,
``computeLinearIndex``; the same in traced V100 steps: eleven kernels, or seven and two copies)."""


def _indices(op: Op, machine: Machine) -> tuple[list[Tensor], tuple[Kernel, ...]]:
    """Return an op's index tensors, and the kernels that copy them or list a mask's indices."""
    index_tensors = members(op.operands[1]) if len(op.operands) > 1 else []
    host_tensors = [t for t in index_tensors if t.device == "cpu"]
    copies = [host_copy(t, machine, to_host=False, waits=True) for t in host_tensors]
    masks = (nonzero_kernels(t, machine) for t in index_tensors if t.dtype == "bool")
    return index_tensors, (*copies, *(kernel for kernels in masks for kernel in kernels))


def _gather_kernel(name: str, result: Tensor, machine: Machine) -> Kernel:
    offsets = machine.cycles(result.numel / (GATHER_PER_CYCLE * machine.sheet.sms))
    start = HOPPER_START if has_row_laws(machine) else GATHER_START
    time = maximum(machine.stream(2 * traffic(result)), start + offsets) + machine.start
    return work("index", f"{name} {shape_text(result)}", time, NEAR, GATHER)


def _index(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    if not op.outputs:
        return None
    _, copies = _indices(op, machine)
    return (*copies, _gather_kernel("index", op.outputs[0], machine))


def _index_put(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price a write of values at indices; accumulation first sorts them, in up to ten kernels."""
    if len(op.operands) < 3:
        return None
    target, _, values = op.operands[:3]
    index_tensors, copies = _indices(op, machine)
    if not isinstance(target, Tensor) or not isinstance(values, Tensor) or not index_tensors:
        return None
    if op.attributes.get("accumulate") is not True:
        return (*copies, _gather_kernel("index put", values, machine))
    count = maximum(*(t.numel for t in index_tensors))
    index_list = op.operands[1]
    assert isinstance(index_list, tuple)
    first = next(i for i, t in enumerate(index_list) if isinstance(t, Tensor))
    last = max(i for i, t in enumerate(index_list) if isinstance(t, Tensor))
    leading = math.prod(target.shape[:first])
    trailing = math.prod(target.shape[last + 1 :])
    time = backward_time(machine, count, leading, trailing)
    name = f"index backward {count} indices into {shape_text(target)}"
    on_host = sum(t.device == "cpu" for t in index_tensors)
    bits, checks = 64, 0
    if has_row_laws(machine):
        bits = _bits(math.prod(target.shape[first : last + 1]))
        checks = (
            0
            if "impl" in op.base or "unsafe" in op.base
            else CHECKS * (len(index_tensors) - on_host)
        )
    return (
        *copies,
        *tiny_kernels(checks, count, machine),
        *tiny_kernels(max(ARITHMETIC - 2 * on_host, 1), count, machine),
        _values_copy(values, machine),
        *tiny_kernels(1, count, machine),
        sort_kernel(count, bits, machine),
        work("index", name, time, FEW, BACKWARD),
    )


def _bits(positions: int) -> int:
    """Return the number of bits that distinguish ``positions`` positions."""
    return map_points(lambda n: max(int(n) - 1, 1).bit_length(), positions)  # type: ignore[no-any-return]


def _values_copy(values: Tensor, machine: Machine) -> Kernel:
    time = streaming(machine, 2 * values.nbytes / 0.6, elements=values.numel)
    return work("transpose", f"permute {shape_text(values)}", time, CLOSE, GATHER)


def backward_time(machine: Machine, count: int, leading: int, trailing: int) -> float:
    """Return microseconds to add values at sorted indices, by waves and at least by bytes.

    ``leading`` and ``trailing`` are the numbers of elements of the axes before and after the
    indexed ones.
    """
    blocks = -(-count // INDICES_A_BLOCK) * -(-trailing // SLICE_A_BLOCK) * leading
    waves = blocks / (machine.sheet.sms * RESIDENT_BLOCKS)
    nbytes = 4.0 * count * leading * trailing
    wave = HOPPER_WAVE if has_row_laws(machine) else WAVE
    return maximum(waves * wave, update_time(machine, nbytes, nbytes)) + machine.start


def _select_rows(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price ``index_select`` and ``gather``: rows are read and written once."""
    if not op.outputs:
        return None
    result = op.outputs[0]
    nbytes = 2 * traffic(result) + traffic(*op.inputs[1:])
    name = f"{op.base} {shape_text(result)}"
    time, formula = streaming(machine, nbytes), UPDATE
    if has_row_laws(machine) and result.numel and op.base in ("index_select", "gather"):
        _, width, _ = _rows(op)
        count, formula = result.numel // maximum(width, 1), PICKED
        time = picked_time(count, width, result.itemsize, nbytes, machine)
    return (work("index", name, time, FEW, formula),)


def _rows(op: Op) -> tuple[int, int, Tensor | None]:
    """Return the number of rows of an op's table, the elements of a row, and the indices.

    A row has one element if each element has a separate index. Indices that are expanded over the
    trailing axes are one index for all of them.
    """
    table = op.inputs[0]
    dim = op.operands[1] if len(op.operands) > 1 and isinstance(op.operands[1], int) else 0
    index = next((t for t in op.inputs[1:] if t.dtype in ("i64", "i32")), None)
    if index is None or not table.rank:
        return 1, 1, index
    trailing = math.prod(table.shape[dim % table.rank + 1 :])
    is_elementwise = index.rank > 1 and index.distinct == index.numel
    return to_int(table.shape[dim]), 1 if is_elementwise else to_int(trailing), index


def _masked_rows(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price ``sparse_mask``: it selects the rows of a dense tensor that a sparse one contains."""
    values = op.inputs[1] if len(op.inputs) > 1 else None
    if values is None or not any(values.strides or (1,)):
        return None
    time = streaming(machine, 2 * traffic(values), elements=values.numel)
    return (work("index", f"rows {shape_text(values)}", time, FEW, UPDATE),)


def _scatter(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price ``index_add`` and ``scatter``: values and indices are read, their targets updated."""
    tensors = op.inputs
    if len(tensors) < 2:
        return None
    target, operands = tensors[0], tensors[1:]
    update_bytes = maximum(*(t.numel for t in operands)) * target.itemsize
    time, formula = (
        update_time(machine, traffic(*operands), minimum(update_bytes, target.nbytes)),
        UPDATE,
    )
    if has_row_laws(machine) and ATOMIC_ADDITION.fullmatch(op.base):
        time, formula = _atomic_addition_time(op, traffic(*operands), machine), ADDED_TO
    name = f"{op.base} {shape_text(max(operands, key=lambda t: t.numel))}"
    copies = () if op.written else (device_copy(target, target, machine),)
    return (*copies, work("index", name, time, FEW, formula))


ATOMIC_ADDITION = re.compile(r"(index|scatter)_add_?")
"""Names of ops that add to their target by atomic updates."""


def _atomic_addition_time(op: Op, streamed: int, machine: Machine) -> float:
    """Return microseconds of atomic additions, by the indices' distribution."""
    rows, width, index = _rows(op)
    values = maximum(*(t.numel for t in op.inputs[1:]))
    count, target = values // maximum(width, 1), op.inputs[0]
    if index is None or not values:
        return machine.start
    chance = max_chance(machine.indices.distribution_of(index, rows), rows)
    memory_time = update_time(machine, streamed, minimum(values * target.itemsize, target.nbytes))
    is_scatter = op.base.startswith("scatter")
    offset_elements = 0.0 if is_scatter else to_float(values)
    addition_time = atomic_time(count, width * target.itemsize, chance, machine, offset_elements)
    time = maximum(memory_time, addition_time + machine.start)
    if not is_scatter:
        return time
    return maximum(time, elements_time(values, streamed, machine))


def _slice_backward(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price the gradient of a slice: a zero fill of the result, and the copy of the slice."""
    if not op.outputs or not op.inputs:
        return None
    part = op.inputs[0]
    return (fill_kernel(op.outputs[0], machine), device_copy(part, part, machine))


def _copy_and_replace(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price the copy of a tensor in which another tensor replaces a part."""
    if not op.outputs or len(op.inputs) < 2:
        return None
    result, part = op.outputs[0], op.inputs[1]
    return (device_copy(result, result, machine), device_copy(part, part, machine))


RULES: dict[str, Rule] = {
    **dict.fromkeys(("aten.index", "aten._unsafe_index"), _index),
    **dict.fromkeys(
        ("aten.index_put_", "aten.index_put", "aten._index_put_impl_", "aten._unsafe_index_put"),
        _index_put,
    ),
    **dict.fromkeys(
        ("aten.index_select", "aten.gather", "aten.take", "aten.masked_select"),
        _select_rows,
    ),
    "aten.sparse_mask": _masked_rows,
    **dict.fromkeys(
        ("aten.index_add_", "aten.index_add", "aten.scatter_add_", "aten.scatter_add",
         "aten.scatter_", "aten.scatter", "aten.index_copy_", "aten.index_copy",
         "aten.scatter_reduce_", "aten.scatter_reduce", "aten.index_reduce_", "aten.index_reduce",
         "aten.put_", "aten.put", "aten.masked_scatter_", "aten.masked_scatter"),
        _scatter,
    ),
    **dict.fromkeys(
        ("aten.slice_backward", "aten.select_backward", "aten.diagonal_backward",
         "aten.unfold_backward", "aten.masked_scatter_backward"),
        _slice_backward,
    ),
    **dict.fromkeys(
        ("aten.slice_scatter", "aten.select_scatter", "aten.diagonal_scatter",
         "aten.as_strided_scatter"),
        _copy_and_replace,
    ),
}  # fmt: skip


def _bench_triangle(bench: Bench) -> Call:
    torch, side = bench.torch, bench["side"]
    matrices = bench.values(bench["batch"], side, side)
    rows, columns = torch.tril_indices(side, side, -1, device=bench.device)
    if bench.case.op == "tril_index":
        return lambda: matrices[:, rows, columns]
    values = bench.values(bench["batch"], len(rows))
    indices = (None, rows, columns)
    return lambda: torch.ops.aten.index_put_(matrices, list(indices), values, True)


def _bench_rows(bench: Bench) -> Call:
    torch, op = bench.torch, bench.case.op
    table = bench.values(bench["rows"], bench["dim"])
    rows = bench.rows(bench["rows"], bench["count"])
    if op == "index_select":
        return lambda: table.index_select(0, rows)
    values = bench.values(bench["count"], bench["dim"])
    if op == "index_add":
        return lambda: table.index_add_(0, rows, values)
    indices = rows[:, None].expand(-1, bench["dim"])
    if op == "gather":
        return lambda: torch.gather(table, 0, indices)
    return lambda: table.scatter_add_(0, indices, values)


SWEEPS = {
    "index": Sweep(
        dict.fromkeys(("tril_index", "tril_index_backward"), _bench_triangle),
        {"batch": (64, 2**12), "side": (4, 64)},
        ((2048, 27), (2048, 9)),
    ),
    "scatter": Sweep(
        dict.fromkeys(("index_select", "gather", "index_add", "scatter_add"), _bench_rows),
        {"rows": (64, 2**20), "dim": (1, 256), "count": (64, 2**18)},
        max_product=2.0**44,
        indices=DISTRIBUTIONS,
    ),
}
