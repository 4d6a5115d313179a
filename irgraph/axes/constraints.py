"""The size constraints of an op, as its declaration in the book of operators states them."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from math import prod

from irgraph.axes.relations import (
    ConstrainedOp,
    Multiple,
    Product,
    Relation,
    SizeKey,
    Slope,
    Sum,
)
from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor
from irgraph.ops.book import book, meaning_of
from irgraph.ops.meaning import ONE, OPAQUE, Axes, Axis, Joined, Meaning, Merged


def relation_of(site: ConstrainedOp) -> Relation:
    """Return the size constraints of an op; ``needs_probe`` is set if torch must be queried."""
    meaning = meaning_of(site.op)
    if meaning is None or meaning.sizes_by_torch:
        return Relation(needs_probe=True)
    if meaning.groups and site.outputs:
        return _reshape_relation(site, meaning)
    return _Constraints(site, meaning).relation()


def constrains_scope(op: Op) -> bool:
    """Return whether an op with a body relates sizes that its body may not relate.

    A product of many axes, for example, merges them, and the axes that grow would be ambiguous.
    """
    return op.name in book() and meaning_of(op) is not None


class _Constraints:
    """The constraints of one op; a letter is one size of all axes and arguments that have it."""

    def __init__(self, site: ConstrainedOp, meaning: Meaning) -> None:
        self._site = site
        self._meaning = meaning
        self._keys: dict[str, list[SizeKey]] = {}
        for key, axis in self._sizes():
            if isinstance(axis, str) and axis not in (ONE, OPAQUE):
                keys = self._keys.setdefault(axis, [])
                if key not in keys:
                    keys.append(key)

    def _sizes(self) -> Iterator[tuple[SizeKey, Axis]]:
        """Yield each size among tensors and arguments, with its axis."""
        for tensor, axes in self._tensors():
            for index, axis in enumerate(axes):
                yield (tensor.name, index), axis
        for (name, index), axis in self._meaning.arguments.items():
            yield self._site.argument(name, index), axis

    def _tensors(self) -> Iterator[tuple[Tensor, Axes]]:
        meaning = self._meaning
        yield from zip(self._site.inputs, meaning.operands, strict=True)
        # written operands have the axes that they had
        for tensor, result in zip(self._site.outputs, meaning.results, strict=False):
            yield tensor, result.axes

    def relation(self) -> Relation:
        """Return the constraints."""
        meaning = self._meaning
        relation = Relation()
        for letter, keys in self._keys.items():
            if letter in meaning.fixed:
                continue
            if len(keys) > 1:
                relation.equal.append(tuple(keys))
            else:
                relation.free.add(keys[0])
        self._add_compounds(relation)
        for slope in meaning.slopes:
            cause, effect = self._key(slope.cause), self._key(slope.effect)
            relation.slopes.append(Slope(cause, effect, slope.share))
        for first, second, count in meaning.multiples:
            relation.follows.append(Multiple(self._key(first), self._key(second), count))
        relation.steps += [(self._key(letter), step) for letter, step in meaning.steps]
        return relation

    def _key(self, letter: str) -> SizeKey:
        return self._keys[letter][0]

    def _add_compounds(self, relation: Relation) -> None:
        """Add that joined pieces sum to their axis, and that merged axes multiply to theirs."""
        for total, axis in self._sizes():
            if isinstance(axis, Joined):
                # a letter that occurs several times is another piece each time
                parts = {letter: iter(self._keys[letter]) for letter in axis.letters}
                pieces = tuple(next(parts[letter]) for letter in axis.letters)
                relation.sums.append(Sum(total, pieces))
            elif isinstance(axis, Merged):
                self._add_merged(relation, total, axis)

    def _add_merged(self, relation: Relation, total: SizeKey, axis: Merged) -> None:
        """Add that a merged axis is the product of its letters, or a fixed multiple of one."""
        meaning = self._meaning
        present = [letter for letter in axis.letters if letter in self._keys]
        missing = [letter for letter in axis.letters if letter not in self._keys]
        if not missing:
            relation.products.append(Product(tuple(map(self._key, present)), (total,)))
        elif len(present) == 1 and meaning.fixed & meaning.sizes.keys() >= set(missing):
            count = prod(meaning.sizes[letter] for letter in missing)
            part = self._key(present[0])
            relation.slopes.append(Slope(part, total, Fraction(count)))
            relation.slopes.append(Slope(total, part, Fraction(1, count)))


def _reshape_relation(site: ConstrainedOp, meaning: Meaning) -> Relation:
    """Return that a reshape preserves products of sizes, and that its arguments are sizes."""
    operand, result = site.inputs[0].name, site.outputs[0].name
    relation = Relation()
    for ins, outs in meaning.groups:
        before: tuple[SizeKey, ...] = tuple((operand, index) for index in ins)
        after: tuple[SizeKey, ...] = tuple((result, index) for index in outs)
        if len(before) == len(after) == 1:
            relation.equal.append((*before, *after))
        else:
            relation.products.append(Product(before, after))
    for name, index in meaning.arguments:
        relation.equal.append(((result, index), site.argument(name, index)))
    return relation
