"""Regions: forward ops of a graph, extracted as a separate graph."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from msgspec import Struct
from msgspec.structs import replace

from irgraph.ir.dtypes import DIGITS
from irgraph.ir.edit import map_tensors, map_value
from irgraph.ir.graph import Declared, Graph
from irgraph.ir.op import Op, Value
from irgraph.ir.tensor import Tensor
from irgraph.ops.live_out import live_out


class ForwardRegion(Struct, frozen=True):
    """Forward ops with their inputs and outputs.

    Attributes:
        graph: a graph of these ops only; their inputs are declared and their outputs returned,
            both with their names in the original graph.
        cotangents: types of the outputs' gradients, empty if unknown; ``None`` for an output
            without one.
        inner: further results whose gradient is derived.
    """

    graph: Graph
    cotangents: tuple[Tensor | None, ...] = ()
    inner: tuple[Tensor, ...] = ()

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """Tensors that the ops use from outside, in the order of their first use."""
        return tuple(declared.tensor for declared in self.graph.tensors)

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """Results that other ops use."""
        return self.graph.returned or ()

    @property
    def gradient_types(self) -> tuple[Tensor, ...]:
        """Types of the gradients of the outputs: by default the outputs' own."""
        cotangents = self.cotangents or (None,) * len(self.outputs)
        return tuple(c or output for c, output in zip(cotangents, self.outputs, strict=True))

    def canonical_graph(self) -> Graph:
        """Return the graph with numbered names, equal for regions that differ in names only.

        It returns the outputs and the inner tensors. Inputs in one buffer get separate buffers, as
        autograd distinguishes leaves.
        """
        tensor_by_name: dict[str, Tensor] = {}
        buffers: dict[str, str] = {}

        def canonical_tensor(tensor: Tensor) -> Tensor:
            if tensor.name not in tensor_by_name:
                buffer = buffers.setdefault(tensor.buffer, f"b{len(buffers)}")
                tensor_by_name[tensor.name] = replace(
                    tensor, name=f"t{len(tensor_by_name)}", buffer=buffer
                )
            return tensor_by_name[tensor.name]

        tensors: list[Declared] = []
        for declared in self.graph.tensors:
            # Two inputs in one buffer (the chunks of a QKV product) have a gradient each.
            separate = replace(declared.tensor, buffer=f"in{len(tensors)}", offset=0)
            tensors.append(replace(declared, tensor=canonical_tensor(separate), label=""))
            buffers.setdefault(declared.tensor.buffer, tensor_by_name[declared.tensor.name].buffer)
        ops = tuple(_without_context(map_tensors(op, canonical_tensor)) for op in self.graph.ops)
        returned = map_value((*self.outputs, *self.inner), canonical_tensor)
        return replace(
            self.graph,
            name="region",
            tensors=tuple(tensors),
            ops=ops,
            returned=returned,
            settings={},
            source="",
        )


def _without_context(op: Op) -> Op:
    """Return an op without its origin, notes, module, thread, stream and phase."""
    body = tuple(map(_without_context, op.body))
    return replace(
        op,
        body=body,
        thread="main",
        stream="",
        module="",
        phase="forward",
        notes={},
        origin="",
        line=0,
    )


def is_float(tensor: Tensor) -> bool:
    """Return whether a tensor may have a gradient."""
    return tensor.dtype in DIGITS


def inputs_of(ops: Sequence[Op]) -> tuple[Tensor, ...]:
    """Return the tensors that ops use and do not define, in the order of their first use."""
    inputs: dict[str, Tensor] = {}
    defined: set[str] = set()
    for op in ops:
        for leaf in op.leaves():
            inputs.update((t.name, t) for t in leaf.inputs if t.name not in defined | inputs.keys())
            defined.update(t.name for t in leaf.outputs)
        # a composite call may read nothing but the shape of an operand
        inputs.update((t.name, t) for t in op.inputs if t.name not in defined | inputs.keys())
    return tuple(inputs.values())


def results_of(ops: Collection[Op]) -> dict[str, Tensor]:
    """Return the results of ops, by name."""
    return {t.name: t for op in ops for leaf in op.leaves() for t in leaf.outputs}


def region_of(graph: Graph, members: Sequence[Op]) -> ForwardRegion:
    """Return members of a graph as a region; outputs are results that later forward ops use.

    A result that only the backward pass reads was saved for it, and is no output.
    """
    results = results_of(members)
    inside = {leaf for op in members for leaf in op.leaves()}
    used = {name for name in results if live_out(graph).get(name, "output") != "output"}
    for buffer in {tensor.buffer for tensor in results.values()}:
        for _, leaf in graph.touching.get(buffer, ()):
            if leaf not in inside and leaf.phase != "backward":
                used.update(t.name for t in leaf.inputs)
    outputs = [tensor for name, tensor in results.items() if name in used and is_float(tensor)]
    return as_region(graph, members, outputs)


def as_region(graph: Graph, ops: Sequence[Op], outputs: Sequence[Tensor]) -> ForwardRegion:
    """Return ops as a region of a graph that need not contain them."""
    declared = tuple(Declared("input", tensor) for tensor in inputs_of(ops))
    subgraph = replace(graph, tensors=declared, ops=tuple(ops), returned=tuple(outputs))
    return ForwardRegion(subgraph)


def equal(a: Value, b: Value) -> bool:
    """Return whether two values are equal: tensors by type, sizes by number."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return same_type(a, b)
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(equal, a, b))
    # In Python True == 1; as an argument of an operator they differ.
    return type(a) is type(b) and a == b if isinstance(a, bool) or isinstance(b, bool) else a == b


def same_type(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors agree in element type, shape and strides."""
    return (a.dtype, a.shape, a.strides) == (b.dtype, b.shape, b.strides)
