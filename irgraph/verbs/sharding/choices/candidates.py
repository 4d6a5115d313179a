"""The ways to run a call on ranks: whole, on terms of sums, or split along a letter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import inf, prod

from msgspec import Struct
from msgspec.structs import replace

from irgraph.axes.algebra import terms_of
from irgraph.facts import fact
from irgraph.ir.dim import Dim
from irgraph.ir.effects import written_by
from irgraph.ir.op import Op, Result, Value, tensors_in
from irgraph.ir.schema import bind, schemas_of
from irgraph.ir.tensor import Tensor
from irgraph.ops.book import meaning_of
from irgraph.ops.kinds.lists import PREFIXES
from irgraph.ops.meaning import Meaning, Merged, letters_of
from irgraph.ops.places import (
    ONCE,
    SAME,
    Outer,
    Place,
    norm_claim,
    partial_claim,
    split_claim,
    times,
)

NORM_POWERS = (2.0, inf)
"""Powers of norms that pass through further norms and rearrangements as parts."""

COALESCED = "_coalesced"
"""Part of the names of collectives over lists of tensors."""


class Candidate(Struct, frozen=True):
    """A way to run a call on every rank.

    Attributes:
        operands: the place that each operand must have.
        results: the place of each new tensor, then of each written operand.
        letter: the letter that is split, ``""`` if none.
        size: the size of the letter in the whole step.
        runs: the number of equal runs of the letter, of each of which a rank has a block.
    """

    operands: tuple[Place, ...]
    results: tuple[Place, ...]
    letter: str = ""
    size: int = 0
    runs: Outer = ONCE


CANDIDATES_SLOT = "irgraph.verbs.sharding.choices.candidates"
POSITIONS_SLOT = "irgraph.verbs.sharding.positions"
RESULTS_SLOT = "irgraph.verbs.sharding.results"


def changed_tensors(op: Op) -> tuple[Tensor, ...]:
    """Return the new tensors of a call, then the operands that it writes."""
    return fact(op, RESULTS_SLOT, lambda call: (*call.outputs, *written_by(call)))


def candidates_of(op: Op) -> tuple[Candidate, ...]:
    """Return the ways to run a call of one position; the last is on complete tensors."""
    return fact(op, CANDIDATES_SLOT, lambda call: tuple(_candidates(call)))


def _candidates(op: Op) -> Iterator[Candidate]:
    count = len(changed_tensors(op))
    meaning = meaning_of(op)
    if meaning is not None and len(meaning.results) == count:
        for term in meaning.linear:
            claim = partial_claim(meaning, term)
            yield Candidate(claim.operands, claim.results)
        for power in NORM_POWERS:
            norm = norm_claim(meaning, power)
            if norm is not None:
                yield Candidate(norm.operands, norm.results)
        for letter in meaning.letters():
            yield from _split_candidates(op, meaning, letter)
    yield Candidate((SAME,) * len(op.inputs), (SAME,) * count)


def _split_candidates(op: Op, meaning: Meaning, letter: str) -> Iterator[Candidate]:
    size = letter_size(op, meaning, letter)
    claim = split_claim(meaning, letter)
    if claim is None or size is None:
        return
    places = (*claim.operands, *claim.results)
    sizes = {
        name: letter_size(op, meaning, name)
        for place in places
        for names, _ in place.outer
        for name in names
    }
    if None in sizes.values():
        return

    def over_dimensions(runs: Outer) -> Outer:
        product = ONCE
        for name in runs[0][0]:
            product = times(product, terms_of(sizes[name] or 0))
        return product

    yield with_runs(Candidate(claim.operands, claim.results, letter, size), over_dimensions)


def with_runs(candidate: Candidate, change: Callable[[Outer], Outer]) -> Candidate:
    """Return a candidate with other numbers of runs of the axes that it splits."""

    def changed(place: Place) -> Place:
        return replace(place, outer=change(place.outer)) if place.kind == "split" else place

    operands = tuple(map(changed, candidate.operands))
    return replace(candidate, operands=operands, results=tuple(map(changed, candidate.results)))


def letter_size(op: Op, meaning: Meaning, letter: str) -> int | None:
    """Return the size of a letter in the whole step, ``None`` if no axis has it."""
    tensors = (*op.inputs, *changed_tensors(op))
    axes = (*meaning.operands, *(result.axes for result in meaning.results))
    sizes: dict[str, int] = {}
    merged: list[tuple[Merged, int]] = []
    for tensor, names in zip(tensors, axes, strict=True):
        for axis, size in zip(names, tensor.shape, strict=True):
            if isinstance(axis, str):
                sizes.setdefault(axis, size)
            elif isinstance(axis, Merged):
                merged.append((axis, size))
    if letter in sizes:
        return sizes[letter]
    for axis, size in merged:
        others = [sizes.get(name) for name in axis.letters if name != letter]
        if letter in axis.letters and all(type(other) is int for other in others):
            return quotient(size, prod(others))  # type: ignore[arg-type]
    return None


def determines_shape(meaning: Meaning | None, operand: int) -> bool:
    """Return whether a result has letters of an operand."""
    if meaning is None:
        return True
    letters = {letter for axis in meaning.operands[operand] for letter in letters_of(axis)}
    results = (axis for result in meaning.results for axis in result.axes)
    return any(not letters.isdisjoint(letters_of(axis)) for axis in results)


def quotient(size: int, divisor: int) -> int | None:
    """Return a size divided by a number, ``None`` if that is no whole number for all dimensions."""
    if not isinstance(size, Dim):
        return None if size % divisor else int(size) // divisor
    if any(count % divisor for _, count in size.terms):
        return None
    return Dim(int(size) // divisor, tuple((names, n // divisor) for names, n in size.terms))


def draws(op: Op) -> bool:
    """Return whether a call draws random numbers: by its declaration, or else by its schema."""
    meaning = meaning_of(op)
    if meaning is not None:
        return meaning.random
    schemas = schemas_of(op.name)
    if not any(schema.random for schema in schemas):
        return False
    arguments = {a.name: value for schema in schemas for a, value in bind(schema, op)}
    has_rate = any(a.name == "dropout_p" for schema in schemas for a in schema.arguments)
    return not has_rate or arguments.get("dropout_p", 0.0) != 0


def positions(op: Op) -> tuple[Op, ...]:
    """Return a call for each position of an op over lists; the call itself if it is another op."""
    return fact(op, POSITIONS_SLOT, _positions)


def _positions(op: Op) -> tuple[Op, ...]:
    if not op.base.startswith(PREFIXES) and COALESCED not in op.base:
        return (op,)
    values = (*op.operands, *op.results, *op.attributes.values())
    counts = {len(v) for v in values if isinstance(v, tuple) and any(tensors_in(v))}
    if len(counts) != 1:
        return (op,)
    (count,) = counts
    return tuple(_position(op, index, count) for index in range(count)) if count > 1 else (op,)


def _position(op: Op, index: int, count: int) -> Op:
    def select(value: Value) -> Value:
        is_list = isinstance(value, tuple) and len(value) == count
        return (value[index],) if is_list else value  # type: ignore[index]

    operands = tuple(map(select, op.operands))
    attributes = {name: select(value) for name, value in op.attributes.items()}
    results: tuple[Result, ...] = tuple(map(select, op.results))  # type: ignore[arg-type]
    names = {tensor.name for tensor in tensors_in((*operands, *attributes.values()))}
    return replace(
        op,
        operands=operands,
        results=results,
        attributes=attributes,
        written=op.written & names,
        body=(),
    )
