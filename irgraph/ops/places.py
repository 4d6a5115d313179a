"""Places of tensors over ranks, and the claims about them that follow from a call's meaning."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import inf
from typing import Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from irgraph.ir.dim import Term, format_terms, normal
from irgraph.ops.meaning import Axes, Joined, Meaning, Result, letters_in, letters_of

Outer: TypeAlias = tuple[Term, ...]
"""A number of runs of an axis: a polynomial over letters in claims, over dimensions in places."""

ONCE: Outer = (((), 1),)


class Place(Struct, frozen=True):
    """The part of a tensor that each of several ranks has.

    Attributes:
        kind: ``same`` tensor on every rank, equal blocks ``split`` along an axis in the order of
            the ranks, one term of a sum (``partial``), or the workspace of the rank's own call
            (``own``), which only the gradient of this call reads.
        axis: the axis of a split, else -1.
        factor: power of the number of ranks by which the ranks' values are too large.
        outer: the number of equal runs of a split axis, of each of which a rank has a block. A
            split of ``b`` is one of ``(a b)`` with ``a`` runs.
        power: of a partial tensor: the sum is one of these powers of the ranks' values, as for
            norms of blocks; ``inf`` if it is their maximum.
    """

    kind: Literal["same", "split", "partial", "own"]
    axis: int = -1
    factor: int = 0
    outer: Outer = ONCE
    power: float = 1.0

    def __str__(self) -> str:
        """Return the place in words."""
        runs = "" if self.outer == ONCE else f", {format_terms(self.outer)} runs"
        text = str(self.kind)
        if self.kind == "split":
            text = f"split({self.axis}{runs})"
        if self.power != 1.0:
            text += f" norm {self.power:g}"
        if self.factor:
            text += f" * ranks^{self.factor}"
        return text


SAME = Place("same")
PARTIAL = Place("partial")


def partial_norm(power: float) -> Place:
    """Return the place of norms of a rank's blocks, of which all are one norm."""
    return Place("partial", power=power)


OWN = Place("own")


def split(axis: int) -> Place:
    """Return the place of a tensor that is split along an axis."""
    return Place("split", axis)


class Claim(Struct, frozen=True):
    """A way to run a call on every rank: if operands are placed so, results are placed so.

    Attributes:
        operands: the place of each operand, in order.
        results: the place of each result of the meaning, in order.
        letter: the letter that is split, ``""`` if the call runs on partial sums.
    """

    operands: tuple[Place, ...]
    results: tuple[Place, ...]
    letter: str = ""


def claims(meaning: Meaning) -> Iterator[Claim]:
    """Yield every way to run a call on ranks that the meaning allows, but the same on all."""
    splits = (split_claim(meaning, letter) for letter in meaning.letters())
    sums = (partial_claim(meaning, term) for term in meaning.linear)
    powers = (meaning.power,) if meaning.power else (2.0, inf)
    norms = (norm_claim(meaning, power) for power in powers)
    for claim in (*splits, *sums, *norms):
        if claim is not None:
            yield claim


def split_claim(meaning: Meaning, letter: str) -> Claim | None:
    """Return the claim for operands split along a letter, ``None`` if it cannot be split."""
    if letter in meaning.mixed or letter in _created_letters(meaning):
        return None
    operands: list[Place] = []
    for index, axes in enumerate(meaning.operands):
        place = _place_along(axes, letter)
        if place is None:
            return None
        if place == SAME and index in meaning.workspaces:
            place = OWN
        operands.append(place)
    results: list[Place] = []
    for result in meaning.results:
        place = _result_place(meaning, result, letter, operands)
        if place is None:
            return None
        results.append(place)
    return Claim(tuple(operands), tuple(results), letter)


def _created_letters(meaning: Meaning) -> set[str]:
    """Return the letters that no operand and no argument has: ranks could not share them."""
    stated = tuple(meaning.arguments.values())
    operand_letters = letters_in(*meaning.operands, stated)
    return set(meaning.letters()).difference(operand_letters)


def _place_along(axes: Axes, letter: str) -> Place | None:
    """Return the place of a tensor if a letter is split, ``None`` if its blocks are not blocks."""
    for index, axis in enumerate(axes):
        if axis == letter:
            return split(index)
        if letter not in letters_of(axis):
            continue
        if isinstance(axis, Joined):
            return None
        letters = letters_of(axis)
        before = letters[: letters.index(letter)]
        runs = tuple(sorted(before))
        return Place("split", index, outer=((runs, 1),))
    return SAME


def times(a: Outer, b: Outer) -> Outer:
    """Return the product of two polynomials."""
    terms: list[Term] = []
    for (names, n), (others, m) in product(a, b):
        terms.append((names + others, n * m))
    return normal(terms)


def _result_place(
    meaning: Meaning,
    result: Result,
    letter: str,
    operands: list[Place],
) -> Place | None:
    """Return the place of a result if a letter is split, ``None`` if ranks cannot compute it.

    Changes operands that must be partial.
    """
    place = _place_along(result.axes, letter)
    if place == SAME and result.is_workspace:
        place = OWN
    elif place == SAME:
        place = _summed_place(meaning, result, letter, operands)
    is_mean = letter in meaning.means and _split_sources(result, operands)
    if place is None or not is_mean:
        return place
    # each rank divides by its share of the size alone
    return replace(place, factor=1)


def _summed_place(
    meaning: Meaning,
    result: Result,
    letter: str,
    operands: list[Place],
) -> Place | None:
    """Return the place of a result without the letter; changes operands that must be partial.

    The result is a sum over the letter if the meaning says so, or if it is linear in a set of
    operands that has the letter. Operands of the set without it, such as a bias, must be partial.
    """
    sources = _split_sources(result, operands)
    if not sources:
        return SAME
    if letter in meaning.summed:
        return PARTIAL
    if meaning.power:
        return partial_norm(meaning.power)
    for term in sorted(meaning.linear, key=len):
        if sources.isdisjoint(term):
            continue
        for index in term - sources:
            operands[index] = PARTIAL
        return PARTIAL
    return None


def _split_sources(result: Result, operands: Sequence[Place]) -> set[int]:
    """Return the split operands of which a result is a function."""
    places = enumerate(operands)
    splits = {index for index, place in places if place.kind == "split"}
    return set(filter(result.is_function_of, splits))


def norm_claim(meaning: Meaning, power: float) -> Claim | None:
    """Return the claim for norms of blocks in all operands, ``None`` if a call mixes them.

    A norm of norms of the same power is one, and so is a rearrangement of their elements.
    """
    is_same_norm = meaning.rearranges or meaning.power == power
    # terms of a plain sum may have either sign
    if power == 1.0 or not is_same_norm:
        return None
    place = partial_norm(power)
    operands = (place,) * len(meaning.operands)
    results = (place,) * len(meaning.results)
    return Claim(operands, results)


def partial_claim(meaning: Meaning, term: frozenset[int]) -> Claim:
    """Return the claim for partial sums of a set of operands, all others being the same."""
    operands: list[Place] = []
    for index in range(len(meaning.operands)):
        operands.append(PARTIAL if index in term else SAME)
    results: list[Place] = []
    for result in meaning.results:
        is_partial = any(map(result.is_function_of, term))
        results.append(PARTIAL if is_partial else SAME)
    return Claim(tuple(operands), tuple(results))
