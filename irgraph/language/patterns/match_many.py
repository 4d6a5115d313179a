"""``many`` within a series: every op of one form in a range."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from irgraph.ir.op import Value
from irgraph.language.expressions.nodes import Literal
from irgraph.language.expressions.units import base_value
from irgraph.language.expressions.values import equal_bindings
from irgraph.language.patterns.align import Alignment, FormMismatchError, align
from irgraph.language.patterns.index import Index
from irgraph.language.patterns.nodes import Blank, Bound, Hole, OpPattern


def match_many(
    index: Index, pattern: OpPattern, positions: range, values: Mapping[str, Value]
) -> Iterator[tuple[int, Alignment]]:
    """Yield the outermost ops of a range that match a pattern, with their alignments.

    ``values`` are the values that the other members of the series bind: a name in the pattern
    matches any element of its list.
    """
    start = positions.start
    for position in index.positions_of(pattern.op, start):
        if position < start or index.end[position] > positions.stop:
            continue
        try:
            alignment = align(index, pattern, position)
        except FormMismatchError:
            continue
        if all(_fits(hole, value, values) for hole, value in alignment.goals):
            yield position, alignment
            start = index.end[position]


def _fits(hole: Hole, value: Value, values: Mapping[str, Value]) -> bool:
    if isinstance(hole, Literal):
        return equal_bindings(base_value(hole.value), value)
    if isinstance(hole, Bound):
        elements = values.get(hole.name, ())
        return isinstance(elements, tuple) and any(equal_bindings(item, value) for item in elements)
    return isinstance(hole, Blank)
