"""Ops over lists of tensors: the same op for each position of the lists."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from irgraph.ir.op import tensors_in
from irgraph.ir.tensor import Tensor
from irgraph.ops.call import Call
from irgraph.ops.kinds import elements
from irgraph.ops.kinds.reductions import norm_power
from irgraph.ops.meaning import ONE, Axes, LinearSets, Meaning, Result, axis_names
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
    positions = _positions(call)
    kind = _kind(call)
    is_reducing = kind in REDUCING
    is_by_element = call.op.base.startswith("_foreach_") and not is_reducing
    axes: dict[str, Axes] = {}
    full_axes: dict[str, Axes] = {}
    for position, tensors in enumerate(positions):
        shape = broadcast_shape(tensors)
        prefix = f"p{position}_"
        for tensor in tensors:
            axes[tensor.name] = aligned(tensor, shape, prefix)
            full_axes[tensor.name] = letters(len(shape), prefix)
    operands: list[Axes] = []
    for tensor, is_single in _operands(call):
        # an op by element takes a number for all positions, even if a list has its tensor as well
        if is_by_element:
            of_tensor = () if is_single else axes.get(tensor.name, ())
        else:
            of_tensor = axes.get(tensor.name, _ones(tensor))
        operands.append(of_tensor)
    results: list[Result] = []
    for tensor in (*call.outputs, *call.written):
        by_name = full_axes if is_by_element else axes
        of_result = by_name.get(tensor.name, _ones(tensor))
        results.append(Result(of_result))
    is_norm = kind == "norm" and len(positions) == 1
    power = norm_power(call, "ord") if is_norm else 0.0
    is_mixed = is_reducing and not power
    return Meaning(
        operands=tuple(operands),
        results=tuple(results),
        mixed=axis_names(chain(*operands)) if is_mixed else frozenset(),
        linear=_linear_sets(call),
        power=power,
    )


def _positions(call: Call) -> list[list[Tensor]]:
    """Return the tensors of each position of a call's lists; of one position without lists."""
    op = call.op
    values = (*op.operands, *op.attributes.values(), *op.results)
    lists = [list(tensors_in([value])) for value in values if isinstance(value, tuple)]
    if not any(lists):
        tensors = [value for value in values if isinstance(value, Tensor)]
        return [tensors] if tensors else []
    count = max(map(len, lists))
    long_lists = [tensors for tensors in lists if len(tensors) == count]
    return [list(tensors) for tensors in zip(*long_lists, strict=True)]


def _operands(call: Call) -> Iterator[tuple[Tensor, bool]]:
    """Yield the operands, and whether each is single in a call with lists."""
    op = call.op
    has_lists = any(isinstance(value, tuple) for value in op.operands)
    for value in (*op.operands, *op.attributes.values()):
        is_single = has_lists and isinstance(value, Tensor)
        for tensor in tensors_in([value]):
            yield tensor, is_single


def _ones(tensor: Tensor) -> Axes:
    return (ONE,) * tensor.rank


def _kind(call: Call) -> str:
    base = call.op.base.rstrip("_")
    for prefix in PREFIXES:
        base = base.removeprefix(prefix)
    return base


def _linear_sets(call: Call) -> LinearSets:
    """Return the positions of lists in which an op over lists is linear, as that by element."""
    if not call.op.base.startswith("_foreach_"):
        return ()
    sets: list[frozenset[int]] = []
    for names in elements.LINEAR_SETS.get(_kind(call), ()):
        arguments = names.split()
        if all(name in call.spans for name in arguments):
            sets.append(call.positions(*arguments))
    return tuple(sets)


def over_lists(name: str) -> Operator | None:
    """Return the declaration of an op over lists, ``None`` for others."""
    base = name.rpartition(".")[2]
    return Operator(name, by_position) if base.startswith(PREFIXES) else None


OPERATORS: dict[str, Operator] = {}
