"""Prices of a graph's calls at many sizes on one device, and which sizes have equal schedules."""

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
from irgraph.ir.points.pieces import Floats, Ints, KernelRegime, Sizes
from irgraph.ir.resize import with_dims
from irgraph.predict.calls import CallClasses, is_sparse


class KernelRegion(Struct, frozen=True):
    """Sizes at which all calls have the same kernels, and so the same schedule but for times.

    Attributes:
        points: places of these sizes, ``int64[points]``.
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
        """What schedules depend on beside times."""
        return tuple(piece.structure for piece in self.calls)


def price_grid(
    calls: CallClasses,
    device: str,
    options: PriceOptions,
    sizes: Sequence[Mapping[str, int]],
    columns: Sizes | None = None,
) -> list[KernelRegion]:
    """Return the work of all calls at all sizes on a device, by parts of equal structure.

    ``columns`` are those of ``columns_of``, where they are asked for on several devices.

    Raises ``IrgraphError`` for an unknown name or an impossible size.
    """
    options = replace(options, measured=False)
    columns = columns_of(calls, sizes) if columns is None else columns
    found = _at_once(calls.graph, device, options, columns, len(sizes))
    alone = [at for at, pieces in enumerate(found) if pieces is None]
    if alone:
        some = _needed(calls, alone)
        priced = _one_by_one(some.graph, device, options, sizes)
        for at, pieces in zip(some.places, priced, strict=True):
            found[at] = pieces
    return list(_parts([pieces or () for pieces in found], len(sizes)))


def columns_of(calls: CallClasses, sizes: Sequence[Mapping[str, int]]) -> Sizes:
    """Return sizes by dimension, for ``price_grid`` of the same calls on any device."""
    names = sorted({name for given in sizes for name in given})
    dims = calls.graph.dims
    return Sizes({n: np.array([s.get(n, dims[n]) for s in sizes], np.int64) for n in names})


def _at_once(
    graph: Graph, device: str, options: PriceOptions, dims: Sizes, points: int
) -> list[Sequence[KernelRegime] | None]:
    """Return what the cost models price at all sizes together."""
    ask = getattr(backend(), "price_points", None)
    if ask is None or not points:
        return [None for _ in graph.top_level()]
    return list(ask(graph, device, options, dims))


class _CallSubset(Struct, frozen=True):
    """A graph of some of the representative calls, and their places."""

    graph: Graph
    places: list[int]


def _needed(calls: CallClasses, alone: Sequence[int]) -> _CallSubset:
    """Return the calls that are priced one size at a time; all, where prices depend on others."""
    graph, ops = calls.graph, list(calls.graph.top_level())
    if calls.differ or any(
        is_sparse(op) or "ookup" in inner.name for op in ops for inner in op.walk()
    ):
        return _CallSubset(graph, list(range(len(ops))))
    return _CallSubset(replace(graph, ops=tuple(ops[at] for at in alone)), list(alone))


def _one_by_one(
    graph: Graph, device: str, options: PriceOptions, sizes: Sequence[Mapping[str, int]]
) -> list[Sequence[KernelRegime]]:
    """Return the work of calls, priced at each distinct size alone."""
    known: dict[tuple[tuple[str, int], ...], list[int]] = defaultdict(list)
    for at, given in enumerate(sizes):
        known[tuple(sorted(given.items()))].append(at)
    found: list[dict[object, list[tuple[list[int], KernelRegime]]]] = [
        defaultdict(list) for _ in graph.top_level()
    ]
    for dims, places in known.items():
        priced = backend().price(with_dims(graph, dict(dims)), device, options)
        for op, groups in zip(priced.graph.top_level(), found, strict=True):
            piece = _piece(priced, op)
            groups[piece.structure].append((places, piece))
    return [[_joined(group) for group in groups.values()] for groups in found]


def _piece(priced: Priced, op: Op) -> KernelRegime:
    unknown = {id(leaf) for leaf in priced.unknown}
    inside = list(enumerate(op.walk()))
    kernels = {at: priced.kernels[id(o)] for at, o in inside if id(o) in priced.kernels}
    every = [kernel for found in kernels.values() for kernel in found]
    times = np.array([[kernel.time] for kernel in every]).reshape(-1, 1)
    spreads = np.array([[kernel.spread] for kernel in every]).reshape(-1, 1)
    lacking = tuple(at for at, o in inside if id(o) in unknown)
    return KernelRegime(np.zeros(1, np.int64), kernels, lacking, times, spreads)


def _joined(group: Sequence[tuple[list[int], KernelRegime]]) -> KernelRegime:
    """Return pieces of equal structure as one, in the order of their points."""
    points = np.array([at for places, _ in group for at in places], np.int64)
    order = np.argsort(points, kind="stable")
    repeated = [len(places) for places, _ in group]
    times = np.repeat(np.concatenate([p.times for _, p in group], 1), repeated, axis=1)
    spreads = np.repeat(np.concatenate([p.spreads for _, p in group], 1), repeated, axis=1)
    return replace(
        group[0][1], points=points[order], times=times[:, order], spreads=spreads[:, order]
    )


def _parts(found: Sequence[Sequence[KernelRegime]], points: int) -> Iterator[KernelRegion]:
    """Yield parts of the points at which no call has another structure."""
    which = np.zeros((len(found), points), np.int64)
    for row, pieces in zip(which, found, strict=True):
        for number, piece in enumerate(pieces):
            row[piece.points] = number
    several = [at for at, pieces in enumerate(found) if len(pieces) > 1]
    keys = [row.tobytes() for row in np.ascontiguousarray(which[several].T)]
    groups: dict[bytes, list[int]] = defaultdict(list)
    for at in range(points):
        groups[keys[at] if several else b""].append(at)
    for members in groups.values():
        chosen = np.array(members, np.int64)
        pieces = [of[which[at, chosen[0]]] for at, of in enumerate(found)]
        places = [np.searchsorted(piece.points, chosen) for piece in pieces]
        times = [p.times[:, at] for p, at in zip(pieces, places, strict=True)]
        spreads = [p.spreads[:, at] for p, at in zip(pieces, places, strict=True)]
        yield KernelRegion(chosen, tuple(pieces), _stacked(times), _stacked(spreads))


def _stacked(parts: Sequence[Floats]) -> Floats:
    return np.concatenate(parts) if parts else np.zeros((0, 0))


def as_priced(graph: Graph, of: Sequence[int], part: KernelRegion, device: str) -> Priced:
    """Return the graph with the kernels of a part, one object for each row of its times.

    ``of`` gives for each top-level call its representative. Schedules read sizes only where host
    overheads depend on them: ``graph`` then has those of the part.
    """
    fresh = [
        {at: tuple(map(_copy, kernels)) for at, kernels in piece.kernels.items()}
        for piece in part.calls
    ]
    kernels: dict[int, tuple[Kernel, ...]] = {}
    unknown: list[Op] = []
    for op, which in zip(graph.top_level(), of, strict=True):
        lacking, known = part.calls[which].unknown, fresh[which]
        for at, inner in enumerate(op.walk()):
            if at in known:
                kernels[id(inner)] = known[at]
            if at in lacking:
                unknown.append(inner)
    return Priced(graph, device, kernels, tuple(unknown))


def _copy(kernel: Kernel) -> Kernel:
    """Return a kernel that is told apart from all others: a rule may give one several times."""
    return replace(kernel)


def rows_of(priced: Priced, of: Sequence[int], part: KernelRegion) -> dict[int, int]:
    """Return, by ``id`` of each kernel of ``as_priced``, its row in the times of the part."""
    first = np.cumsum([0, *(len(piece.times) for piece in part.calls)])
    found: dict[int, int] = {}
    for op, which in zip(priced.graph.top_level(), of, strict=True):
        row = int(first[which])
        for at, inner in enumerate(op.walk()):
            if at in part.calls[which].kernels:
                kernels = priced.kernels[id(inner)]
                found.update((id(kernel), row + i) for i, kernel in enumerate(kernels))
                row += len(kernels)
    return found
