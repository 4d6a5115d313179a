"""Slices of an axis: adjacent slices move together, each starting at the end of the previous."""

from __future__ import annotations

from msgspec import Struct

from irgraph.axes.def_use import DefUse
from irgraph.axes.relations import AxisOf, ConstrainedOp, Relation, Sum, axis
from irgraph.axes.views import end_argument, is_slice


class AxisSlice(Struct, frozen=True):
    """A slice of an axis: its start, its length, and the ops that return it."""

    start: int
    part: AxisOf
    length: int
    sites: tuple[ConstrainedOp, ...]


class SliceRun(Struct, frozen=True):
    """Slices of one axis in order, and the constraint that they add up to the axis."""

    slices: tuple[AxisSlice, ...]
    constraint: Sum


class AxisSlices:
    """The slices of axes by ops."""

    def __init__(self, uses: DefUse) -> None:
        self._uses = uses
        self.runs: dict[AxisOf, SliceRun | None] = {}

    def relation(self, site: ConstrainedOp) -> Relation:
        """Return the size constraints of an op that slices an axis."""
        x, y = site.inputs[0], site.outputs[0]
        dim = _dim(site)
        relation = Relation()
        relation.equal = [(axis(x, i), axis(y, i)) for i in range(x.rank) if i != dim]
        source, part = axis(x, dim), axis(y, dim)
        if site.number_of("step", 1) != 1:
            return relation
        if site.number_of("start", 0) < 0:
            # counted from the end: the part stays the same
            relation.free.add(source)
        elif y.shape[dim] == x.shape[dim]:
            end = end_argument(site.op)
            has_end_argument = site.number_of(end, -1) == x.shape[dim]
            relation.equal.append(
                (source, part, site.argument(end)) if has_end_argument else (source, part)
            )
        elif _explicit_start(site) is None:
            relation.sums.append(Sum(source, (part,)))
        else:
            run = self._run(source, site)
            if run is not None:
                relation.sums.append(run.constraint)
        return relation

    def _run(self, source: AxisOf, site: ConstrainedOp) -> SliceRun | None:
        """Return the slices of the same axis, or ``None`` if some overlap."""
        if source not in self.runs:
            self.runs[source] = self._find_run(source, site)
        return self.runs[source]

    def _find_run(self, source: AxisOf, site: ConstrainedOp) -> SliceRun | None:
        dim = _dim(site)
        ops_by_part: dict[AxisOf, list[ConstrainedOp]] = {}
        for user in self._uses.users(source[0]):
            if not is_slice(user.op) or user.inputs[0].name != source[0]:
                continue
            if _dim(user) == dim and _explicit_start(user) is not None:
                ops_by_part.setdefault(axis(user.outputs[0], dim), []).append(user)
        slices = [
            AxisSlice(
                _explicit_start(sites[0]) or 0, part, sites[0].outputs[0].shape[dim], tuple(sites)
            )
            for part, sites in ops_by_part.items()
        ]
        slices.sort(key=lambda axis_slice: axis_slice.start)
        end = 0
        for axis_slice in slices:
            if axis_slice.start < end:
                return None
            end = axis_slice.start + axis_slice.length
        covered_length = sum(axis_slice.length for axis_slice in slices)
        loose = covered_length != site.inputs[0].shape[dim]
        return SliceRun(tuple(slices), Sum(source, tuple(p.part for p in slices), loose))


def _dim(site: ConstrainedOp) -> int:
    return site.number_of("dim", 0) % site.inputs[0].rank


def _explicit_start(site: ConstrainedOp) -> int | None:
    """Return the start of a slice with an explicit start and end; ``None`` for others."""
    end_name = end_argument(site.op)
    start, end = site.number_of("start", 0), site.attribute(end_name)
    size = site.inputs[0].shape[_dim(site)]
    open_ = not isinstance(end, int) or end < 0 or (end_name == "end" and end > size)
    return None if start < 0 or open_ else start
