"""Prices of a graph's calls at many sizes on one device, by regions with equal schedules."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from irgraph.backend import backend
from irgraph.ir.cost import Kernel, Priced, PriceOptions
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.ir.points.kernel_regimes import Floats, Ints, KernelRegime, Sizes
from irgraph.ir.resize import with_dims
from irgraph.predict.calls import CallClasses, is_sparse
from irgraph.predict.power import clock_shares, is_concurrent, load_of


class KernelRegion(Struct, frozen=True):
    """Sizes at which all calls have the same kernels, and so the same schedule except for times.

    Attributes:
        points: indices of these sizes, ``int64[points]``.
        calls: of each representative call, its work at the first of them.
        times, spreads: microseconds of all kernels of all representatives, in order,
            ``float64[kernels, points]``.
    """

    points: Ints
    calls: tuple[KernelRegime, ...]
    times: Floats
    spreads: Floats

    @property
    def structure(self) -> object:
        """Everything that schedules depend on, except times."""
        return tuple(piece.structure for piece in self.calls)


def price_grid(
    calls: CallClasses,
    device: str,
    options: PriceOptions,
    sizes: Sequence[Mapping[str, int]],
    columns: Sizes | None = None,
) -> list[KernelRegion]:
    """Return the work of all calls at all sizes on a device, by regions of equal structure.

    ``columns`` is the result of ``columns_of``, to be shared by several devices.

    Raises ``IrgraphError`` for an unknown name or an impossible size.
    """
    options = replace(options, measured=False)
    columns = columns_of(calls, sizes) if columns is None else columns
    regimes = _price_together(calls.graph, device, options, columns, len(sizes))
    unpriced = [position for position, call_regimes in enumerate(regimes) if call_regimes is None]
    if unpriced:
        subset = _calls_to_price(calls, unpriced)
        priced = _price_each_size(subset.graph, device, options, sizes)
        for position, call_regimes in zip(subset.places, priced, strict=True):
            regimes[position] = call_regimes
    counts = np.bincount(calls.representative_of, minlength=len(regimes))
    return list(_regions([call_regimes or () for call_regimes in regimes], len(sizes), counts))


def columns_of(calls: CallClasses, sizes: Sequence[Mapping[str, int]]) -> Sizes:
    """Return sizes by dimension, for ``price_grid`` of the same calls on any device."""
    names = sorted({name for dims in sizes for name in dims})
    dims = calls.graph.dims
    return Sizes({n: np.array([s.get(n, dims[n]) for s in sizes], np.int64) for n in names})


def _price_together(
    graph: Graph, device: str, options: PriceOptions, dims: Sizes, points: int
) -> list[Sequence[KernelRegime] | None]:
    """Return the work of calls that the cost models price at all sizes together, else ``None``."""
    price_points = getattr(backend(), "price_points", None)
    if price_points is None or not points:
        return [None for _ in graph.top_level()]
    return list(price_points(graph, device, options, dims))


class _CallSubset(Struct, frozen=True):
    """A graph of some of the representative calls, and their positions."""

    graph: Graph
    places: list[int]


def _calls_to_price(calls: CallClasses, unpriced: Sequence[int]) -> _CallSubset:
    """Return the calls to price one size at a time: all if prices depend on other calls."""
    graph, ops = calls.graph, list(calls.graph.top_level())
    if calls.lookups_differ or any(
        is_sparse(op) or "ookup" in inner.name for op in ops for inner in op.walk()
    ):
        return _CallSubset(graph, list(range(len(ops))))
    return _CallSubset(
        replace(graph, ops=tuple(ops[position] for position in unpriced)), list(unpriced)
    )


def _price_each_size(
    graph: Graph, device: str, options: PriceOptions, sizes: Sequence[Mapping[str, int]]
) -> list[Sequence[KernelRegime]]:
    """Return the work of calls, priced separately at each distinct size."""
    points_by_dims: dict[tuple[tuple[str, int], ...], list[int]] = defaultdict(list)
    for point, dims_at_point in enumerate(sizes):
        points_by_dims[tuple(sorted(dims_at_point.items()))].append(point)
    groups_by_call: list[dict[object, list[tuple[list[int], KernelRegime]]]] = [
        defaultdict(list) for _ in graph.top_level()
    ]
    for dims, points in points_by_dims.items():
        priced = backend().price(with_dims(graph, dict(dims)), device, options)
        for op, groups in zip(priced.graph.top_level(), groups_by_call, strict=True):
            regime = _regime(priced, op)
            groups[regime.structure].append((points, regime))
    return [[_merge_regimes(group) for group in groups.values()] for groups in groups_by_call]


def _regime(priced: Priced, op: Op) -> KernelRegime:
    unknown = set(priced.unknown)
    inside = list(enumerate(op.walk()))
    kernels = {position: priced.kernels[o] for position, o in inside if o in priced.kernels}
    all_kernels = [kernel for op_kernels in kernels.values() for kernel in op_kernels]
    times, spreads, powers = (
        np.array([[getattr(kernel, name)] for kernel in all_kernels]).reshape(-1, 1)
        for name in ("time", "spread", "power")
    )
    unknown_positions = tuple(position for position, o in inside if o in unknown)
    point = np.zeros(1, np.int64)
    return KernelRegime(point, kernels, unknown_positions, times, spreads, powers)


def _merge_regimes(group: Sequence[tuple[list[int], KernelRegime]]) -> KernelRegime:
    """Merge regimes of equal structure into one, in the order of their points."""
    points = np.array([point for group_points, _ in group for point in group_points], np.int64)
    order = np.argsort(points, kind="stable")
    repetitions = [len(group_points) for group_points, _ in group]
    numbers: dict[str, Floats] = {}
    for name in ("times", "spreads", "powers"):
        columns = np.concatenate([getattr(piece, name) for _, piece in group], 1)
        numbers[name] = np.repeat(columns, repetitions, axis=1)[:, order]
    return replace(group[0][1], points=points[order], **numbers)


def _regions(
    regimes: Sequence[Sequence[KernelRegime]], points: int, counts: Ints
) -> Iterator[KernelRegion]:
    """Yield regions of points at which every call has the same structure.

    ``counts`` has the number of calls in the step that each of them represents.
    """
    regime_index = np.zeros((len(regimes), points), np.int64)
    for row, call_regimes in zip(regime_index, regimes, strict=True):
        for number, regime in enumerate(call_regimes):
            row[regime.points] = number
    varying = [index for index, call_regimes in enumerate(regimes) if len(call_regimes) > 1]
    keys = [row.tobytes() for row in np.ascontiguousarray(regime_index[varying].T)]
    groups: dict[bytes, list[int]] = defaultdict(list)
    for point in range(points):
        groups[keys[point] if varying else b""].append(point)
    for group_points in groups.values():
        region_points = np.array(group_points, np.int64)
        region_regimes = [
            call_regimes[regime_index[index, region_points[0]]]
            for index, call_regimes in enumerate(regimes)
        ]
        columns_of_regimes = [
            np.searchsorted(regime.points, region_points) for regime in region_regimes
        ]
        times, spreads, powers = (
            _concatenate(
                [
                    getattr(regime, name)[:, columns]
                    for regime, columns in zip(region_regimes, columns_of_regimes, strict=True)
                ]
            )
            for name in ("times", "spreads", "powers")
        )
        if powers.any():
            repetitions = np.concatenate(
                [
                    count * _counted(regime)
                    for count, regime in zip(counts, region_regimes, strict=True)
                ]
            )
            clock = clock_shares(load_of(times, powers, repetitions))
            clocks = np.where(powers > 0, clock, 1.0)
            times, spreads = times / clocks, spreads / clocks
        yield KernelRegion(region_points, tuple(region_regimes), times, spreads)


def _counted(regime: KernelRegime) -> Ints:
    """Return 1 for each kernel whose time counts for the mean draw, else 0."""
    kernels = (kernel for op_kernels in regime.kernels.values() for kernel in op_kernels)
    return np.array([not is_concurrent(kernel) for kernel in kernels], np.int64)


def _concatenate(parts: Sequence[Floats]) -> Floats:
    return np.concatenate(parts) if parts else np.zeros((0, 0))


def as_priced(
    graph: Graph, representatives: Sequence[int], part: KernelRegion, device: str
) -> Priced:
    """Return the graph with the kernels of a region, one object for each row of its times.

    ``representatives`` has the position of each top-level call's representative. Schedules read
    sizes only if host overheads depend on them: ``graph`` then has the sizes of the region.
    """
    copies = [
        {position: tuple(map(_copy, kernels)) for position, kernels in piece.kernels.items()}
        for piece in part.calls
    ]
    kernels: dict[Op, tuple[Kernel, ...]] = {}
    unknown: list[Op] = []
    for op, call in zip(graph.top_level(), representatives, strict=True):
        unknown_positions, kernels_by_position = part.calls[call].unknown, copies[call]
        for position, inner in enumerate(op.walk()):
            if position in kernels_by_position:
                kernels[inner] = kernels_by_position[position]
            if position in unknown_positions:
                unknown.append(inner)
    return Priced(graph, device, kernels, tuple(unknown))


def _copy(kernel: Kernel) -> Kernel:
    """Return a distinct object for a kernel: a rule may return the same object several times."""
    return replace(kernel)


def rows_of(priced: Priced, representatives: Sequence[int], part: KernelRegion) -> dict[int, int]:
    """Return the row of each kernel of ``as_priced`` in the times of the region, by its ``id``."""
    first = np.cumsum([0, *(len(piece.times) for piece in part.calls)])
    row_by_kernel: dict[int, int] = {}
    for op, call in zip(priced.graph.top_level(), representatives, strict=True):
        row = int(first[call])
        for position, inner in enumerate(op.walk()):
            if position in part.calls[call].kernels:
                kernels = priced.kernels[inner]
                row_by_kernel.update((id(kernel), row + i) for i, kernel in enumerate(kernels))
                row += len(kernels)
    return row_by_kernel
