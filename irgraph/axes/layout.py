"""Layouts of the tensors of a graph after some of their axes have grown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import product

from irgraph.axes.algebra import Algebra
from irgraph.axes.propagation import Propagation
from irgraph.axes.relations import Argument, ConstrainedOp
from irgraph.axes.sizes import FixedSizeError
from irgraph.axes.slices import AxisSlice
from irgraph.axes.sparse import is_sparse
from irgraph.axes.views import PIECES, Layout, dense_strides, is_known_view, view_layouts
from irgraph.ir.tensor import Tensor, tight


def arguments(change: Propagation) -> dict[Argument, int]:
    """Return all sizes among arguments that change, starts and ends of pieces included."""
    found = {spot: size for spot, size in change.sizes.items() if len(spot) == 3}
    for row in change.pieces.rows.values():
        if row is not None:
            found.update(_places(change, row.pieces))
    return found


def _places(change: Propagation, pieces: Iterable[AxisSlice]) -> Iterator[tuple[Argument, int]]:
    """Yield the new bounds of the pieces of a row, by the arguments that give them."""
    algebra = change.algebra
    ahead = 0
    for piece in pieces:
        start = algebra.plus(piece.start, ahead)
        length = change.size(piece.part)
        said = {"start": start, "end": algebra.plus(start, length), "length": length}
        ahead = algebra.plus(ahead, change.growth(piece.part))
        for site, name in product(piece.sites, said):
            asked = name in ("start", PIECES[site.op.name][1]) and name in site.op.attributes
            if asked and algebra.grows(said[name]):
                yield site.argument(name), said[name]


def layouts(change: Propagation, given: Mapping[Argument, int]) -> dict[str, Layout]:
    """Return the layout of every tensor that changes, as expressions of the growth.

    Raises ``FixedSizeError`` where the layout of a tensor that grows is undetermined.
    """
    return _Layouts(change, given).found


class _Layouts:
    def __init__(self, change: Propagation, given: Mapping[Argument, int]) -> None:
        self.change = change
        self.algebra = change.algebra
        self.found: dict[str, Layout] = {}
        self._given = given
        self._shapes = {spot[0] for spot in change.sizes if len(spot) == 2}
        self._sites = {spot[0] for spot in given}
        self._allocated: dict[str, list[Tensor]] = {}
        for tensor in self._own():
            self._allocated.setdefault(tensor.buffer, []).append(tensor)
        for declared in change.uses.graph.tensors:
            if declared.tensor.name in self._shapes:
                self.found[declared.tensor.name] = self._anew(declared.tensor, None)
        for site in change.uses.sites:
            if not site.op.body:
                self._visit(site)

    def _own(self) -> Iterator[Tensor]:
        """Yield the tensors that are not known to be views of others."""
        yield from (declared.tensor for declared in self.change.uses.graph.tensors)
        for site in self.change.uses.sites:
            held = {tensor.buffer for tensor in site.inputs}
            if not site.op.body:
                yield from (y for y in site.outputs if y.buffer not in held)

    def _visit(self, site: ConstrainedOp) -> None:
        views = is_known_view(site) and site.outputs[0].buffer == site.inputs[0].buffer
        moved = views and (site.inputs[0].name in self.found or site.number in self._sites)
        changed = any(t.name in self._shapes for t in site.outputs)
        if not (moved or changed):
            return
        if views and self._is_right(site):
            self._views(site)
            return
        held = {t.buffer: t for t in site.inputs}
        for tensor in site.outputs:
            base = held.get(tensor.buffer)
            unlike = base is not None and base.name in self.found and base.shape != tensor.shape
            if unlike and not is_sparse(site):
                raise FixedSizeError(site.op, f"{site.op.name} returns a view of an unknown kind")
            if tensor.name in self._shapes:
                self.found[tensor.name] = self._anew(tensor, site)

    def shape(self, tensor: Tensor) -> tuple[int, ...]:
        """Return the expressions of a tensor's sizes."""
        return tuple(self.change.size((tensor.name, i)) for i in range(tensor.rank))

    def _first(self, site: ConstrainedOp) -> int:
        spot = site.argument("start")
        given = self._given.get(spot)
        return site.number_of("start", 0) if given is None else given

    def _views(self, site: ConstrainedOp) -> None:
        x = site.inputs[0]
        layout = self.found.get(x.name) or layout_of(x, self.algebra)
        shapes = [self.shape(y) for y in site.outputs]
        for y, made in zip(
            site.outputs,
            view_layouts(site, layout, shapes, self._first(site), self.algebra),
            strict=True,
        ):
            self.found[y.name] = made

    def _is_right(self, site: ConstrainedOp) -> bool:
        """Return whether the rule of a view gives the layout in the graph."""
        x = layout_of(site.inputs[0], self.algebra)
        first = site.number_of("start", 0)
        made = view_layouts(site, x, [y.shape for y in site.outputs], first, self.algebra)
        return all(
            y.offset == wanted.offset and y.strides == tight(y.shape, wanted.strides)
            for y, wanted in zip(site.outputs, made, strict=True)
        )

    def _anew(self, tensor: Tensor, site: ConstrainedOp | None) -> Layout:
        following = [t for t in self._allocated.get(tensor.buffer, ()) if t.offset > tensor.offset]
        if following:
            message = f"%{following[0].name} follows %{tensor.name} in ${tensor.buffer}"
            raise FixedSizeError(site.op if site else None, message)
        shape = self.shape(tensor)
        steps = dense_strides(tensor, shape, self.algebra)
        if steps is None:
            message = f"%{tensor.name} has gaps between its elements"
            raise FixedSizeError(site.op if site else None, message)
        return Layout(shape, steps, tensor.offset)


def layout_of(tensor: Tensor, algebra: Algebra) -> Layout:
    """Return a tensor's layout, with strides as expressions."""
    if tensor.strides is not None:
        return Layout(tensor.shape, tensor.strides, tensor.offset)
    return Layout(tensor.shape, dense_strides(tensor, tensor.shape, algebra) or (), tensor.offset)
