"""Follows the growth of some axes through a graph until every op agrees.

Sizes only ever grow, so that it ends: where two disagree, the smaller one gives way, or else the op
pins it and the change is refused.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction

from irgraph.axes.algebra import GROWTH, STEP, Algebra, terms_of
from irgraph.axes.around import Around
from irgraph.axes.pieces import Pieces
from irgraph.axes.probe import Place, together
from irgraph.axes.relations import AxisOf, Product, Relation, Site, Slope, Spot, Sum
from irgraph.axes.rules import relation_of
from irgraph.axes.views import PIECES
from irgraph.ir.dim import same
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op

MOST = 40
"""How often one size may grow before it is said to have no end."""


class PinnedError(Exception):
    """An op lets no size change that would have to; ``told`` says which and why."""

    def __init__(self, op: Op | None, told: str) -> None:
        super().__init__(told)
        self.op = op
        self.told = told


class Spread:
    """What changes where some axes grow.

    Attributes:
        sizes: the expressions of all sizes that grow.
        pieces: where parts are taken of axes.
    """

    def __init__(self, graph: Graph, seeds: Mapping[AxisOf, int]) -> None:
        self.around = Around(graph)
        self.algebra = Algebra(graph.dims)
        self.sizes: dict[Spot, int] = {}
        self.pieces = Pieces(self.around)
        self._schemas = graph.schemas
        self._unit = next(iter(seeds.values()))
        self._relations: dict[int, Relation] = {}
        self._named: dict[int, set[Spot]] = {}
        self._queue: deque[int] = deque()
        self._queued: set[int] = set()
        self._times: dict[Spot, int] = {}
        self._open: dict[Sum | Product, Site] = {}
        for spot, size in seeds.items():
            self.grow(spot, size)
        self._settle()

    def base(self, spot: Spot) -> int:
        """Return a size as it stands in the graph."""
        if len(spot) == 2:
            return self.around.tensors[spot[0]].shape[spot[1]]
        number, name, item = spot
        value = self.around.sites[number].op.attributes.get(name)
        found = value[item] if isinstance(value, tuple) else value
        return found if isinstance(found, int) else 0

    def size(self, spot: Spot) -> int:
        """Return the expression of a size."""
        found = self.sizes.get(spot)
        return self.base(spot) if found is None else found

    def later(self, spot: Spot) -> int:
        """Return the value of a size at growth 1."""
        return self.algebra.later(self.size(spot))

    def grow(self, spot: Spot, size: int, by: Site | None = None) -> bool:
        """Let a size be at least an expression; tell whether that is new."""
        if self.algebra.later(size) <= self.later(spot):
            return False
        self._times[spot] = self._times.get(spot, 0) + 1
        if self._times[spot] > MOST or int(size) != self.base(spot):
            raise PinnedError(by.op if by else None, f"{self.called(spot)} finds no size")
        self.sizes[spot] = size
        touched = self.around.touching(spot[0]) if len(spot) == 2 else [self._site(spot)]
        for site in touched:
            if site.number not in self._queued:
                self._queued.add(site.number)
                self._queue.append(site.number)
        return True

    def called(self, spot: Spot) -> str:
        """Return how messages call a size."""
        if len(spot) == 2:
            return f"%{spot[0]}.shape[{spot[1]}] = {int(self.base(spot))}"
        return f"{spot[1]} = {int(self.base(spot))}"

    def _site(self, spot: Spot) -> Site:
        return self.around.sites[int(spot[0])]

    def _settle(self) -> None:
        """Go on until nothing grows; then decide what was left open, one thing at a time."""
        while True:
            while self._queue:
                number = self._queue.popleft()
                self._queued.discard(number)
                self._visit(self.around.sites[number])
            if not self._decide():
                return

    def _visit(self, site: Site) -> None:
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

    def _relation(self, site: Site) -> Relation:
        found = self._relations.get(site.number)
        if found is None:
            piece = site.op.name in PIECES and bool(site.outputs)
            found = self.pieces.relation(site) if piece else relation_of(site)
            self._relations[site.number] = found
            self._named[site.number] = found.named()
        return found

    def _grown(self, site: Site) -> Iterator[AxisOf]:
        for tensor in site.tensors:
            for place in range(tensor.rank):
                if (tensor.name, place) in self.sizes:
                    yield tensor.name, place

    def _ask(self, site: Site, relation: Relation, spot: AxisOf) -> None:
        """Find out from torch what must change together with a size."""
        found = None
        if relation.asked and not site.op.body:
            found = together(site, _place(site, spot), self._schemas)
        if found is None:
            raise PinnedError(site.op, f"{site.op.name} pins {self.called(spot)}")
        places, effects = found
        spots = [_spot(site, place) for place in sorted(places)]
        for other, share in effects:
            effect = _spot(site, other)
            if share == 1 and self.base(effect) == self.base(spots[0]):
                spots.append(effect)
            else:
                relation.slopes += [Slope(spots[0], effect, share), Slope(effect, spots[0], 1 / share)]
        relation.equal.append(tuple(spots))
        self._named[site.number] = relation.named()
        if spot not in self._named[site.number]:
            raise PinnedError(site.op, f"{site.op.name} pins {self.called(spot)}")

    def steps(self) -> Iterator[tuple[Site, Spot, int]]:
        """Yield sizes that may grow by multiples of a number only, with the op that says so."""
        for number, relation in self._relations.items():
            for spot, step in relation.steps:
                if spot in self.sizes:
                    yield self.around.sites[number], spot, step

    def growth(self, spot: Spot) -> int:
        """Return what a size grows by."""
        return self.algebra.minus(self.size(spot), self.base(spot))

    def _slope(self, slope: Slope, site: Site) -> None:
        by = self.algebra.scaled(self.growth(slope.cause), slope.share)
        if by is None:
            told = f"{site.op.name} takes {slope.share} of {self.called(slope.cause)}"
            raise PinnedError(site.op, told)
        self.grow(slope.effect, self.algebra.plus(self.base(slope.effect), by), site)

    def _sum(self, total: Sum, site: Site) -> None:
        if not any(spot in self.sizes for spot in (total.whole, *total.parts)):
            return
        if len(total.parts) == 1 and not total.loose:
            by = self.growth(total.whole)
            self.grow(total.parts[0], self.algebra.plus(self.base(total.parts[0]), by), site)
        self.grow(total.whole, self._together(total), site)
        if not total.loose and self._is_broken(total):
            self._open[total] = site

    def _product(self, product: Product, site: Site) -> None:
        if self._sides(product)[1] is None:
            return
        found = self._whole(product)
        if len(found) == 1:
            self.grow(*found[0], site)
        else:
            self._open[product] = site

    def _sides(self, product: Product) -> tuple[tuple[Spot, ...], int | None]:
        """Return the side that must grow, and what it must multiply to."""
        before = self.algebra.times(*map(self.size, product.before))
        after = self.algebra.times(*map(self.size, product.after))
        left, right = self.algebra.later(before), self.algebra.later(after)
        if left == right:
            return (), None
        return (product.after, before) if left > right else (product.before, after)

    def _whole(self, product: Product) -> list[tuple[Spot, int]]:
        """Return the axes of which one could grow alone by whole steps."""
        return [found for found in self._factors(product) if _whole_steps(found[1])]

    def _factors(self, product: Product) -> Iterator[tuple[Spot, int]]:
        """Yield the axes of which one could grow alone, the last ones first."""
        side, whole = self._sides(product)
        for spot in reversed(side):
            others = self.algebra.times(*(self.size(s) for s in side if s != spot))
            size = None if whole is None else self.algebra.divided(whole, others)
            if size is not None:
                yield spot, size

    def _decide(self) -> bool:
        """Take one decision that was left open, the surest first; tell whether anything grew."""
        for decide in (self._surely, self._alone, self._at_last):
            for law, site in list(self._open.items()):
                if not self._is_broken(law):
                    del self._open[law]
                elif decide(law, site):
                    return True
        return False

    def _is_broken(self, law: Sum | Product) -> bool:
        if isinstance(law, Sum):
            return self.later(law.whole) > self.algebra.later(self._together(law))
        return self._sides(law)[1] is not None

    def _together(self, total: Sum) -> int:
        """Return what a whole is by its parts."""
        return self.algebra.plus(self.base(total.whole), *map(self.growth, total.parts))

    def _surely(self, law: Sum | Product, site: Site) -> bool:
        """Let grow what is of the size that is changed, where that makes it right."""
        if isinstance(law, Product):
            if self._grow_alike(law, site):
                return True
            alike = [spot for spot, size in self._whole(law) if same(size, self._unit)]
            return len(alike) == 1 and self.grow(alike[0], self._unit, site)
        alike = [p for p in law.parts if p not in self.sizes and self.base(p) == int(self._unit)]
        by = self.algebra.minus(self._unit, int(self._unit))
        wanted = self.algebra.plus(self._together(law), *(by for _ in alike))
        if not alike or self.algebra.later(wanted) > self.later(law.whole):
            return False
        return self._all(alike, self._unit, site)

    def _alone(self, law: Sum | Product, site: Site) -> bool:
        """Let the only axis grow that can, or all parts of a whole by the same."""
        if isinstance(law, Product):
            found = self._whole(law)
            return len(found) == 1 and self.grow(*found[0], site)
        share = self.algebra.scaled(self.growth(law.whole), Fraction(1, len(law.parts)))
        if share is None or len({self.base(part) for part in law.parts}) != 1:
            return False
        return self._all(law.parts, self.algebra.plus(self.base(law.parts[0]), share), site)

    def _at_last(self, law: Sum | Product, site: Site) -> bool:
        """Let the last axis grow that an axis is split into; refuse what stays unclear."""
        name = site.op.name
        if isinstance(law, Sum):
            told = f"{name} does not tell which of its parts grows with {self.called(law.whole)}"
            raise PinnedError(site.op, told)
        whole = self._whole(law)
        grown = self._elsewhere(law) if len(whole) > 1 else None
        if grown is not None:
            return any(self.grow(spot, size, site) for spot, size in whole if spot == grown)
        if len(whole) > 1:
            which = " or ".join(self.called(spot) for spot, _ in whole)
            raise PinnedError(site.op, f"{name} does not tell which axis grows, {which}")
        found = next(self._factors(law), None)
        if found is None:
            told = f"{name} splits or merges axes, and no size of one fits"
            raise PinnedError(site.op, told)
        return self.grow(*found, site)

    def _elsewhere(self, law: Product) -> Spot | None:
        """Return the axis that grows where other ops split or merge just such axes, if all agree."""
        one, many = sorted((law.before, law.after), key=len)
        places: set[int] = set()
        for other in (p for relation in self._relations.values() for p in relation.products):
            few, several = sorted((other.before, other.after), key=len)
            alike = [*map(self.base, few)] == [*map(self.base, one)]
            if alike and [*map(self.base, several)] == [*map(self.base, many)]:
                places.update(i for i, spot in enumerate(several) if spot in self.sizes)
        return many[places.pop()] if len(places) == 1 else None

    def _all(self, spots: Iterable[Spot], size: int, site: Site) -> bool:
        """Let some sizes grow to the same; tell whether any of them did."""
        return any([self.grow(spot, size, site) for spot in spots])  # noqa: C419  (all must grow)

    def _grow_alike(self, product: Product, site: Site) -> bool:
        """Where equal parts were joined and are split again, let all of them grow alike."""
        if len(product.before) != 1 or len(product.before[0]) != 2:
            return False
        maker = self.around.maker(self.around.tensors[product.before[0][0]])
        totals = self._relation(maker).sums if maker else []
        for total in totals:
            sizes = {self.base(part) for part in total.parts}
            if total.whole == product.before[0] and len(sizes) == 1:
                largest = self.size(max(total.parts, key=self.later))
                return self._all(total.parts, largest, site)
        return False


def _whole_steps(size: int) -> bool:
    """Tell whether a size grows by whole steps, not by shares of one."""
    return all(count % STEP == 0 for names, count in terms_of(size) if GROWTH in names)


def _place(site: Site, spot: AxisOf) -> Place:
    """Return an axis as an argument of an op, or else as one of its results."""
    name, axis = spot
    for kind, tensors in (("in", site.inputs), ("out", site.outputs)):
        for i, tensor in enumerate(tensors):
            if tensor.name == name:
                return kind, i, axis
    raise KeyError(name)


def _spot(site: Site, place: Place) -> Spot:
    kind, which, axis = place
    if kind == "in":
        return site.inputs[which].name, axis
    if kind == "out":
        return site.outputs[which].name, axis
    return site.argument(kind, axis)
