"""Arithmetic on symbolic sizes while one axis grows by steps.

Growth is the dimension ``GROWTH``: 0 is the original graph, 1 a size larger by ``STEP``. At growth
0 every expression has the current size as its value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction

from irgraph.ir.dim import Dim, Term, evaluate, make, normal

GROWTH = "~growth"
"""A name that no dimension of a model can have."""

STEP = 50400
"""Growth of a size at growth 1: divisible by 1 to 10, 25 and 32, so that split axes stay whole."""


def terms_of(size: int) -> tuple[Term, ...]:
    """Return a size as a polynomial."""
    if isinstance(size, Dim):
        return size.terms
    return (((), int(size)),) if size else ()


class Algebra:
    """Sums, products and quotients of sizes under some dimensions."""

    def __init__(self, dims: Mapping[str, int]) -> None:
        self.dims = {**dims, GROWTH: 0}
        self._grown_dims = {**dims, GROWTH: 1}

    def make(self, terms: Iterable[Term]) -> int:
        """Return the size of a polynomial."""
        return make(terms, self.dims)

    def grown_value(self, size: int, growth: int = 1) -> int:
        """Return the value of a size at another growth."""
        if not isinstance(size, Dim):
            return size
        dims = self._grown_dims if growth == 1 else {**self.dims, GROWTH: growth}
        return evaluate(size.terms, dims)

    def grows(self, size: int) -> bool:
        """Return whether a size depends on the growth."""
        return isinstance(size, Dim) and any(GROWTH in factors for factors, _ in size.terms)

    def plus(self, *sizes: int) -> int:
        """Return a sum."""
        return self.make(term for size in sizes for term in terms_of(size))

    def minus(self, a: int, b: int) -> int:
        """Return a difference."""
        return self.make([*terms_of(a), *((names, -count) for names, count in terms_of(b))])

    def times(self, *sizes: int) -> int:
        """Return a product."""
        product: list[Term] = [((), 1)]
        for size in sizes:
            factor = terms_of(size)
            product = [(a + b, m * n) for a, m in product for b, n in factor]
        return self.make(product)

    def divide(self, a: int, b: int) -> int | None:
        """Return the polynomial that times ``b`` is ``a``, or ``None`` if there is none."""
        divisor, rest = terms_of(b), normal(terms_of(a))
        quotient: list[Term] = []
        while rest and divisor:
            ratio = _ratio(rest[0], divisor[0])
            if ratio is None:
                return None
            quotient.append(ratio)
            names, count = ratio
            subtrahend = [(names + other, -count * n) for other, n in divisor]
            rest = normal([*rest, *subtrahend])
        return self.make(quotient) if divisor else None

    def scale(self, size: int, ratio: Fraction) -> int | None:
        """Return a multiple of a size, or ``None`` if coefficients would not be integers."""
        terms = [(names, count * ratio) for names, count in terms_of(size)]
        if any(count.denominator != 1 for _, count in terms):
            return None
        return self.make((names, int(count)) for names, count in terms)

    def size_at(self, size: int, increase: int) -> int | None:
        """Return a size after the axis has grown by ``increase``: at growth ``increase / STEP``.

        That is an expression over the other dimensions, or ``None`` if its coefficients would not
        be integers.
        """
        if not self.grows(size):
            return size
        terms = terms_of(size)
        degree = max(names.count(GROWTH) for names, _ in terms)
        sums: dict[tuple[str, ...], int] = {}
        for names, count in terms:
            power = names.count(GROWTH)
            other_names = tuple(name for name in names if name != GROWTH)
            sums[other_names] = sums.get(other_names, 0) + count * increase**power * STEP ** (
                degree - power
            )
        if any(count % STEP**degree for count in sums.values()):
            return None
        return self.make((names, count // STEP**degree) for names, count in sums.items())


def _ratio(a: Term, b: Term) -> Term | None:
    """Return the product that times ``b`` is ``a``, if there is one."""
    names = list(a[0])
    for name in b[0]:
        if name not in names:
            return None
        names.remove(name)
    count, rest = divmod(a[1], b[1])
    return None if rest else (tuple(names), count)
