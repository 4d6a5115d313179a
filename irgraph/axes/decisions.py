"""Violated size constraints with several solutions: solved one at a time, the safest first."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import TypeAlias

from irgraph.axes.relations import ConstrainedOp, Product, Relation, Spot, Sum
from irgraph.axes.sizes import FixedSizeError, Sizes
from irgraph.ir.dim import same

Constraint: TypeAlias = Sum | Product


class Decisions:
    """Violated size constraints, to be solved once everything determined has grown.

    Attributes:
        open: the constraints, each with its op.
    """

    def __init__(
        self,
        sizes: Sizes,
        unit: int,
        relation: Callable[[ConstrainedOp], Relation],
        relations: Callable[[], Iterable[Relation]],
    ) -> None:
        self.open: dict[Constraint, ConstrainedOp] = {}
        self._sizes = sizes
        self._unit = unit
        self._relation = relation
        self._relations = relations

    def take(self) -> bool:
        """Solve one open constraint, the safest first; return whether anything grew."""
        for decide in (self._by_equal_size, self._only_candidate, self._last_axis):
            for constraint, site in list(self.open.items()):
                if not self._sizes.is_violated(constraint):
                    del self.open[constraint]
                elif decide(constraint, site):
                    return True
        return False

    def _by_equal_size(self, constraint: Constraint, site: ConstrainedOp) -> bool:
        """Grow the axes that have the changed size, if that satisfies the constraint."""
        sizes = self._sizes
        if isinstance(constraint, Product):
            if self._grow_alike(constraint, site):
                return True
            alike = [spot for spot, size in sizes.whole(constraint) if same(size, self._unit)]
            return len(alike) == 1 and sizes.grow(alike[0], self._unit, site)
        alike = [
            p for p in constraint.parts if p not in sizes.sizes and sizes.base(p) == int(self._unit)
        ]
        by = sizes.algebra.minus(self._unit, int(self._unit))
        wanted = sizes.algebra.plus(sizes.together(constraint), *(by for _ in alike))
        if not alike or sizes.algebra.later(wanted) > sizes.later(constraint.whole):
            return False
        return sizes.grow_all(alike, self._unit, site)

    def _only_candidate(self, constraint: Constraint, site: ConstrainedOp) -> bool:
        """Grow the only axis that can grow, or all parts of a whole equally."""
        sizes = self._sizes
        if isinstance(constraint, Product):
            found = sizes.whole(constraint)
            return len(found) == 1 and sizes.grow(*found[0], site)
        share = sizes.algebra.scaled(
            sizes.growth(constraint.whole), Fraction(1, len(constraint.parts))
        )
        if share is None or len({sizes.base(part) for part in constraint.parts}) != 1:
            return False
        return sizes.grow_all(
            constraint.parts, sizes.algebra.plus(sizes.base(constraint.parts[0]), share), site
        )

    def _last_axis(self, constraint: Constraint, site: ConstrainedOp) -> bool:
        """Grow the last of the axes that an axis is split into; refuse what is ambiguous."""
        sizes = self._sizes
        name = site.op.name
        if isinstance(constraint, Sum):
            parts = ", ".join(str(int(sizes.base(part))) for part in constraint.parts)
            of = sizes.describe(constraint.whole)
            message = f"{name}: ambiguous which of its parts ({parts}) grows with {of}"
            raise FixedSizeError(site.op, f"{message}: resize one of them")
        whole = sizes.whole(constraint)
        if len(whole) > 1:
            grown = self._elsewhere(constraint)
            whole = [(spot, size) for spot, size in whole if grown in (None, spot)]
        if len(whole) > 1:
            which = " or ".join(sizes.describe(spot) for spot, _ in whole)
            raise FixedSizeError(site.op, f"{name}: ambiguous which axis grows, {which}")
        found = whole[0] if whole else next(sizes.factors(constraint), None)
        if found is None:
            message = f"{name} splits or merges axes, and no whole size fits"
            raise FixedSizeError(site.op, message)
        return sizes.grow(*found, site)

    def _elsewhere(self, constraint: Product) -> Spot | None:
        """Return the axis that grows where other ops split or merge these sizes, if all agree."""
        sizes = self._sizes
        side, _ = sizes.sides(constraint)
        wanted = {tuple(map(sizes.base, part)) for part in (constraint.before, constraint.after)}
        places: set[int] = set()
        for other in (p for relation in self._relations() for p in relation.products):
            parts = {tuple(map(sizes.base, part)): part for part in (other.before, other.after)}
            if parts.keys() == wanted and not sizes.is_violated(other):
                alike = parts[tuple(map(sizes.base, side))]
                places.update(i for i, spot in enumerate(alike) if spot in sizes.sizes)
        return side[places.pop()] if len(places) == 1 else None

    def _grow_alike(self, product: Product, site: ConstrainedOp) -> bool:
        """Grow all parts equally where equal parts were joined and are split again."""
        sizes = self._sizes
        if len(product.before) != 1 or len(product.before[0]) != 2:
            return False
        producer = sizes.uses.producer(sizes.uses.tensors[product.before[0][0]])
        totals = self._relation(producer).sums if producer else []
        for total in totals:
            alike = len({sizes.base(part) for part in total.parts}) == 1
            if alike and total.whole == product.before[0]:
                largest = sizes.size(max(total.parts, key=sizes.later))
                return sizes.grow_all(total.parts, largest, site)
        return False
