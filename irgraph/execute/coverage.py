"""Measures the share of a step that the drawn values exercise: ops, branches, elements."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from irgraph.execute.machine import Watch
from irgraph.execute.records import DECLARED, Coverage, Result
from irgraph.execute.tensor_pair import to_dense
from irgraph.execute.torch_values import Torch
from irgraph.ir.effects import effects, written_by
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor
from irgraph.ops.live_out import is_label, live_out, reads_on_host

Sides = Callable[[Op, Mapping[str, Torch]], Torch]
"""Returns the branch of each element of an op, as booleans."""


def _above_zero(op: Op, values: Mapping[str, Torch]) -> Torch:
    tensor = (*op.outputs, *op.inputs)[0]
    return _positive(values[tensor.name])


def _positive(value: Torch) -> Torch:
    """Return a mask of the elements above zero, or of the nonzero elements if they are complex."""
    return value != 0 if value.is_complex() else value > 0


def _result(op: Op, values: Mapping[str, Torch]) -> Torch:
    return values[(*op.outputs, *op.inputs)[0].name] != 0


def _operand(index: int) -> Sides:
    def side(op: Op, values: Mapping[str, Torch]) -> Torch:
        tensor = op.operands[index]
        assert isinstance(tensor, Tensor)
        return _positive(values[tensor.name])

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
"""Ops whose elements take one of two branches, by the last part of the name."""

SIDES_PER_OP = 2


class Observer:
    """Observes runs of one graph, at any sizes, and counts what they exercise."""

    def __init__(self, graph: Graph) -> None:
        leaves = list(graph.leaves())
        self._counted = live_leaves(graph)
        self._exercised: set[int] = set()
        self._sides: dict[int, set[bool]] = {
            i: set() for i in self._counted if leaves[i].base in SIDES
        }
        self._total = sum(not is_label(op) for op in leaves)
        self._elements = (0, 0)

    def watcher(self, graph: Graph) -> Watch:
        """Return the callback that observes one run."""
        places = graph.places

        def watch(op: Op, values: Mapping[str, Torch]) -> None:
            index = places[op]
            if index in self._sides and len(self._sides[index]) < SIDES_PER_OP:
                self._sides[index].update(SIDES[op.base](op, values).unique().tolist())
            if index in self._counted and index not in self._exercised:
                results = (*op.outputs, *written_by(op))
                if (
                    not results
                    or "zero" in op.base
                    or any(_nonzero(values[t.name]) for t in results)
                ):
                    self._exercised.add(index)

        return watch

    def count_elements(self, graph: Graph, result: Result) -> None:
        """Count the elements of live-out tensors that a run changed."""
        changed = total = 0
        for name, kind in live_out(graph).items():
            if name not in result.values:
                continue
            value = to_dense(result[name])
            start = result.initial.get(name) if kind in DECLARED else None
            differing = int((value if start is None else value != to_dense(start)).count_nonzero())
            if start is None or differing:
                changed, total = changed + differing, total + value.numel()
        if total and changed / total >= self._elements[0] / max(self._elements[1], 1):
            self._elements = (changed, total)

    def coverage(self) -> Coverage:
        """Return the coverage of all runs together."""
        side_count = sum(map(len, self._sides.values()))
        return Coverage(
            (len(self._exercised), self._total),
            (side_count, SIDES_PER_OP * len(self._sides)),
            self._elements,
        )


def _nonzero(value: Torch) -> bool:
    """Return whether a value has a nonzero element."""
    stored = value if value.layout == torch.strided else value._values()
    return bool(stored.any())


def live_leaves(graph: Graph) -> set[int]:
    """Return the indices of the leaves on which a live-out tensor depends."""
    names = set(live_out(graph))
    buffers = {graph.by_name[name].buffer for name in names if name in graph.by_name}
    indices: set[int] = set()
    for index, op in reversed(list(enumerate(graph.leaves()))):
        if is_label(op):
            continue
        access = effects(op)
        writes = any(t.buffer in buffers for t in access.writes)
        if (
            writes
            or access.barrier
            or reads_on_host(op)
            or any(t.name in names for t in op.outputs)
        ):
            indices.add(index)
            names.update(t.name for t in op.inputs)
            buffers.update(t.buffer for t in op.inputs)
    return indices
