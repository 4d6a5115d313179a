"""Propagates the growth of some axes through a graph until all constraints hold.

Sizes only ever grow, so propagation terminates: if two sizes disagree, the smaller one grows, or
else the op fixes it and the change is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from irgraph.axes.constraints import relation_of
from irgraph.axes.decisions import Decisions
from irgraph.axes.probe import SizeIndex, agrees, linked_axes
from irgraph.axes.relations import AxisOf, ConstrainedOp, Product, Relation, SizeKey, Slope, Sum
from irgraph.axes.sizes import FixedSizeError, GrowingSizes
from irgraph.axes.slices import AxisSlices
from irgraph.axes.sparse import is_sparse, sparse_relation
from irgraph.axes.views import is_slice
from irgraph.ir.graph import Graph


class Propagation(GrowingSizes):
    """All sizes that change when some axes grow.

    Attributes:
        sizes: the expressions of all sizes that grow.
        slices: slices of axes.
    """

    def __init__(self, graph: Graph, seeds: Mapping[AxisOf, int]) -> None:
        super().__init__(graph)
        self.slices = AxisSlices(self.uses)
        self._schemas = graph.schemas
        self._relations: dict[int, Relation] = {}
        self._keys: dict[int, set[SizeKey]] = {}
        unit = next(iter(seeds.values()))
        for site in self.uses.sites:
            if is_sparse(site):  # depends on tensors that are not its operands
                self._relation(site)
        self._decisions = Decisions(self, unit, self._relation, self._relations.values)
        for key, size in seeds.items():
            self.grow(key, size)
        self._settle()
        self._check()

    def _settle(self) -> None:
        """Propagate to a fixed point; then solve open constraints one at a time."""
        while True:
            for site in self.drain_queue():
                self._visit(site)
            if not self._decisions.solve_next():
                return

    def _check(self) -> None:
        """Check that torch's answers about single sizes agree with its answer about all of them."""
        for number, relation in self._relations.items():
            site = self.uses.sites[number]
            if not relation.needs_probe:
                continue
            size_by_index = {
                _index_of(site, key) if len(key) == 2 else (key[1], 0, key[2]): self.grown_value(
                    key
                )
                for key in (*self._grown_axes(site), *self._arguments(site))
            }
            if not agrees(site, size_by_index, self._schemas):
                raise FixedSizeError(site.op, f"torch finds other sizes for {site.op.name}")

    def _arguments(self, site: ConstrainedOp) -> Iterator[SizeKey]:
        """Yield the sizes among an op's arguments that grow."""
        for key in self._keys[site.number]:
            if len(key) == 3 and key in self.sizes:
                yield key

    def _visit(self, site: ConstrainedOp) -> None:
        relation = self._relation(site)
        for axis in self._grown_axes(site):
            if axis not in self._keys[site.number]:
                self._query_torch(site, relation, axis)
        for group in relation.equal:
            if any(key in self.sizes for key in group):
                largest = self.size(max(group, key=self.grown_value))
                for member in group:
                    self.grow(member, largest, site)
        for link in relation.follows:
            if link.cause in self.sizes:
                size = self.algebra.times(link.multiple, self.size(link.cause))
                self.grow(link.effect, size, site)
        for slope in relation.slopes:
            if slope.cause in self.sizes:
                self._slope(slope, site)
        for constraint in relation.sums:
            self._sum(constraint, site)
        for product in relation.products:
            if any(key in self.sizes for key in (*product.before, *product.after)):
                self._product(product, site)

    def _relation(self, site: ConstrainedOp) -> Relation:
        relation = self._relations.get(site.number)
        if relation is None:
            if is_slice(site.op) and site.outputs:
                relation = self.slices.relation(site)
            else:
                relation = sparse_relation(site, self.uses) or relation_of(site)
            self._relations[site.number] = relation
            self._keys[site.number] = relation.size_keys()
        return relation

    def _grown_axes(self, site: ConstrainedOp) -> Iterator[AxisOf]:
        for tensor in site.tensors:
            for axis in range(tensor.rank):
                if (tensor.name, axis) in self.sizes:
                    yield tensor.name, axis

    def _query_torch(self, site: ConstrainedOp, relation: Relation, axis: AxisOf) -> None:
        """Add to a relation the sizes that, according to torch, change together with an axis."""
        change = None
        if relation.needs_probe:
            change = linked_axes(site, _index_of(site, axis), self._schemas)
        if change is None:
            reason = (
                "; torch has no such op, or accepts no other size" if relation.needs_probe else ""
            )
            raise FixedSizeError(site.op, f"{site.op.name} fixes {self.describe(axis)}{reason}")
        indices, effects = change
        keys = [_key_of(site, index) for index in sorted(indices)]
        for effect_index, share in effects:
            effect = _key_of(site, effect_index)
            if share == 1 and self.base(effect) == self.base(keys[0]):
                keys.append(effect)
            else:
                relation.slopes += [
                    Slope(keys[0], effect, share),
                    Slope(effect, keys[0], 1 / share),
                ]
        relation.equal.append(tuple(keys))
        self._keys[site.number] = relation.size_keys()
        if axis not in self._keys[site.number]:
            raise FixedSizeError(site.op, f"{site.op.name} fixes {self.describe(axis)}")

    def steps(self) -> Iterator[tuple[ConstrainedOp, SizeKey, int]]:
        """Yield sizes that must grow by multiples of a number, with the op that requires it."""
        for number, relation in self._relations.items():
            for key, step in relation.steps:
                if key in self.sizes:
                    yield self.uses.sites[number], key, step

    def _slope(self, slope: Slope, site: ConstrainedOp) -> None:
        growth = self.algebra.scale(self.growth(slope.cause), slope.share)
        if growth is None:
            fraction = f"{slope.share} of {self.describe(slope.cause)}"
            raise FixedSizeError(site.op, f"{site.op.name}: {fraction} is not a whole number")
        self.grow(slope.effect, self.algebra.plus(self.base(slope.effect), growth), site)

    def _sum(self, constraint: Sum, site: ConstrainedOp) -> None:
        if not any(key in self.sizes for key in (constraint.total, *constraint.parts)):
            return
        if len(constraint.parts) == 1 and not constraint.loose:
            growth = self.growth(constraint.total)
            self.grow(
                constraint.parts[0], self.algebra.plus(self.base(constraint.parts[0]), growth), site
            )
        self.grow(constraint.total, self.sum_of_parts(constraint), site)
        if not constraint.loose and self.is_violated(constraint):
            self._decisions.open[constraint] = site

    def _product(self, product: Product, site: ConstrainedOp) -> None:
        if not self.is_violated(product):
            return
        candidates = self.whole_candidates(product)
        if len(candidates) == 1:
            self.grow(*candidates[0], site)
        else:
            self._decisions.open[product] = site


def _index_of(site: ConstrainedOp, key: AxisOf) -> SizeIndex:
    """Return the index of an axis among an op's operands, or else among its results."""
    name, axis = key
    for kind, tensors in (("in", site.inputs), ("out", site.outputs)):
        for i, tensor in enumerate(tensors):
            if tensor.name == name:
                return kind, i, axis
    raise KeyError(name)


def _key_of(site: ConstrainedOp, index: SizeIndex) -> SizeKey:
    kind, number, axis = index
    if kind == "in":
        return site.inputs[number].name, axis
    if kind == "out":
        return site.outputs[number].name, axis
    return site.argument(kind, axis)
