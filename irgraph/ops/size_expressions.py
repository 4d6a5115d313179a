"""Expressions over dimensions for sizes that are known under two settings of the dimensions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product

from msgspec import Struct

from irgraph.ir.dim import Dim, Term, evaluate, make
from irgraph.ir.op import Op, Value


def dims_of(op: Op) -> Iterator[Dim]:
    """Yield the sizes in an op's operands and attributes that depend on dimensions."""
    for tensor in op.inputs:
        strides = tensor.strides or ()
        for size in (*tensor.shape, *strides, tensor.offset):
            if isinstance(size, Dim):
                yield size
    for value in op.attributes.values():
        yield from _dims_in(value)


def _dims_in(value: Value) -> Iterator[Dim]:
    if isinstance(value, Dim):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from _dims_in(item)


class Expressions(Struct, frozen=True):
    """Finder of an expression that evaluates to given sizes under two settings.

    Attributes:
        operands: expressions of which a size may be a multiple, a sum or a product.
        dims: the dimensions.
        probe: other values of the dimensions.
    """

    operands: Sequence[Dim]
    dims: Mapping[str, int]
    probe: Mapping[str, int]

    def size(self, actual: int, probed: int) -> int | None:
        """Return an expression that is ``actual`` under ``dims`` and ``probed`` under ``probe``.

        ``None`` if there is no simple one.
        """
        if actual == probed:
            return actual
        for expression in self.operands:
            difference = actual - expression
            size = self._shifted(expression, difference, probed)
            if size is None:
                size = self._multiple(expression.terms, actual, probed)
            if size is not None:
                return size
        for a, b in product(self.operands, repeat=2):
            size = self._multiple(_product_terms(a, b), actual, probed)
            if size is not None:
                return size
        return None

    def _shifted(
        self,
        expression: Dim,
        difference: int,
        probed: int,
    ) -> int | None:
        """Return the sum of an expression and a number, if it is ``probed`` under ``probe``."""
        if evaluate(expression.terms, self.probe) + difference != probed:
            return None
        return make([*expression.terms, ((), difference)], self.dims)

    def _multiple(
        self,
        terms: Sequence[Term],
        actual: int,
        probed: int,
    ) -> int | None:
        """Return the multiple of a sum of terms that has both sizes, ``None`` if none has."""
        total = evaluate(tuple(terms), self.dims)
        probed_total = evaluate(tuple(terms), self.probe)
        factor = actual // max(total, 1)
        if factor * total != actual or factor * probed_total != probed:
            return None
        multiples = [(names, factor * count) for names, count in terms]
        return make(multiples, self.dims)


def _product_terms(a: Dim, b: Dim) -> list[Term]:
    terms: list[Term] = []
    for (names, n), (others, m) in product(a.terms, b.terms):
        terms.append((names + others, n * m))
    return terms
