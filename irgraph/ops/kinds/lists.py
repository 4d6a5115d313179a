"""Ops over lists of tensors: the same op for each position of the lists."""

from __future__ import annotations

from collections.abc import Sequence

from irgraph.ir.op import tensors_in
from irgraph.ir.tensor import Tensor
from irgraph.ops.call import Call
from irgraph.ops.kinds import elements
from irgraph.ops.kinds.reductions import norm_power
from irgraph.ops.meaning import ONE, Axes, Meaning, Result
from irgraph.ops.operator import Operator
from irgraph.ops.shapes import aligned, broadcast_shape, letters

PREFIXES = ("_foreach_", "_fused_", "_amp_foreach_")
"""Beginnings of names of ops over lists."""

REDUCING = frozenset({"norm", "max"})
"""Ops over lists whose results are numbers, one for each tensor."""


def by_position(call: Call) -> Meaning | None:
    """Return the meaning of an op over lists: tensors of one position broadcast together.

    A tensor that is not in a list, such as a learning rate, belongs to all positions; tensors of a
    call without lists are of one position.
    """
    values = (*call.op.operands, *call.op.attributes.values(), *call.op.results)
    lists = [list(tensors_in([value])) for value in values if isinstance(value, tuple)]
    if not any(lists):
        lists = [[value] for value in values if isinstance(value, Tensor)]
    count = max(map(len, lists), default=0)
    axes: dict[str, Axes] = {}
    axes_of_results: dict[str, Axes] = {}
    is_by_element = call.op.base.startswith("_foreach_") and _kind(call) not in REDUCING
    for position in range(count):
        row = [tensors[position] for tensors in lists if len(tensors) == count]
        prefix = f"p{position}_"
        shape = broadcast_shape(row)
        for tensor in row:
            axes[tensor.name] = aligned(tensor, shape, prefix)
            axes_of_results[tensor.name] = letters(len(shape), prefix)

    def axes_of(tensor: Tensor, is_single: bool) -> Axes:
        # an op by element takes a number for all positions, even if a list has its tensor as well
        if is_single and is_by_element:
            return ()
        return axes.get(tensor.name, () if is_by_element else (ONE,) * tensor.rank)

    has_lists = any(isinstance(value, tuple) for value in call.op.operands)
    arguments = (*call.op.operands, *call.op.attributes.values())
    operands = tuple(
        axes_of(tensor, has_lists and isinstance(value, Tensor))
        for value in arguments
        for tensor in tensors_in([value])
    )
    results = [
        (axes_of_results if is_by_element else axes).get(tensor.name, (ONE,) * tensor.rank)
        for tensor in (*call.outputs, *call.written)
    ]
    power = norm_power(call, "ord") if _kind(call) == "norm" and count == 1 else 0.0
    is_mixed = _kind(call) in REDUCING and not power
    return Meaning(
        operands=operands,
        results=tuple(map(Result, results)),
        mixed=frozenset(_letters(operands)) if is_mixed else frozenset(),
        linear=_linear_sets(call),
        power=power,
    )


def _letters(operands: Sequence[Axes]) -> set[str]:
    return {str(axis) for axes in operands for axis in axes}


def _kind(call: Call) -> str:
    base = call.op.base.rstrip("_")
    for prefix in PREFIXES:
        base = base.removeprefix(prefix)
    return base


def _linear_sets(call: Call) -> tuple[frozenset[int], ...]:
    """Return the positions of lists in which an op over lists is linear, as that by element."""
    if not call.op.base.startswith("_foreach_"):
        return ()
    single = elements.LINEAR_SETS.get(_kind(call), ())
    sets: list[frozenset[int]] = []
    for names in single:
        spans = [call.spans.get(name) for name in names.split()]
        if all(spans):
            sets.append(frozenset(i for span in spans if span for i in span))
    return tuple(sets)


def over_lists(name: str) -> Operator | None:
    """Return the declaration of an op over lists, ``None`` for others."""
    base = name.rpartition(".")[2]
    return Operator(name, by_position) if base.startswith(PREFIXES) else None


OPERATORS: dict[str, Operator] = {}
