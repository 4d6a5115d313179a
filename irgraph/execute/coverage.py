"""Measures the share of a step that the drawn values exercise: ops, branches, elements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence

import torch
from msgspec.structs import replace

from irgraph.execute.branches import Arguments, regions_of
from irgraph.execute.callables import span_of
from irgraph.execute.machine import Inspect, Watch
from irgraph.execute.records import DECLARED, Coverage, Result
from irgraph.execute.tensor_pair import to_dense
from irgraph.execute.torch_values import Torch
from irgraph.ir.compare import call_form
from irgraph.ir.effects import effects, written_by
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor
from irgraph.ops.live_out import is_label, live_out, reads_on_host


class Observer:
    """Observes runs of one graph, at any sizes, and counts what they exercise."""

    def __init__(self, graph: Graph, original: Graph | None = None) -> None:
        """Count all ops, or only the ops that an original graph lacks."""
        leaves = list(graph.leaves())
        self._counted = live_leaves(graph)
        if original is not None:
            kinds = Counter(map(kind_of_call, original.leaves()))
            self._counted = {i for i in self._counted if not kinds[kind_of_call(leaves[i])]}
        self._exercised: set[int] = set()
        self._graph = graph
        self._sides: dict[tuple[int, str], bool] = {}
        self._new_sides: set[tuple[int, str]] = set()
        self._total = sum(not is_label(op) for op in leaves)
        self._elements = (0, 0)

    def watcher(self, graph: Graph) -> Watch:
        """Return the callback that observes one run."""
        places = graph.places

        def watch(op: Op, values: Mapping[str, Torch]) -> None:
            index = places[op]
            if index in self._counted and index not in self._exercised:
                results = (*op.outputs, *written_by(op))
                if (
                    not results
                    or "zero" in op.base
                    or any(_nonzero(values[t.name]) for t in results)
                ):
                    self._exercised.add(index)

        return watch

    def inspector(self, graph: Graph) -> Inspect:
        """Return the callback that observes the arguments of calls of one run."""
        places = graph.places
        self._new_sides.clear()

        def inspect(op: Op, arguments: Arguments) -> None:
            index = places[op]
            if index in self._counted:
                for name, elements in regions_of(op.base, arguments):
                    if not self._sides.setdefault((index, name), False) and elements.any():
                        self._new_sides.add((index, name))

        return inspect

    def accept_sides(self) -> int:
        """Count the sides that the last run reached; return how many were not reached before."""
        self._sides.update(dict.fromkeys(self._new_sides, True))
        return len(self._new_sides)

    @property
    def unexercised(self) -> list[str]:
        """The sides of branches that no run reached, with the op and its place."""
        leaves = list(self._graph.leaves())
        sides: dict[int, list[str]] = {}
        for (index, name), reached in self._sides.items():
            if not reached:
                sides.setdefault(index, []).append(name)
        return [_side_text(leaves[index], names, self._graph) for index, names in sides.items()]

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
        return Coverage(
            (len(self._exercised), self._total),
            (sum(self._sides.values()), len(self._sides)),
            self._elements,
        )


def kind_of_call(op: Op) -> Hashable:
    """Return a key of the name, the types of operands and results, and the attributes of a call."""
    return call_form(replace(op, attributes=dict(sorted(op.attributes.items()))), _type)


def _type(value: object) -> Hashable:
    return (value.dtype, value.shape) if isinstance(value, Tensor) else repr(value)


def _side_text(op: Op, names: Sequence[str], graph: Graph) -> str:
    span = span_of(op, graph)
    place = f" ({span.source}:{span.line})" if span.line else ""
    target = next((f" of %{t.name}" for t in (*op.outputs, *op.inputs)), "")
    return f"{op.name}{target}{place}: {', '.join(names)}"


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
