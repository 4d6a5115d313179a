"""Violated size constraints with several solutions: solved one at a time, the safest first."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import TypeAlias

from irgraph.axes.relations import ConstrainedOp, Product, Relation, SizeKey, Sum
from irgraph.axes.sizes import FixedSizeError, GrowingSizes
from irgraph.ir.dim import same

Constraint: TypeAlias = Sum | Product


class Decisions:
    """Violated size constraints, to be solved once everything determined has grown.

    Attributes:
        open: the constraints, each with its op.
    """

    def __init__(
        self,
        sizes: GrowingSizes,
        unit: int,
        relation: Callable[[ConstrainedOp], Relation],
        relations: Callable[[], Iterable[Relation]],
    ) -> None:
        self.open: dict[Constraint, ConstrainedOp] = {}
        self._sizes = sizes
        self._unit = unit
        self._relation = relation
        self._relations = relations

    def solve_next(self) -> bool:
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
            if self._grow_equally(constraint, site):
                return True
            candidates = [
                key for key, size in sizes.whole_candidates(constraint) if same(size, self._unit)
            ]
            return len(candidates) == 1 and sizes.grow(candidates[0], self._unit, site)
        candidates = [
            p for p in constraint.parts if p not in sizes.sizes and sizes.base(p) == int(self._unit)
        ]
        growth = sizes.algebra.minus(self._unit, int(self._unit))
        total = sizes.algebra.plus(sizes.sum_of_parts(constraint), *(growth for _ in candidates))
        if not candidates or sizes.algebra.grown_value(total) > sizes.grown_value(constraint.total):
            return False
        return sizes.grow_all(candidates, self._unit, site)

    def _only_candidate(self, constraint: Constraint, site: ConstrainedOp) -> bool:
        """Grow the only axis that can grow, or all parts of a sum equally."""
        sizes = self._sizes
        if isinstance(constraint, Product):
            candidates = sizes.whole_candidates(constraint)
            return len(candidates) == 1 and sizes.grow(*candidates[0], site)
        share = sizes.algebra.scale(
            sizes.growth(constraint.total), Fraction(1, len(constraint.parts))
        )
        if share is None or len({sizes.base(part) for part in constraint.parts}) != 1:
            return False
        return sizes.grow_all(
            constraint.parts, sizes.algebra.plus(sizes.base(constraint.parts[0]), share), site
        )

    def _last_axis(self, constraint: Constraint, site: ConstrainedOp) -> bool:
        """Grow the last of the axes that an axis is split into; refuse ambiguous choices."""
        sizes = self._sizes
        name = site.op.name
        if isinstance(constraint, Sum):
            parts = ", ".join(str(int(sizes.base(part))) for part in constraint.parts)
            whole_text = sizes.describe(constraint.total)
            message = f"{name}: ambiguous which of its parts ({parts}) grows with {whole_text}"
            raise FixedSizeError(site.op, f"{message}: resize one of them")
        candidates = sizes.whole_candidates(constraint)
        if len(candidates) > 1:
            grown_axis = self._axis_of_equal_product(constraint)
            candidates = [(key, size) for key, size in candidates if grown_axis in (None, key)]
        if len(candidates) > 1:
            choices = " or ".join(sizes.describe(key) for key, _ in candidates)
            raise FixedSizeError(site.op, f"{name}: ambiguous which axis grows, {choices}")
        candidate = candidates[0] if candidates else next(sizes.candidates(constraint), None)
        if candidate is None:
            message = f"{name} splits or merges axes, and no whole size fits"
            raise FixedSizeError(site.op, message)
        return sizes.grow(*candidate, site)

    def _axis_of_equal_product(self, constraint: Product) -> SizeKey | None:
        """Return the axis that grows in other ops that split or merge these sizes, if all agree."""
        sizes = self._sizes
        side, _ = sizes.sides(constraint)
        size_groups = {
            tuple(map(sizes.base, part)) for part in (constraint.before, constraint.after)
        }
        positions: set[int] = set()
        for product in (p for relation in self._relations() for p in relation.products):
            side_by_sizes = {
                tuple(map(sizes.base, part)): part for part in (product.before, product.after)
            }
            if side_by_sizes.keys() == size_groups and not sizes.is_violated(product):
                equal_side = side_by_sizes[tuple(map(sizes.base, side))]
                positions.update(i for i, key in enumerate(equal_side) if key in sizes.sizes)
        return side[positions.pop()] if len(positions) == 1 else None

    def _grow_equally(self, product: Product, site: ConstrainedOp) -> bool:
        """Grow all parts equally if equal parts were concatenated and are split again."""
        sizes = self._sizes
        if len(product.before) != 1 or len(product.before[0]) != 2:
            return False
        producer = sizes.uses.producer(sizes.uses.tensors[product.before[0][0]])
        totals = self._relation(producer).sums if producer else []
        for constraint in totals:
            is_equal = len({sizes.base(part) for part in constraint.parts}) == 1
            if is_equal and constraint.total == product.before[0]:
                largest = sizes.size(max(constraint.parts, key=sizes.grown_value))
                return sizes.grow_all(constraint.parts, largest, site)
        return False
