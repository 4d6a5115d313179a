"""Sizes that grow, and the constraints between them."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator

from irgraph.axes.algebra import GROWTH, STEP, Algebra, terms_of
from irgraph.axes.def_use import DefUse
from irgraph.axes.relations import ConstrainedOp, Product, SizeKey, Sum
from irgraph.ir.dim import Term
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op

MAX_GROWTHS = 40
"""Maximum number of times that one size may grow; after that, propagation is assumed to diverge."""


class FixedSizeError(Exception):
    """A size that would have to change is fixed by an op; ``message`` states which size and why."""

    def __init__(self, op: Op | None, message: str) -> None:
        super().__init__(message)
        self.op = op
        self.message = message


class GrowingSizes:
    """The sizes of a graph, some of which grow.

    Attributes:
        sizes: expressions of the sizes that grow.
    """

    def __init__(self, graph: Graph) -> None:
        self.uses = DefUse(graph)
        self.algebra = Algebra(graph.dims)
        self.sizes: dict[SizeKey, int] = {}
        self._queue: deque[int] = deque()
        self._queued: set[int] = set()
        self._growth_counts: dict[SizeKey, int] = {}

    def base(self, key: SizeKey) -> int:
        """Return a size in the original graph."""
        if len(key) == 2:
            return self.uses.tensors[key[0]].shape[key[1]]
        number, name, item = key
        value = self.uses.sites[number].op.attributes.get(name)
        element = value[item] if isinstance(value, tuple) else value
        return element if isinstance(element, int) else 0

    def size(self, key: SizeKey) -> int:
        """Return the expression of a size."""
        expression = self.sizes.get(key)
        return self.base(key) if expression is None else expression

    def grown_value(self, key: SizeKey) -> int:
        """Return the value of a size at growth 1."""
        return self.algebra.grown_value(self.size(key))

    def growth(self, key: SizeKey) -> int:
        """Return the growth of a size."""
        return self.algebra.minus(self.size(key), self.base(key))

    def grow(self, key: SizeKey, size: int, cause: ConstrainedOp | None = None) -> bool:
        """Raise a size to at least an expression; return whether it grew."""
        if self.algebra.grown_value(size) <= self.grown_value(key):
            return False
        self._growth_counts[key] = self._growth_counts.get(key, 0) + 1
        if self._growth_counts[key] > MAX_GROWTHS or int(size) != self.base(key):
            raise FixedSizeError(
                cause.op if cause else None, f"{self.describe(key)} has no finite size"
            )
        self.sizes[key] = size
        users = self.uses.users(key[0]) if len(key) == 2 else [self._site(key)]
        for site in users:
            if site.number not in self._queued:
                self._queued.add(site.number)
                self._queue.append(site.number)
        return True

    def grow_all(self, keys: Iterable[SizeKey], size: int, cause: ConstrainedOp) -> bool:
        """Raise some sizes to one expression; return whether any grew."""
        return any([self.grow(key, size, cause) for key in keys])  # noqa: C419  (all must grow)

    def drain_queue(self) -> Iterator[ConstrainedOp]:
        """Yield the sites at which a size has grown, until none are left."""
        while self._queue:
            number = self._queue.popleft()
            self._queued.discard(number)
            yield self.uses.sites[number]

    def describe(self, key: SizeKey) -> str:
        """Return the description of a size for messages."""
        if len(key) == 2:
            return f"%{key[0]}.shape[{key[1]}] = {int(self.base(key))}"
        return f"{key[1]} = {int(self.base(key))}"

    def _site(self, key: SizeKey) -> ConstrainedOp:
        return self.uses.sites[int(key[0])]

    def sum_of_parts(self, constraint: Sum) -> int:
        """Return the sum of the parts."""
        growths: dict[tuple[Term, ...], int] = {}
        counts: Counter[tuple[Term, ...]] = Counter()
        for part in constraint.parts:
            if part in self.sizes:  # many parts grow equally: their growth is computed once
                terms = terms_of(self.sizes[part])
                counts[terms] += 1
                if terms not in growths:
                    growths[terms] = self.growth(part)
        grown = (self.algebra.times(n, growths[key]) for key, n in counts.items())
        return self.algebra.plus(self.base(constraint.total), *grown)

    def is_violated(self, constraint: Sum | Product) -> bool:
        """Return whether a total exceeds its parts, or two products differ."""
        if isinstance(constraint, Sum):
            return self.grown_value(constraint.total) > self.algebra.grown_value(
                self.sum_of_parts(constraint)
            )
        return self.sides(constraint)[1] is not None

    def whole_candidates(self, product: Product) -> list[tuple[SizeKey, int]]:
        """Return the axes that could satisfy a product alone, growing by multiples of ``STEP``."""
        return [candidate for candidate in self.candidates(product) if _whole_steps(candidate[1])]

    def candidates(self, product: Product) -> Iterator[tuple[SizeKey, int]]:
        """Yield the axes that could satisfy a product alone, last ones first."""
        side, total = self.sides(product)
        for key in reversed(side):
            other_product = self.algebra.times(*(self.size(s) for s in side if s != key))
            size = None if total is None else self.algebra.divide(total, other_product)
            if size is not None:
                yield key, size

    def sides(self, product: Product) -> tuple[tuple[SizeKey, ...], int | None]:
        """Return the side that must grow, and the product that it must have."""
        before = self.algebra.times(*map(self.size, product.before))
        after = self.algebra.times(*map(self.size, product.after))
        before_size, after_size = self.algebra.grown_value(before), self.algebra.grown_value(after)
        if before_size == after_size:
            return (), None
        return (product.after, before) if before_size > after_size else (product.before, after)


def _whole_steps(size: int) -> bool:
    """Return whether a size grows by multiples of ``STEP``."""
    return all(count % STEP == 0 for names, count in terms_of(size) if GROWTH in names)
