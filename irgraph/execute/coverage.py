"""What share of a step the drawn values exercised: ops, branches, elements."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from irgraph.execute.machine import Watch
from irgraph.execute.pair import plain
from irgraph.execute.records import DECLARED, Coverage, Result
from irgraph.execute.torch_values import Torch
from irgraph.ir.effects import effects, written_by
from irgraph.ir.graph import Graph
from irgraph.ir.live_out import HOST_READS, is_label, live_out
from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor

Sides = Callable[[Op, Mapping[str, Torch]], Torch]
"""Which way each element of an op went."""


def _above_zero(op: Op, values: Mapping[str, Torch]) -> Torch:
    made = (*op.outputs, *op.inputs)[0]
    return _positive(values[made.name])


def _positive(value: Torch) -> Torch:
    """Return which elements are above zero; of complex ones, which are not zero."""
    return value != 0 if value.is_complex() else value > 0


def _result(op: Op, values: Mapping[str, Torch]) -> Torch:
    return values[(*op.outputs, *op.inputs)[0].name] != 0


def _operand(place: int) -> Sides:
    def side(op: Op, values: Mapping[str, Torch]) -> Torch:
        held = op.operands[place]
        assert isinstance(held, Tensor)
        return _positive(values[held.name])

    return side


SIDES: Mapping[str, Sides] = {
    **dict.fromkeys(("relu", "relu_"), _above_zero),
    **dict.fromkeys(("gt", "ge", "lt", "le", "eq", "ne", "logical_not"), _result),
    **dict.fromkeys(("threshold_backward", "masked_fill", "masked_fill_"), _operand(1)),
    **dict.fromkeys(("where", "abs", "sign", "sgn", "leaky_relu", "elu"), _operand(0)),
    "mm_relu_backward": _operand(2),
    "addmm_relu": _above_zero,
    "linear_relu": _above_zero,
}
"""Ops whose elements go one of two ways, by the last part of the name."""

BOTH = 2


class Observer:
    """Watches runs of one graph, at whatever sizes, and counts what they exercised."""

    def __init__(self, graph: Graph) -> None:
        leaves = list(graph.leaves())
        self._counted = reaching(graph)
        self._exercised: set[int] = set()
        self._sides: dict[int, set[bool]] = {
            i: set() for i in self._counted if leaves[i].base in SIDES
        }
        self._total = sum(not is_label(op) for op in leaves)
        self._elements = (0, 0)

    def watching(self, graph: Graph) -> Watch:
        """Return what watches one run."""
        places = graph.places

        def watch(op: Op, values: Mapping[str, Torch]) -> None:
            place = places[id(op)]
            if place in self._sides and len(self._sides[place]) < BOTH:
                self._sides[place].update(SIDES[op.base](op, values).unique().tolist())
            if place in self._counted and place not in self._exercised:
                made = (*op.outputs, *written_by(op))
                if not made or "zero" in op.base or any(_nonzero(values[t.name]) for t in made):
                    self._exercised.add(place)

        return watch

    def saw(self, graph: Graph, result: Result) -> None:
        """Count the elements that a run changed of what leaves the step."""
        changed = total = 0
        for name, kind in live_out(graph).items():
            if name not in result.values:
                continue
            value = plain(result[name])
            start = result.initial.get(name) if kind in DECLARED else None
            moved = int((value if start is None else value != plain(start)).count_nonzero())
            if start is None or moved:
                changed, total = changed + moved, total + value.numel()
        if total and changed / total >= self._elements[0] / max(self._elements[1], 1):
            self._elements = (changed, total)

    def coverage(self) -> Coverage:
        """Return what all runs together exercised."""
        taken = sum(map(len, self._sides.values()))
        return Coverage(
            (len(self._exercised), self._total),
            (taken, BOTH * len(self._sides)),
            self._elements,
        )


def _nonzero(value: Torch) -> bool:
    """Return whether a value has an element other than zero."""
    held = value if value.layout == torch.strided else value._values()
    return bool(held.any())


def reaching(graph: Graph) -> set[int]:
    """Return the places of the leaves on which something depends that leaves the step."""
    names = set(live_out(graph))
    buffers = {graph.by_name[name].buffer for name in names if name in graph.by_name}
    found: set[int] = set()
    for place, op in reversed(list(enumerate(graph.leaves()))):
        if is_label(op):
            continue
        touched = effects(op)
        writes = any(t.buffer in buffers for t in touched.writes)
        if (
            writes
            or touched.barrier
            or op.name in HOST_READS
            or any(t.name in names for t in op.outputs)
        ):
            found.add(place)
            names.update(t.name for t in op.inputs)
            buffers.update(t.buffer for t in op.inputs)
    return found
