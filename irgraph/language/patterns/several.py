"""``many`` within a series: every op of one form in a range."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from irgraph.ir.op import Value
from irgraph.language.expressions.nodes import Literal
from irgraph.language.expressions.units import plain
from irgraph.language.expressions.values import same
from irgraph.language.patterns.align import Alignment, FormMismatchError, align
from irgraph.language.patterns.index import Index
from irgraph.language.patterns.nodes import Blank, Bound, Hole, OpPattern


def several(
    index: Index, pattern: OpPattern, places: range, values: Mapping[str, Value]
) -> Iterator[tuple[int, Alignment]]:
    """Yield the outermost ops of a range that fit, with how they do.

    ``values`` are what the other members of the series bind: a name stands for any element of its
    list.
    """
    start = places.start
    for here in index.named(pattern.op, start):
        if here < start or index.end[here] > places.stop:
            continue
        try:
            laid = align(index, pattern, here)
        except FormMismatchError:
            continue
        if all(_fits(hole, value, values) for hole, value in laid.goals):
            yield here, laid
            start = index.end[here]


def _fits(hole: Hole, value: Value, values: Mapping[str, Value]) -> bool:
    if isinstance(hole, Literal):
        return same(plain(hole.value), value)
    if isinstance(hole, Bound):
        known = values.get(hole.name, ())
        return isinstance(known, tuple) and any(same(item, value) for item in known)
    return isinstance(hole, Blank)
