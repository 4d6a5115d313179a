"""Sizes that carry their expressions over the model's dimensions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

BATCH = "B"
"""Name of the dimension of a step's samples."""

Term: TypeAlias = tuple[tuple[str, ...], int]
"""One product of a polynomial: the names of its factors, sorted, and its coefficient."""


class Dim(int):
    """An integer that carries the expression it was computed from, such as ``26*B+1``.

    It *is* its value under the model's current dimensions, so every formula over shapes works on
    plain numbers; only printing and resizing look at ``terms``, a polynomial over dimension names.
    Arithmetic on a ``Dim`` gives a plain ``int``: expressions are never guessed (see ``combine``).
    """

    terms: tuple[Term, ...]

    def __new__(cls, value: int, terms: tuple[Term, ...]) -> Dim:
        """Pair a value with its polynomial."""
        dim = super().__new__(cls, value)
        dim.terms = terms
        return dim

    def __reduce__(self) -> tuple[type[Dim], tuple[int, tuple[Term, ...]]]:
        """Support copying and pickling."""
        return Dim, (int(self), self.terms)

    def __str__(self) -> str:
        """Return the expression as text of ``model.ir``."""
        return format_terms(self.terms)

    def __repr__(self) -> str:
        """Show the expression and its value."""
        return f"Dim({self}={int(self)})"


def normal(terms: Iterable[Term]) -> tuple[Term, ...]:
    """Collect equal products and order them: longer products first, the constant last."""
    sums: dict[tuple[str, ...], int] = {}
    for factors, coefficient in terms:
        key = tuple(sorted(factors))
        sums[key] = sums.get(key, 0) + coefficient
    nonzero = [(factors, c) for factors, c in sums.items() if c]
    return tuple(sorted(nonzero, key=lambda term: (-len(term[0]), term[0])))


def evaluate(terms: tuple[Term, ...], dims: Mapping[str, int]) -> int:
    """Return the polynomial's value; ``KeyError`` names a dimension that ``dims`` lacks."""
    total = 0
    for factors, coefficient in terms:
        for name in factors:
            coefficient *= dims[name]
        total += coefficient
    return total


def make(terms: Iterable[Term], dims: Mapping[str, int]) -> int:
    """Return a ``Dim``, or a plain ``int`` if the polynomial is constant."""
    canonical = normal(terms)
    value = evaluate(canonical, dims)
    if all(not factors for factors, _ in canonical):
        return value
    return Dim(value, canonical)


def rebind(size: int, dims: Mapping[str, int]) -> int:
    """Return the same expression under other dimensions; plain numbers are unchanged."""
    if isinstance(size, Dim):
        return Dim(evaluate(size.terms, dims), size.terms)
    return size


def same(a: int, b: int) -> bool:
    """Return whether two sizes agree in value and in expression."""
    return a == b and getattr(a, "terms", None) == getattr(b, "terms", None)


def combine(operator: str, left: int, right: int, value: float) -> float:
    """Return the value of ``+ - * //`` on two sizes, with its expression if that is exact.

    A quotient has one if every coefficient is a multiple of the divisor, a plain number.
    """
    terms, others = _terms(left), _terms(right)
    if operator == "//":
        if isinstance(right, Dim) or any(count % right for _, count in terms):
            return value
        terms = tuple((factors, count // right) for factors, count in terms)
    elif operator == "*":
        terms = tuple(((*f, *g), a * b) for f, a in terms for g, b in others)
    else:
        sign = -1 if operator == "-" else 1
        terms = (*terms, *((factors, sign * count) for factors, count in others))
    canonical = normal(terms)
    return Dim(int(value), canonical) if any(factors for factors, _ in canonical) else value


def _terms(size: int) -> tuple[Term, ...]:
    return size.terms if isinstance(size, Dim) else (((), size),)


def format_terms(terms: tuple[Term, ...]) -> str:
    """Spell a polynomial: ``26*B+1``, ``B*L``, ``B-1``."""
    text = ""
    for factors, coefficient in terms:
        product = "*".join(factors)
        size = abs(coefficient)
        body = product if product and size == 1 else f"{size}*{product}" if product else str(size)
        sign = "-" if coefficient < 0 else "+" if text else ""
        text += sign + body
    return text or "0"
