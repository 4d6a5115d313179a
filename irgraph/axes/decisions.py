"""What ops leave open about sizes that grow: decided one at a time, the surest first."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import TypeAlias

from irgraph.axes.relations import Product, Relation, Site, Spot, Sum
from irgraph.axes.sizes import PinnedError, Sizes
from irgraph.ir.dim import same

Law: TypeAlias = Sum | Product


class Decisions:
    """Laws that something has broken, to be mended once all that is sure has grown.

    Attributes:
        open: the laws, each with the op that it is of.
    """

    def __init__(
        self, sizes: Sizes, unit: int, relation: Callable[[Site], Relation],
        relations: Callable[[], Iterable[Relation]],
    ) -> None:  # fmt: skip
        self.open: dict[Law, Site] = {}
        self._sizes = sizes
        self._unit = unit
        self._relation = relation
        self._relations = relations

    def take(self) -> bool:
        """Take one decision that was left open, the surest first; tell whether anything grew."""
        for decide in (self._surely, self._alone, self._at_last):
            for law, site in list(self.open.items()):
                if not self._sizes.is_broken(law):
                    del self.open[law]
                elif decide(law, site):
                    return True
        return False

    def _surely(self, law: Law, site: Site) -> bool:
        """Let grow what is of the size that is changed, where that makes it right."""
        sizes = self._sizes
        if isinstance(law, Product):
            if self._grow_alike(law, site):
                return True
            alike = [spot for spot, size in sizes.whole(law) if same(size, self._unit)]
            return len(alike) == 1 and sizes.grow(alike[0], self._unit, site)
        alike = [p for p in law.parts if p not in sizes.sizes and sizes.base(p) == int(self._unit)]
        by = sizes.algebra.minus(self._unit, int(self._unit))
        wanted = sizes.algebra.plus(sizes.together(law), *(by for _ in alike))
        if not alike or sizes.algebra.later(wanted) > sizes.later(law.whole):
            return False
        return sizes.grow_all(alike, self._unit, site)

    def _alone(self, law: Law, site: Site) -> bool:
        """Let the only axis grow that can, or all parts of a whole by the same."""
        sizes = self._sizes
        if isinstance(law, Product):
            found = sizes.whole(law)
            return len(found) == 1 and sizes.grow(*found[0], site)
        share = sizes.algebra.scaled(sizes.growth(law.whole), Fraction(1, len(law.parts)))
        if share is None or len({sizes.base(part) for part in law.parts}) != 1:
            return False
        return sizes.grow_all(law.parts, sizes.algebra.plus(sizes.base(law.parts[0]), share), site)

    def _at_last(self, law: Law, site: Site) -> bool:
        """Let the last axis grow that an axis is split into; refuse what stays unclear."""
        sizes = self._sizes
        name = site.op.name
        if isinstance(law, Sum):
            parts = ", ".join(str(int(sizes.base(part))) for part in law.parts)
            of = sizes.called(law.whole)
            told = f"{name} does not tell which of its parts ({parts}) grows with {of}"
            raise PinnedError(site.op, f"{told}: resize one of them")
        whole = sizes.whole(law)
        if len(whole) > 1:
            grown = self._elsewhere(law)
            whole = [(spot, size) for spot, size in whole if grown in (None, spot)]
        if len(whole) > 1:
            which = " or ".join(sizes.called(spot) for spot, _ in whole)
            raise PinnedError(site.op, f"{name} does not tell which axis grows, {which}")
        found = whole[0] if whole else next(sizes.factors(law), None)
        if found is None:
            told = f"{name} splits or merges axes, and no size of one fits"
            raise PinnedError(site.op, told)
        return sizes.grow(*found, site)

    def _elsewhere(self, law: Product) -> Spot | None:
        """Return the axis that grows where others split or merge just such axes, if all agree."""
        sizes = self._sizes
        side, _ = sizes.sides(law)
        wanted = {tuple(map(sizes.base, part)) for part in (law.before, law.after)}
        places: set[int] = set()
        for other in (p for relation in self._relations() for p in relation.products):
            parts = {tuple(map(sizes.base, part)): part for part in (other.before, other.after)}
            if parts.keys() == wanted and not sizes.is_broken(other):
                alike = parts[tuple(map(sizes.base, side))]
                places.update(i for i, spot in enumerate(alike) if spot in sizes.sizes)
        return side[places.pop()] if len(places) == 1 else None

    def _grow_alike(self, product: Product, site: Site) -> bool:
        """Where equal parts were joined and are split again, let all of them grow alike."""
        sizes = self._sizes
        if len(product.before) != 1 or len(product.before[0]) != 2:
            return False
        maker = sizes.around.maker(sizes.around.tensors[product.before[0][0]])
        totals = self._relation(maker).sums if maker else []
        for total in totals:
            alike = len({sizes.base(part) for part in total.parts}) == 1
            if alike and total.whole == product.before[0]:
                largest = sizes.size(max(total.parts, key=sizes.later))
                return sizes.grow_all(total.parts, largest, site)
        return False
