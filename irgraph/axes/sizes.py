"""Sizes that grow, and whether the constraints between them hold."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator

from irgraph.axes.algebra import GROWTH, STEP, Algebra, terms_of
from irgraph.axes.def_use import DefUse
from irgraph.axes.relations import ConstrainedOp, Product, Spot, Sum
from irgraph.ir.dim import Term
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op

MOST = 40
"""How often one size may grow before propagation is taken to diverge."""


class FixedSizeError(Exception):
    """A size that would have to change is fixed by an op; ``message`` says which and why."""

    def __init__(self, op: Op | None, message: str) -> None:
        super().__init__(message)
        self.op = op
        self.message = message


class Sizes:
    """The sizes of a graph, some of which grow.

    Attributes:
        sizes: expressions of the sizes that grow.
    """

    def __init__(self, graph: Graph) -> None:
        self.uses = DefUse(graph)
        self.algebra = Algebra(graph.dims)
        self.sizes: dict[Spot, int] = {}
        self._queue: deque[int] = deque()
        self._queued: set[int] = set()
        self._times: dict[Spot, int] = {}

    def base(self, spot: Spot) -> int:
        """Return a size as it stands in the graph."""
        if len(spot) == 2:
            return self.uses.tensors[spot[0]].shape[spot[1]]
        number, name, item = spot
        value = self.uses.sites[number].op.attributes.get(name)
        found = value[item] if isinstance(value, tuple) else value
        return found if isinstance(found, int) else 0

    def size(self, spot: Spot) -> int:
        """Return the expression of a size."""
        found = self.sizes.get(spot)
        return self.base(spot) if found is None else found

    def later(self, spot: Spot) -> int:
        """Return the value of a size at growth 1."""
        return self.algebra.later(self.size(spot))

    def growth(self, spot: Spot) -> int:
        """Return what a size grows by."""
        return self.algebra.minus(self.size(spot), self.base(spot))

    def grow(self, spot: Spot, size: int, by: ConstrainedOp | None = None) -> bool:
        """Raise a size to at least an expression; return whether it grew."""
        if self.algebra.later(size) <= self.later(spot):
            return False
        self._times[spot] = self._times.get(spot, 0) + 1
        if self._times[spot] > MOST or int(size) != self.base(spot):
            raise FixedSizeError(by.op if by else None, f"{self.describe(spot)} has no finite size")
        self.sizes[spot] = size
        touched = self.uses.touching(spot[0]) if len(spot) == 2 else [self._site(spot)]
        for site in touched:
            if site.number not in self._queued:
                self._queued.add(site.number)
                self._queue.append(site.number)
        return True

    def grow_all(self, spots: Iterable[Spot], size: int, by: ConstrainedOp) -> bool:
        """Raise some sizes to one expression; return whether any grew."""
        return any([self.grow(spot, size, by) for spot in spots])  # noqa: C419  (all must grow)

    def waiting(self) -> Iterator[ConstrainedOp]:
        """Yield the sites at which something has grown, until none are left."""
        while self._queue:
            number = self._queue.popleft()
            self._queued.discard(number)
            yield self.uses.sites[number]

    def describe(self, spot: Spot) -> str:
        """Return a size as messages write it."""
        if len(spot) == 2:
            return f"%{spot[0]}.shape[{spot[1]}] = {int(self.base(spot))}"
        return f"{spot[1]} = {int(self.base(spot))}"

    def _site(self, spot: Spot) -> ConstrainedOp:
        return self.uses.sites[int(spot[0])]

    def together(self, total: Sum) -> int:
        """Return the sum that the parts give."""
        growths: dict[tuple[Term, ...], int] = {}
        counts: Counter[tuple[Term, ...]] = Counter()
        for part in total.parts:
            if part in self.sizes:  # many parts grow alike: what they grow by is found once
                key = terms_of(self.sizes[part])
                counts[key] += 1
                if key not in growths:
                    growths[key] = self.growth(part)
        grown = (self.algebra.times(n, growths[key]) for key, n in counts.items())
        return self.algebra.plus(self.base(total.whole), *grown)

    def is_violated(self, constraint: Sum | Product) -> bool:
        """Return whether a whole exceeds its parts, or two products differ."""
        if isinstance(constraint, Sum):
            return self.later(constraint.whole) > self.algebra.later(self.together(constraint))
        return self.sides(constraint)[1] is not None

    def whole(self, product: Product) -> list[tuple[Spot, int]]:
        """Return the axes that could satisfy a product alone, growing by whole steps."""
        return [found for found in self.factors(product) if _whole_steps(found[1])]

    def factors(self, product: Product) -> Iterator[tuple[Spot, int]]:
        """Yield the axes that could satisfy a product alone, last ones first."""
        side, whole = self.sides(product)
        for spot in reversed(side):
            others = self.algebra.times(*(self.size(s) for s in side if s != spot))
            size = None if whole is None else self.algebra.divided(whole, others)
            if size is not None:
                yield spot, size

    def sides(self, product: Product) -> tuple[tuple[Spot, ...], int | None]:
        """Return the side that must grow, and what it must multiply to."""
        before = self.algebra.times(*map(self.size, product.before))
        after = self.algebra.times(*map(self.size, product.after))
        left, right = self.algebra.later(before), self.algebra.later(after)
        if left == right:
            return (), None
        return (product.after, before) if left > right else (product.before, after)


def _whole_steps(size: int) -> bool:
    """Return whether a size grows by whole steps."""
    return all(count % STEP == 0 for names, count in terms_of(size) if GROWTH in names)
