"""Propagates the growth of some axes through a graph until all constraints hold.

Sizes only ever grow, so propagation terminates: where two disagree, the smaller one grows, or else
the op fixes it and the change is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from irgraph.axes.decisions import Decisions
from irgraph.axes.probe import Place, agrees, linked_axes
from irgraph.axes.relations import AxisOf, ConstrainedOp, Product, Relation, Slope, Spot, Sum
from irgraph.axes.rules import relation_of
from irgraph.axes.sizes import FixedSizeError, Sizes
from irgraph.axes.slices import AxisSlices
from irgraph.axes.sparse import is_sparse, sparse_relation
from irgraph.axes.views import PIECES
from irgraph.ir.graph import Graph


class Propagation(Sizes):
    """All sizes that change when some axes grow.

    Attributes:
        sizes: the expressions of all sizes that grow.
        pieces: slices of axes.
    """

    def __init__(self, graph: Graph, seeds: Mapping[AxisOf, int]) -> None:
        super().__init__(graph)
        self.pieces = AxisSlices(self.uses)
        self._schemas = graph.schemas
        self._relations: dict[int, Relation] = {}
        self._named: dict[int, set[Spot]] = {}
        unit = next(iter(seeds.values()))
        for site in self.uses.sites:
            if is_sparse(site):  # depends on tensors that are not its operands
                self._relation(site)
        self._decisions = Decisions(self, unit, self._relation, self._relations.values)
        for spot, size in seeds.items():
            self.grow(spot, size)
        self._settle()
        self._check()

    def _settle(self) -> None:
        """Propagate to a fixed point; then solve open constraints one at a time."""
        while True:
            for site in self.waiting():
                self._visit(site)
            if not self._decisions.take():
                return

    def _check(self) -> None:
        """Check answers of torch about single sizes against its answer for all at once."""
        for number, relation in self._relations.items():
            site = self.uses.sites[number]
            if not relation.asked or site.op.body:
                continue
            grown = {
                _place(site, spot) if len(spot) == 2 else (spot[1], 0, spot[2]): self.later(spot)
                for spot in (*self._grown(site), *self._arguments(site))
            }
            if not agrees(site, grown, self._schemas):
                raise FixedSizeError(site.op, f"torch finds other sizes for {site.op.name}")

    def _arguments(self, site: ConstrainedOp) -> Iterator[Spot]:
        """Yield the sizes among an op's arguments that grow."""
        for spot in self._named[site.number]:
            if len(spot) == 3 and spot in self.sizes:
                yield spot

    def _visit(self, site: ConstrainedOp) -> None:
        relation = self._relation(site)
        for place in self._grown(site):
            if place not in self._named[site.number]:
                self._ask(site, relation, place)
        for group in relation.equal:
            if any(spot in self.sizes for spot in group):
                largest = self.size(max(group, key=self.later))
                for spot in group:
                    self.grow(spot, largest, site)
        for link in relation.follows:
            if link.cause in self.sizes:
                size = self.algebra.times(link.multiple, self.size(link.cause))
                self.grow(link.effect, size, site)
        for slope in relation.slopes:
            if slope.cause in self.sizes:
                self._slope(slope, site)
        for total in relation.sums:
            self._sum(total, site)
        for product in relation.products:
            if any(spot in self.sizes for spot in (*product.before, *product.after)):
                self._product(product, site)

    def _relation(self, site: ConstrainedOp) -> Relation:
        found = self._relations.get(site.number)
        if found is None:
            if site.op.name in PIECES and site.outputs:
                found = self.pieces.relation(site)
            else:
                found = sparse_relation(site, self.uses) or relation_of(site)
            self._relations[site.number] = found
            self._named[site.number] = found.named()
        return found

    def _grown(self, site: ConstrainedOp) -> Iterator[AxisOf]:
        for tensor in site.tensors:
            for place in range(tensor.rank):
                if (tensor.name, place) in self.sizes:
                    yield tensor.name, place

    def _ask(self, site: ConstrainedOp, relation: Relation, spot: AxisOf) -> None:
        """Ask torch what must change together with a size."""
        found = None
        if relation.asked and not site.op.body:
            found = linked_axes(site, _place(site, spot), self._schemas)
        if found is None:
            why = "; torch has no such op, or accepts no other size" if relation.asked else ""
            raise FixedSizeError(site.op, f"{site.op.name} fixes {self.describe(spot)}{why}")
        places, effects = found
        spots = [_spot(site, place) for place in sorted(places)]
        for other, share in effects:
            effect = _spot(site, other)
            if share == 1 and self.base(effect) == self.base(spots[0]):
                spots.append(effect)
            else:
                relation.slopes += [
                    Slope(spots[0], effect, share),
                    Slope(effect, spots[0], 1 / share),
                ]
        relation.equal.append(tuple(spots))
        self._named[site.number] = relation.named()
        if spot not in self._named[site.number]:
            raise FixedSizeError(site.op, f"{site.op.name} fixes {self.describe(spot)}")

    def steps(self) -> Iterator[tuple[ConstrainedOp, Spot, int]]:
        """Yield sizes that must grow by multiples of a number, with the op that requires it."""
        for number, relation in self._relations.items():
            for spot, step in relation.steps:
                if spot in self.sizes:
                    yield self.uses.sites[number], spot, step

    def _slope(self, slope: Slope, site: ConstrainedOp) -> None:
        by = self.algebra.scaled(self.growth(slope.cause), slope.share)
        if by is None:
            where = f"{slope.share} of {self.describe(slope.cause)}"
            raise FixedSizeError(site.op, f"{site.op.name}: {where} is not a whole number")
        self.grow(slope.effect, self.algebra.plus(self.base(slope.effect), by), site)

    def _sum(self, total: Sum, site: ConstrainedOp) -> None:
        if not any(spot in self.sizes for spot in (total.whole, *total.parts)):
            return
        if len(total.parts) == 1 and not total.loose:
            by = self.growth(total.whole)
            self.grow(total.parts[0], self.algebra.plus(self.base(total.parts[0]), by), site)
        self.grow(total.whole, self.together(total), site)
        if not total.loose and self.is_violated(total):
            self._decisions.open[total] = site

    def _product(self, product: Product, site: ConstrainedOp) -> None:
        if not self.is_violated(product):
            return
        found = self.whole(product)
        if len(found) == 1:
            self.grow(*found[0], site)
        else:
            self._decisions.open[product] = site


def _place(site: ConstrainedOp, spot: AxisOf) -> Place:
    """Return an axis as an argument of an op, or else as one of its results."""
    name, axis = spot
    for kind, tensors in (("in", site.inputs), ("out", site.outputs)):
        for i, tensor in enumerate(tensors):
            if tensor.name == name:
                return kind, i, axis
    raise KeyError(name)


def _spot(site: ConstrainedOp, place: Place) -> Spot:
    kind, which, axis = place
    if kind == "in":
        return site.inputs[which].name, axis
    if kind == "out":
        return site.outputs[which].name, axis
    return site.argument(kind, axis)
