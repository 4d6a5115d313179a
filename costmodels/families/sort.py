"""Sorting, top-k, and ops that torch builds on them: counts, unique values, ``nonzero``."""

from __future__ import annotations

import math

from msgspec.structs import replace

from costmodels.benchmarks.sweep import MATRIX, Sweep, forward
from costmodels.families.copy import host_copy
from costmodels.formulas.blocks.sorts import selection_time, sort_time
from costmodels.formulas.elements import ROOFLINE, streaming
from costmodels.formulas.intervals import FEW, ROUGH
from costmodels.formulas.machine import Machine, Rule, shape_text, traffic, work
from costmodels.formulas.rows import has_row_laws
from costmodels.formulas.scatter import SORT, SORT_TILE, sort_kernel
from costmodels.formulas.serial import has_gpu_laws, rate_error
from irgraph.ir.cost import Kernel
from irgraph.ir.op import Op
from irgraph.ir.points.point_values import maximum, to_int
from irgraph.ir.tensor import Tensor

SOURCE = (
    "rows by a warp or a block, selection by one block or several (torch, Sort.cu, TensorTopK.cu; "
    "measured on H100 in f32); long slices in passes over keys and 8-byte indices (Merrill 2011)"
)

SELECT = (
    "radix select: the slice is read once for every two bits of a key (torch, SortingRadixSelect)"
)
SCAN = "counted, then written by a second kernel (cub, DeviceSelect)"

SORT_FORMULA = "a warp's exchanges, or digits by blocks (torch, Sort.cu; measured: H100, f32)"
SELECTION_FORMULA = (
    "selection by one block for each row or several (torch, TensorTopK.cu; measured: H100)"
)

MAX_SELECTED = 64
"""Number of selected values beyond which their sort takes a considerable time; eight were
measured."""

SELECT_BITS = 2
"""Bits of the key that a pass of the selection decides (torch, SortingRadixSelect.cuh)."""


def _slice_length(op: Op, source: Tensor) -> int:
    """Return the number of elements of a sorted slice: an axis, by default the last, or all."""
    dim = op.attributes.get("dim", -1)
    if not source.rank:
        return 1
    return to_int(source.shape[dim]) if isinstance(dim, int) else source.numel


def sort_kernels(source: Tensor, length: int, machine: Machine) -> tuple[Kernel, ...]:
    """Return the kernels that sort slices of ``length`` elements with their indices.

    A single slice that exceeds a block takes one pass for 8 bits of the key.
    """
    pair, rows = source.itemsize + 8, source.numel // maximum(length, 1)
    name = f"sort {shape_text(source)}"
    numbering = work(
        "sort", f"number {name}", streaming(machine, 8.0 * source.numel), FEW, ROOFLINE
    )
    if has_gpu_laws(machine) and (rows > 1 or length <= SORT_TILE):
        bytes_alone = machine.stream(2.0 * pair * source.numel)
        time = maximum(sort_time(rows, length, machine) - machine.start, bytes_alone)
        return numbering, work("sort", name, time, maximum(rate_error(machine), FEW), SORT_FORMULA)
    if has_row_laws(machine):
        pairs = sort_kernel(length, 8 * source.itemsize, machine)
        return numbering, replace(pairs, name=name, family="sort", outside=True)
    passes = source.itemsize
    time = passes * (machine.stream(3.0 * pair * source.numel) + 2 * machine.start)
    return numbering, work("sort", f"{name}, {passes} passes", time, ROUGH, SORT, outside=True)


def _sort(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    source = next(iter(op.inputs), None)
    return None if source is None else sort_kernels(source, _slice_length(op, source), machine)


def _coalesce(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price coalescing a sparse tensor: rows are sorted by index, and equal indices merged."""
    values = next(iter(op.inputs), None)
    if values is None or not values.rank or not any(values.strides or (1,)):
        return None
    indices = Tensor("places", "i64", values.shape[:1], buffer="places")
    time = streaming(machine, 2 * traffic(values), elements=values.numel)
    sums = work("sort", f"add up rows of {shape_text(values)}", time, ROUGH, ROOFLINE)
    return (*sort_kernels(indices, indices.numel, machine), sums)


def _select(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price the selection of the k-th value of each slice; ``topk`` then sorts the selection."""
    source = next(iter(op.inputs), None)
    if source is None:
        return None
    name, result = f"{op.base} {shape_text(source)}", op.outputs[0] if op.outputs else None
    if op.base == "topk" and result is not None and has_gpu_laws(machine):
        length = _slice_length(op, source)
        rows = source.numel // maximum(length, 1)
        time = maximum(selection_time(rows, length, machine), machine.stream(traffic(source)))
        is_unmeasured = rows < 2 or _slice_length(op, result) > MAX_SELECTED
        error = ROUGH if is_unmeasured else maximum(rate_error(machine), FEW)
        kernel = work("sort", name, time, error, SELECTION_FORMULA, outside=is_unmeasured)
        is_sorted = is_unmeasured and op.attributes.get("sorted") is not False
        return (
            (kernel, *sort_kernels(result, _slice_length(op, result), machine)[1:])
            if is_sorted
            else (kernel,)
        )
    passes = math.ceil(8 * source.itemsize / SELECT_BITS)
    cached = traffic(source) <= machine.sheet.l2_bytes
    rate = machine.sheet.l2_bandwidth if cached else machine.sheet.bandwidth
    time = machine.stream(traffic(source)) + passes * traffic(source) / rate / 1e3 + machine.start
    kernel = work("sort", name, time, ROUGH, SELECT, outside=True)
    return (kernel,)


def nonzero_kernels(
    mask: Tensor, machine: Machine, result: Tensor | None = None
) -> tuple[Kernel, ...]:
    """Return the kernels that list true elements' indices; the host waits for their number."""
    written_bytes = result.nbytes if result is not None else 8.0 * mask.numel
    name = f"nonzero {shape_text(mask)}"
    count = Tensor("count", "i64", (), "count")
    return (
        work("sort", f"count {name}", streaming(machine, traffic(mask)), ROUGH, SCAN),
        host_copy(count, machine, to_host=True, waits=True),
        work(
            "sort",
            name,
            streaming(machine, traffic(mask) + written_bytes),
            ROUGH,
            SCAN,
            outside=True,
        ),
    )


def _nonzero(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    source = next(iter(op.inputs), None)
    return (
        None if source is None else nonzero_kernels(source, machine, next(iter(op.outputs), None))
    )


def _unique(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price unique values: a sort, a selection of first values, and the copy of their number."""
    source = next(iter(op.inputs), None)
    if source is None:
        return None
    sort = () if op.base == "unique_consecutive" else sort_kernels(source, source.numel, machine)
    return *sort, *nonzero_kernels(source, machine)


def _search(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price binary searches: steps hit the cache, values and indices are moved once."""
    if not op.outputs:
        return None
    nbytes = traffic(*op.inputs, *op.outputs)
    time = streaming(machine, nbytes, elements=op.outputs[0].numel)
    return (work("sort", f"{op.base} {shape_text(op.outputs[0])}", time, ROUGH, ROOFLINE),)


def _count_values(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price counts of values: the host reads their minimum, their maximum, and counts follow.

    (torch, SummaryOps.cu)
    """
    source = next(iter(op.inputs), None)
    if source is None:
        return None
    extremum = Tensor("extremum", source.dtype, (), "extremum")
    pass_time = streaming(machine, traffic(source))
    kernels: list[Kernel] = []
    for name in ("minimum", "maximum"):
        text = f"{name} {shape_text(source)}"
        kernels.append(work("reduce", text, pass_time, ROUGH, ROOFLINE))
        kernels.append(host_copy(extremum, machine, to_host=True, waits=True))
    time = streaming(machine, traffic(*op.inputs, *op.outputs))
    kernels.append(work("sort", f"count {shape_text(source)}", time, ROUGH, ROOFLINE))
    return tuple(kernels)


def _rules_for(rule: Rule, *names: str) -> dict[str, Rule]:
    return dict.fromkeys((f"aten.{name}" for name in names), rule)


RULES: dict[str, Rule] = {
    **_rules_for(_sort, "sort", "msort"),
    **_rules_for(_coalesce, "_coalesce"),
    **_rules_for(_select, "topk", "kthvalue", "median", "nanmedian", "mode"),
    **_rules_for(_nonzero, "nonzero", "nonzero_static"),
    **_rules_for(_unique, "_unique", "_unique2", "unique_dim", "unique_consecutive"),
    **_rules_for(_search, "searchsorted", "bucketize", "isin", "histc", "multinomial"),
    **_rules_for(_count_values, "bincount"),
}

SWEEPS = {
    "sort": Sweep(
        forward(
            {
                "sort": lambda t, x: x.sort(-1),
                "topk": lambda t, x: x.topk(min(8, x.shape[-1]), -1),
            }
        ),
        MATRIX,
        max_product=2.0**27,
    )
}
