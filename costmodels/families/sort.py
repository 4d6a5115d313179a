"""Sorting, top-k, and what torch builds on them: counts, unique values, ``nonzero``."""

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

SORTED = "a warp's exchanges, or digits by blocks (torch, Sort.cu; measured: H100, f32)"
SELECTED = "selection by one block for each row or several (torch, TensorTopK.cu; measured: H100)"

MOST_SELECTED = 64
"""Values to select beyond which sorting them is no small part; eight were measured."""

SELECT_BITS = 2
"""Bits of the key that a pass of the selection decides (torch, SortingRadixSelect.cuh)."""


def _slice(op: Op, source: Tensor) -> int:
    """Return the elements that are sorted together: an axis, the last by default, or all."""
    dim = op.attributes.get("dim", -1)
    if not source.rank:
        return 1
    return to_int(source.shape[dim]) if isinstance(dim, int) else source.numel


def sorting(source: Tensor, together: int, machine: Machine) -> tuple[Kernel, ...]:
    """Return the kernels that sort slices of ``together`` elements with their indices.

    One slice of more than a block sorts takes a pass for 8 bits of the key.
    """
    pair, rows = source.itemsize + 8, source.numel // maximum(together, 1)
    name = f"sort {shape_text(source)}"
    places = work("sort", f"number {name}", streaming(machine, 8.0 * source.numel), FEW, ROOFLINE)
    if has_gpu_laws(machine) and (rows > 1 or together <= SORT_TILE):
        bytes_alone = machine.stream(2.0 * pair * source.numel)
        time = maximum(sort_time(rows, together, machine) - machine.start, bytes_alone)
        return places, work("sort", name, time, maximum(rate_error(machine), FEW), SORTED)
    if has_row_laws(machine):
        pairs = sort_kernel(together, 8 * source.itemsize, machine)
        return places, replace(pairs, name=name, family="sort", outside=True)
    passes = source.itemsize
    time = passes * (machine.stream(3.0 * pair * source.numel) + 2 * machine.start)
    return places, work("sort", f"{name}, {passes} passes", time, ROUGH, SORT, outside=True)


def _sort(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    source = next(iter(op.inputs), None)
    return None if source is None else sorting(source, _slice(op, source), machine)


def _coalesce(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price coalescing a sparse tensor: its rows are sorted by index, and equal ones summed."""
    values = next(iter(op.inputs), None)
    if values is None or not values.rank or not any(values.strides or (1,)):
        return None
    places = Tensor("places", "i64", values.shape[:1], buffer="places")
    time = streaming(machine, 2 * traffic(values), elements=values.numel)
    added = work("sort", f"add up rows of {shape_text(values)}", time, ROUGH, ROOFLINE)
    return (*sorting(places, places.numel, machine), added)


def _select(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price finding the k-th value of each slice; ``topk`` then sorts the selected ones."""
    source = next(iter(op.inputs), None)
    if source is None:
        return None
    name, kept = f"{op.base} {shape_text(source)}", op.outputs[0] if op.outputs else None
    if op.base == "topk" and kept is not None and has_gpu_laws(machine):
        together = _slice(op, source)
        rows = source.numel // maximum(together, 1)
        time = maximum(selection_time(rows, together, machine), machine.stream(traffic(source)))
        unlike = rows < 2 or _slice(op, kept) > MOST_SELECTED
        error = ROUGH if unlike else maximum(rate_error(machine), FEW)
        found = work("sort", name, time, error, SELECTED, outside=unlike)
        many = unlike and op.attributes.get("sorted") is not False
        return (found, *sorting(kept, _slice(op, kept), machine)[1:]) if many else (found,)
    passes = math.ceil(8 * source.itemsize / SELECT_BITS)
    cached = traffic(source) <= machine.sheet.l2_bytes
    rate = machine.sheet.l2_bandwidth if cached else machine.sheet.bandwidth
    time = machine.stream(traffic(source)) + passes * traffic(source) / rate / 1e3 + machine.start
    found = work("sort", name, time, ROUGH, SELECT, outside=True)
    return (found,)


def places(mask: Tensor, machine: Machine, found: Tensor | None = None) -> tuple[Kernel, ...]:
    """Return the kernels that list true elements' indices; the host waits for their number."""
    written = found.nbytes if found is not None else 8.0 * mask.numel
    name = f"nonzero {shape_text(mask)}"
    count = Tensor("count", "i64", (), "count")
    return (
        work("sort", f"count {name}", streaming(machine, traffic(mask)), ROUGH, SCAN),
        host_copy(count, machine, to_host=True, waits=True),
        work("sort", name, streaming(machine, traffic(mask) + written), ROUGH, SCAN, outside=True),
    )


def _nonzero(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    source = next(iter(op.inputs), None)
    return None if source is None else places(source, machine, next(iter(op.outputs), None))


def _unique(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price unique values: a sort, a pass that keeps the first of each, and their number's copy."""
    source = next(iter(op.inputs), None)
    if source is None:
        return None
    sort = () if op.base == "unique_consecutive" else sorting(source, source.numel, machine)
    return *sort, *places(source, machine)


def _search(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price binary searches: their steps hit the cache, values and indices move once."""
    if not op.outputs:
        return None
    moved = traffic(*op.inputs, *op.outputs)
    time = streaming(machine, moved, elements=op.outputs[0].numel)
    return (work("sort", f"{op.base} {shape_text(op.outputs[0])}", time, ROUGH, ROOFLINE),)


def _named(rule: Rule, *names: str) -> dict[str, Rule]:
    return dict.fromkeys((f"aten.{name}" for name in names), rule)


RULES: dict[str, Rule] = {
    **_named(_sort, "sort", "msort"),
    **_named(_coalesce, "_coalesce"),
    **_named(_select, "topk", "kthvalue", "median", "nanmedian", "mode"),
    **_named(_nonzero, "nonzero", "nonzero_static"),
    **_named(_unique, "_unique", "_unique2", "unique_dim", "unique_consecutive"),
    **_named(_search, "searchsorted", "bucketize", "isin", "bincount", "histc", "multinomial"),
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
        most=2.0**27,
    )
}
