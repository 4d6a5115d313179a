"""How the tensors of a graph lie once some of their axes have grown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import product

from irgraph.axes.algebra import Algebra
from irgraph.axes.pieces import Piece
from irgraph.axes.relations import Argument, Site
from irgraph.axes.sizes import PinnedError
from irgraph.axes.spread import Spread
from irgraph.axes.views import PIECES, Lying, dense, is_known_view, lie
from irgraph.ir.tensor import Tensor, tight


def arguments(spread: Spread) -> dict[Argument, int]:
    """Return all sizes among arguments that change, starts and ends of pieces included."""
    found = {spot: size for spot, size in spread.sizes.items() if len(spot) == 3}
    for row in spread.pieces.rows.values():
        if row is not None:
            found.update(_places(spread, row.pieces))
    return found


def _places(spread: Spread, pieces: Iterable[Piece]) -> Iterator[tuple[Argument, int]]:
    """Yield where the pieces of a row lie now, by the arguments that say it and change."""
    algebra = spread.algebra
    ahead = 0
    for piece in pieces:
        start = algebra.plus(piece.start, ahead)
        length = spread.size(piece.part)
        said = {"start": start, "end": algebra.plus(start, length), "length": length}
        ahead = algebra.plus(ahead, spread.growth(piece.part))
        for site, name in product(piece.sites, said):
            asked = name in ("start", PIECES[site.op.name][1]) and name in site.op.attributes
            if asked and algebra.grows(said[name]):
                yield site.argument(name), said[name]


def laid_out(spread: Spread, given: Mapping[Argument, int]) -> dict[str, Lying]:
    """Return how every tensor lies that changes, as expressions of the growth.

    Raises ``PinnedError`` where nothing tells how a tensor that grows would lie.
    """
    return _Layout(spread, given).found


class _Layout:
    def __init__(self, spread: Spread, given: Mapping[Argument, int]) -> None:
        self.spread = spread
        self.algebra = spread.algebra
        self.found: dict[str, Lying] = {}
        self._given = given
        self._shapes = {spot[0] for spot in spread.sizes if len(spot) == 2}
        self._sites = {spot[0] for spot in given}
        self._allocated: dict[str, list[Tensor]] = {}
        for tensor in self._own():
            self._allocated.setdefault(tensor.buffer, []).append(tensor)
        for declared in spread.around.graph.tensors:
            if declared.tensor.name in self._shapes:
                self.found[declared.tensor.name] = self._anew(declared.tensor, None)
        for site in spread.around.sites:
            if not site.op.body:
                self._visit(site)

    def _own(self) -> Iterator[Tensor]:
        """Yield the tensors that are no views of others, as far as is known."""
        yield from (declared.tensor for declared in self.spread.around.graph.tensors)
        for site in self.spread.around.sites:
            held = {tensor.buffer for tensor in site.inputs}
            if not site.op.body:
                yield from (y for y in site.outputs if y.buffer not in held)

    def _visit(self, site: Site) -> None:
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
            if base is not None and base.name in self.found and base.shape != tensor.shape:
                raise PinnedError(site.op, f"{site.op.name} makes a view of an unknown kind")
            if tensor.name in self._shapes:
                self.found[tensor.name] = self._anew(tensor, site)

    def shape(self, tensor: Tensor) -> tuple[int, ...]:
        """Return the expressions of a tensor's sizes."""
        return tuple(self.spread.size((tensor.name, i)) for i in range(tensor.rank))

    def _first(self, site: Site) -> int:
        spot = site.argument("start")
        given = self._given.get(spot)
        return site.number_of("start", 0) if given is None else given

    def _views(self, site: Site) -> None:
        x = site.inputs[0]
        lying = self.found.get(x.name) or as_it_lies(x, self.algebra)
        shapes = [self.shape(y) for y in site.outputs]
        for y, made in zip(
            site.outputs, lie(site, lying, shapes, self._first(site), self.algebra), strict=True
        ):
            self.found[y.name] = made

    def _is_right(self, site: Site) -> bool:
        """Tell whether the rule of a view gives the layout that the graph has."""
        x = as_it_lies(site.inputs[0], self.algebra)
        first = site.number_of("start", 0)
        made = lie(site, x, [y.shape for y in site.outputs], first, self.algebra)
        return all(
            y.offset == told.start and y.strides == tight(y.shape, told.steps)
            for y, told in zip(site.outputs, made, strict=True)
        )

    def _anew(self, tensor: Tensor, site: Site | None) -> Lying:
        behind = [t for t in self._allocated.get(tensor.buffer, ()) if t.offset > tensor.offset]
        if behind:
            told = f"%{behind[0].name} lies behind %{tensor.name} in ${tensor.buffer}"
            raise PinnedError(site.op if site else None, told)
        shape = self.shape(tensor)
        steps = dense(tensor, shape, self.algebra)
        if steps is None:
            told = f"%{tensor.name} has gaps between its elements"
            raise PinnedError(site.op if site else None, told)
        return Lying(shape, steps, tensor.offset)


def as_it_lies(tensor: Tensor, algebra: Algebra) -> Lying:
    """Return a tensor's layout with its steps as expressions."""
    if tensor.strides is not None:
        return Lying(tensor.shape, tensor.strides, tensor.offset)
    return Lying(tensor.shape, dense(tensor, tensor.shape, algebra) or (), tensor.offset)
