"""Slices of an axis: adjacent slices move together, each starting where the one before ends."""

from __future__ import annotations

from msgspec import Struct

from irgraph.axes.def_use import DefUse
from irgraph.axes.relations import AxisOf, ConstrainedOp, Relation, Sum, axis
from irgraph.axes.views import PIECES


class AxisSlice(Struct, frozen=True):
    """A slice of an axis: its start, its length, and the ops that take it."""

    start: int
    part: AxisOf
    length: int
    sites: tuple[ConstrainedOp, ...]


class SliceRun(Struct, frozen=True):
    """Pieces of one axis in order, and their sum."""

    pieces: tuple[AxisSlice, ...]
    total: Sum


class AxisSlices:
    """The slices that ops take of axes."""

    def __init__(self, uses: DefUse) -> None:
        self._uses = uses
        self.rows: dict[AxisOf, SliceRun | None] = {}

    def relation(self, site: ConstrainedOp) -> Relation:
        """Return the size constraints of an op that slices an axis."""
        x, y = site.inputs[0], site.outputs[0]
        dim = _dim(site)
        found = Relation()
        found.equal = [(axis(x, i), axis(y, i)) for i in range(x.rank) if i != dim]
        whole, part = axis(x, dim), axis(y, dim)
        if site.number_of("step", 1) != 1:
            return found
        if y.shape[dim] == x.shape[dim]:
            end = PIECES[site.op.name][1]
            named = site.number_of(end, -1) == x.shape[dim]
            found.equal.append((whole, part, site.argument(end)) if named else (whole, part))
        elif _explicit(site) is None:
            found.sums.append(Sum(whole, (part,)))
        else:
            row = self._row(whole, site)
            if row is not None:
                found.sums.append(row.total)
        return found

    def _row(self, whole: AxisOf, site: ConstrainedOp) -> SliceRun | None:
        """Return the pieces of the same axis; ``None`` where some overlap."""
        if whole not in self.rows:
            self.rows[whole] = self._found(whole, site)
        return self.rows[whole]

    def _found(self, whole: AxisOf, site: ConstrainedOp) -> SliceRun | None:
        dim = _dim(site)
        by_part: dict[AxisOf, list[ConstrainedOp]] = {}
        for other in self._uses.touching(whole[0]):
            if other.op.name not in PIECES or other.inputs[0].name != whole[0]:
                continue
            if _dim(other) == dim and _explicit(other) is not None:
                by_part.setdefault(axis(other.outputs[0], dim), []).append(other)
        pieces = [
            AxisSlice(_explicit(sites[0]) or 0, part, sites[0].outputs[0].shape[dim], tuple(sites))
            for part, sites in by_part.items()
        ]
        pieces.sort(key=lambda piece: piece.start)
        end = 0
        for piece in pieces:
            if piece.start < end:
                return None
            end = piece.start + piece.length
        covered = sum(piece.length for piece in pieces)
        loose = covered != site.inputs[0].shape[dim]
        return SliceRun(tuple(pieces), Sum(whole, tuple(p.part for p in pieces), loose))


def _dim(site: ConstrainedOp) -> int:
    return site.number_of("dim", 0) % site.inputs[0].rank


def _explicit(site: ConstrainedOp) -> int | None:
    """Return the start of a piece with an explicit start and end; ``None`` for others."""
    start_name, end_name = PIECES[site.op.name]
    start, end = site.number_of(start_name, 0), site.attribute(end_name)
    size = site.inputs[0].shape[_dim(site)]
    open_ = not isinstance(end, int) or end < 0 or (end_name == "end" and end > size)
    return None if start < 0 or open_ else start
