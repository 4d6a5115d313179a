"""Many variants of a step: batch sizes, devices and hosts, priced and scheduled together.

Calls that are equal in everything that a price depends on are priced once, for all sizes together.
Variants that launch the same kinds of work share one task graph, and one pass over it times them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Unpack

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from irgraph.backend import backend
from irgraph.diagnostics import IrgraphError, argument_items, check_sizes, fail
from irgraph.gc_pause import gc_paused
from irgraph.ir.dim import Dim, Term, evaluate
from irgraph.ir.graph import Declared, Graph, cached_per_graph
from irgraph.ir.loading import scaled_loads
from irgraph.ir.points.kernel_regimes import Ints
from irgraph.ir.resize import unresized_warnings
from irgraph.overheads import HostTable
from irgraph.overheads.default_host import default_host_note, host_of_step
from irgraph.predict.calls import CallClasses
from irgraph.predict.grid import KernelRegion, as_priced, columns_of, price_grid, rows_of
from irgraph.predict.options import (
    PredictFields,
    PredictOptions,
    apply_options,
    predict_options,
    resized,
)
from irgraph.schedule.accounting import Accounting
from irgraph.schedule.sampling import intervals_of, sample_variants
from irgraph.schedule.simulate import simulate
from irgraph.schedule.steps.batch import Chain, chains_of, lengths_of, times_of
from irgraph.schedule.steps.node_graph import NodeGraph
from irgraph.schedule.tasks import Floats


class Variants(Struct, frozen=True):
    """Predicted times of every combination of device and sizes, and of host where asked for.

    Attributes:
        devices: names of the device sheets, the rows.
        sizes: of dimensions, the columns.
        step_time: microseconds, ``float64[devices, sizes]``.
        active_time: microseconds in which the device works, ``float64[devices, sizes]``.
        hosts: names of the host tables, where several were asked for; the times then are
            ``float64[hosts, devices, sizes]``.
        interval: ends of 90 % intervals of the step times, where they were asked for: as the
            times, with a last axis of two.
        warnings: what makes the figures doubtful: sizes that some of the model's numbers do not
            follow.
    """

    devices: tuple[str, ...]
    sizes: tuple[Mapping[str, int], ...]
    step_time: Floats
    active_time: Floats
    hosts: tuple[str, ...] = ()
    interval: Floats | None = None
    warnings: tuple[str, ...] = ()


@gc_paused()
def predict_variants(
    graph: Graph,
    devices: Sequence[str],
    sizes: Sequence[Mapping[str, int]],
    options: PredictOptions | None = None,
    *,
    hosts: Sequence[str] = (),
    intervals: bool = False,
    **changes: Unpack[PredictFields],
) -> Variants:
    """Predict a step at all of ``sizes`` on all of ``devices``, by models alone.

    The same times, to the last digit, as ``predict`` gives one by one with ``measured=False``.
    ``sizes`` override ``dims`` of the options, ``devices`` their device, ``hosts`` their host.
    ``intervals`` asks for those of the step times, too: each takes as long as tens of times.

    Raises ``IrgraphError`` for an unknown name, an impossible size, what should be a list and is
    none, or an accounting that is not simulated.
    """
    merged_options = predict_options(options, **changes)
    if not merged_options.rules.simulated:
        message = f"accounting: {merged_options.rules.name!r} predicts one step at a time"
        raise fail(message, hint="call predict for each variant", exit_code=2)
    graph = apply_options(graph, merged_options)
    devices, hosts = (
        argument_items("devices", devices, "names"),
        argument_items("hosts", hosts, "names"),
    )
    sizes = argument_items("sizes", sizes, "sizes, each by the names of dimensions")
    for dims in sizes:
        check_sizes("sizes", dims)
    sheets = [backend().device(name, graph) for name in devices]
    host_names = hosts or (merged_options.host,)
    tables = [host_of_step(name, graph, merged_options.software) for name in host_names]
    _check_sizes(graph, sizes)
    has_indices = bool(merged_options.indices) or "indices" in graph.settings
    calls = (_calls_by_lookup if has_indices else _calls)(graph)
    columns = columns_of(calls, sizes)
    parts = [
        (row, part)
        for row, device in enumerate(devices)
        for part in price_grid(calls, device, merged_options, sizes, columns)
    ]
    step = np.zeros((len(tables), len(sheets), len(sizes)))
    active = np.zeros_like(step)
    ends = np.zeros((*step.shape, 2))
    for table_index, table in enumerate(tables):
        for schedule, members in _schedules_with_members(
            graph, calls, parts, sizes, table, merged_options.rules
        ):
            for row, points, times in schedule.times(members):
                step[table_index, row, points], active[table_index, row, points] = times
            interval_parts = schedule.intervals(members) if intervals else ()
            for row, points, interval_ends in interval_parts:
                ends[table_index, row, points] = interval_ends
    names, table_names = tuple(s.name for s in sheets), tuple(t.name for t in tables)
    host_notes = filter(None, map(default_host_note, tables))
    warnings = (*unresized_warnings(graph, *sizes), *dict.fromkeys(host_notes))
    if not hosts:
        step, active, ends, table_names = step[0], active[0], ends[0], ()
    bounds = ends if intervals else None
    return Variants(names, tuple(sizes), step, active, table_names, bounds, warnings)


@cached_per_graph
def _calls(graph: Graph) -> CallClasses:
    return CallClasses(graph, lookups_differ=False)


@cached_per_graph
def _calls_by_lookup(graph: Graph) -> CallClasses:
    return CallClasses(graph, lookups_differ=True)


def _check_sizes(graph: Graph, sizes: Sequence[Mapping[str, int]]) -> None:
    """Raise the ``IrgraphError`` of ``resized`` if one of the sizes is impossible."""
    empty_graph = replace(graph, ops=())
    if not _is_largest_valid(empty_graph, sizes):
        for dims in sizes:
            resized(empty_graph, dims)
    shrinking_terms = {
        terms for terms in _output_size_terms(graph) if any(number < 0 for _, number in terms)
    }
    for terms in shrinking_terms:
        for dims in sizes:
            if evaluate(terms, {**graph.dims, **dims}) < 0:
                resized(graph, dims)


def _is_largest_valid(graph: Graph, sizes: Sequence[Mapping[str, int]]) -> bool:
    """Return whether the largest of all sizes is possible and no tensor shrinks with a dimension.

    Then all sizes are possible; else they have to be checked individually.
    """
    are_valid = all(type(size) is int and size >= 1 for dims in sizes for size in dims.values())
    names = {name for dims in sizes for name in dims}
    if not are_valid or not names <= graph.dims.keys() or any(map(_may_shrink, graph.tensors)):
        return False
    largest = {name: max(dims.get(name, graph.dims[name]) for dims in sizes) for name in names}
    try:
        resized(graph, largest)
    except IrgraphError:
        return False
    return True


def _may_shrink(declared: Declared) -> bool:
    """Return whether a tensor may be smaller if a dimension is larger."""
    tensor = declared.tensor
    sizes = (*tensor.shape, *(tensor.strides or ()), tensor.offset)
    return any(count < 0 for size in sizes if type(size) is Dim for _, count in size.terms)


def _output_size_terms(graph: Graph) -> Iterator[tuple[Term, ...]]:
    """Yield the expressions of the sizes along the axes of all results of ops."""
    outputs_by_id = {id(tensor): tensor for op in graph.walk() for tensor in op.outputs}
    for tensor in outputs_by_id.values():
        yield from (size.terms for size in tensor.shape if type(size) is Dim)


def _schedules_with_members(
    graph: Graph,
    calls: CallClasses,
    parts: Sequence[tuple[int, KernelRegion]],
    sizes: Sequence[Mapping[str, int]],
    table: HostTable,
    rules: Accounting,
) -> Iterator[tuple[_Schedule, list[tuple[int, KernelRegion]]]]:
    """Yield a schedule for each structure, with its members: device rows and their regions."""
    groups: dict[tuple[object, int], list[tuple[int, KernelRegion]]] = defaultdict(list)
    depends_on_sizes = _depends_on_sizes(table) or any(scaled_loads(graph))
    for row, part in parts:
        for region in _split_by_point(part) if depends_on_sizes else (part,):
            point = int(region.points[0]) if depends_on_sizes else -1
            groups[region.structure, point].append((row, region))
    for (structure, point), members in groups.items():
        part = members[0][1]
        if point >= 0:
            yield _Schedule(resized(graph, sizes[point]), calls, part, table, rules), members
            continue
        key = (structure, calls.lookups_differ, id(table), rules)
        cached_schedules = _cached_schedules(graph)
        schedule = cached_schedules.pop(key, None) or _Schedule(graph, calls, part, table, rules)
        cached_schedules[key] = schedule
        if len(cached_schedules) > MAX_SCHEDULES:
            cached_schedules.pop(next(iter(cached_schedules)), None)
        yield schedule, members


MAX_SCHEDULES = 8
"""Maximum number of schedules cached with a graph for other sizes of the same structures."""


@cached_per_graph
def _cached_schedules(graph: Graph) -> dict[object, _Schedule]:
    """Return a graph's cache of schedules; each holds the host table whose ``id`` is in its key."""
    return {}


def _split_by_point(part: KernelRegion) -> Iterator[KernelRegion]:
    """Yield a region for each point of a region."""
    for index in range(len(part.points)):
        point = slice(index, index + 1)
        yield replace(
            part,
            points=part.points[point],
            times=part.times[:, point],
            spreads=part.spreads[:, point],
        )


def _depends_on_sizes(table: HostTable) -> bool:
    """Return whether a host's overheads depend on sizes."""
    return any(entry.shapes for entry in table.file.ops.values())


class _Schedule:
    """The task graph that variants of one structure share."""

    def __init__(
        self,
        graph: Graph,
        calls: CallClasses,
        part: KernelRegion,
        table: HostTable,
        rules: Accounting,
    ) -> None:
        priced = as_priced(graph, calls.representative_of, part, "")
        self.columns = columns = simulate(priced, table, accounting=rules).columns
        self.table, self.tasks, self.extra = table, columns.tasks, rules.per_kernel
        self.work = np.flatnonzero(self.tasks.has_cause("kernel"))
        row = rows_of(priced, calls.representative_of, part)
        kernels = [columns.kernels[kernel] for kernel in self.tasks.kernel[self.work].tolist()]
        self.rows = np.array([row[id(kernel)] for kernel in kernels], np.int64)

    @cached_property
    def chains(self) -> Sequence[Chain]:
        """The chains of the tasks."""
        return chains_of(self.tasks, self.work)

    @cached_property
    def collapsed(self) -> NodeGraph:
        """The tasks, folded for many draws."""
        return NodeGraph(self.tasks, self.work)

    def times(
        self, members: Sequence[tuple[int, KernelRegion]]
    ) -> Iterator[tuple[int, Ints, tuple[Floats, Floats]]]:
        """Yield rows, their points, and step and active times.

        All are timed in one pass, so the overhead of each task is paid once.
        """
        kernels = np.concatenate([part.times for _, part in members], axis=1)
        step, active = times_of(self.tasks, self.work, self.rows, kernels, self.extra, self.chains)
        first = 0
        for row, part in members:
            span = slice(first, first + len(part.points))
            yield row, part.points, (step[span], active[span])
            first = span.stop

    def intervals(
        self, members: Sequence[tuple[int, KernelRegion]]
    ) -> Iterator[tuple[int, Ints, Floats]]:
        """Yield rows, their points, and the ends of 90 % intervals, ``float64[points, 2]``."""
        lengths, spreads = (
            np.concatenate(columns, axis=1)
            for columns in zip(*(self._work(part) for _, part in members), strict=True)
        )
        # if work shares the device, each task of a kernel has its own duration
        rows = np.arange(len(self.work)) if self.tasks.shared_pools else self.rows
        samples = sample_variants(
            self.columns, self.table, self.collapsed, self.work, rows, lengths, spreads
        )
        ends = intervals_of(samples)
        first = 0
        for row, part in members:
            span = slice(first, first + len(part.points))
            yield row, part.points, ends[span]
            first = span.stop

    def _work(self, part: KernelRegion) -> tuple[Floats, Floats]:
        """Return the durations of kernels and their spreads, ``float64[kernels, points]`` each."""
        if not self.tasks.shared_pools:
            return part.times + self.extra, part.spreads
        lengths = lengths_of(self.tasks, self.work, self.rows, part.times, self.extra)
        return lengths, part.spreads[self.rows]
