"""Ops of a graph and the ops that replace them, as two graphs at small sizes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct
from msgspec.structs import replace

from irgraph.ir.edit import free_name, map_tensors
from irgraph.ir.graph import Declared, Device, Graph
from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor
from irgraph.verbs.drawn_pair import DrawnPair, UncomparableError
from irgraph.verbs.refusal import RefusedError
from irgraph.verbs.resize import Axis, resize

SMALL_SIZES = (6, 8, 12, 16, 32, 64)
"""Sizes of large axes, of which the first that all constraints allow applies."""

MAX_ELEMENTS = 1 << 10
"""Maximum number of elements of a tensor whose axes are not reduced."""

MAX_TOTAL = 1 << 22
"""Maximum number of elements of all tensors together that are compared."""


class OpExchange(Struct, frozen=True):
    """Ops of a graph, and the ops that compute the same results instead.

    Attributes:
        old: ops in launch order.
        new: ops in launch order; they read the same operands.
        context: ops that run before either: their results agree with each other.
        pairs: tensors of the old ops with the tensors of the new ops that must be equal to them;
            empty for results of equal names.
    """

    old: tuple[Op, ...]
    new: tuple[Op, ...]
    context: tuple[Op, ...] = ()
    pairs: tuple[tuple[str, str], ...] = ()


class SmallExchange:
    """A graph with the old and the new ops of an exchange, whose sizes are reduced together."""

    def __init__(self, graph: Graph, exchange: OpExchange) -> None:
        self.exchange = exchange
        self.names = _names(exchange)
        self.inputs = inputs_of((*exchange.context, *exchange.old))
        available = {t.name for t in self.inputs} | {
            t.name for op in (*exchange.context, *exchange.old) for t in _results_of(op)
        }
        self.inputs += [t for t in inputs_of(exchange.new) if t.name not in available]
        self._refuse_lost_inputs()
        declared = tuple(Declared("input", tensor) for tensor in self.inputs)
        devices = (*graph.devices, *(Device(t.device, "v100") for t in self.inputs))
        self.graph = Graph(
            name="meaning",
            dims=graph.dims,
            devices=tuple({device.name: device for device in devices}.values()),
            tensors=declared,
            ops=(*exchange.context, *exchange.old, *map(self._with_new_names, exchange.new)),
            schemas=graph.schemas,
        )

    def _refuse_lost_inputs(self) -> None:
        """Refuse new ops that read a result of the old ones: those would be lost."""
        results = {tensor.name for op in self.exchange.old for tensor in _results_of(op)}
        for tensor in inputs_of(self.exchange.new):
            if tensor.name in results and not self.exchange.pairs:
                raise UncomparableError("the new ops read a result of the matched ops")

    def _with_new_names(self, op: Op) -> Op:
        """Return a new op whose results have other names and buffers than the old ones."""
        return map_tensors(op, self._with_new_name)

    def _with_new_name(self, tensor: Tensor) -> Tensor:
        if tensor.name not in self.names:
            return tensor
        inputs = {t.buffer for t in self.inputs}
        buffer = tensor.buffer if tensor.buffer in inputs else f"{tensor.buffer}.new"
        return replace(tensor, name=self.names[tensor.name], buffer=buffer)

    def pair(self) -> DrawnPair:
        """Return both graphs at sizes at which they run in milliseconds."""
        graph = self.graph
        refused: set[tuple[str, int]] = set()
        while (axis := _largest_axis(graph, refused)) is not None:
            graph = _reduced(graph, axis, refused)
        total = sum(tensor.numel for tensor in graph.by_name.values())
        if total > MAX_TOTAL:
            raise UncomparableError(f"its {total:,} elements cannot be reduced to fewer")
        first, second = len(self.exchange.context), len(self.exchange.old)
        context, old = graph.ops[:first], graph.ops[first : first + second]
        new = graph.ops[first + second :]
        results = {tensor.name for op in old for tensor in _results_of(op)}
        pairs = [(a, self.names.get(b, b)) for a, b in self.exchange.pairs] or [
            (name, new_name) for name, new_name in self.names.items() if name in results
        ]
        if self.exchange.pairs:
            new = (*old, *new)
        before, after = (replace(graph, ops=(*context, *ops)) for ops in (old, new))
        return DrawnPair(graph, before, after, tuple(pairs))


def _names(exchange: OpExchange) -> dict[str, str]:
    """Return another name for each result of the new ops."""
    used = {t.name for op in (*exchange.old, *exchange.new) for t in (*op.inputs, *op.outputs)}
    return {
        t.name: free_name(f"{t.name}.new", used) for op in exchange.new for t in _results_of(op)
    }


def _results_of(op: Op) -> Iterator[Tensor]:
    for inner in op.walk():
        yield from inner.outputs


def inputs_of(ops: Iterable[Op]) -> list[Tensor]:
    """Return the tensors that ops read and that none of them returns, in order."""
    results: set[str] = set()
    inputs: dict[str, Tensor] = {}
    for op in ops:
        for leaf in op.leaves():
            for tensor in leaf.inputs:
                if tensor.name not in results:
                    inputs.setdefault(tensor.name, tensor)
            results |= {tensor.name for tensor in leaf.outputs}
        results |= {tensor.name for tensor in op.outputs}
    return list(inputs.values())


def _largest_axis(graph: Graph, refused: set[tuple[str, int]]) -> tuple[str, int] | None:
    """Return the longest axis of a tensor with too many elements, ``None`` if there is none."""
    axes = [
        (int(size), tensor.name, index)
        for tensor in graph.by_name.values()
        if tensor.numel > MAX_ELEMENTS
        for index, size in enumerate(tensor.shape)
        if size > SMALL_SIZES[0] and (tensor.name, index) not in refused
    ]
    return max(axes)[1:] if axes else None


def _reduced(graph: Graph, axis: tuple[str, int], refused: set[tuple[str, int]]) -> Graph:
    """Return a graph with a shorter axis, or the same graph if its size is fixed."""
    size = graph.by_name[axis[0]].shape[axis[1]]
    for small in SMALL_SIZES:
        if small >= size:
            break
        try:
            return resize(graph, Axis(*axis), small).graph
        except (RefusedError, ValueError, ArithmeticError):
            continue
    refused.add(axis)
    return graph
