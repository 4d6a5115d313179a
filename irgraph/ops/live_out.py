"""Live-out tensors of a step: those that outlast it or that the host reads."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

from irgraph.ir.effects import written_by
from irgraph.ir.graph import Graph, cached_per_graph
from irgraph.ir.loading import LOAD
from irgraph.ir.op import Op
from irgraph.ops.book import names_with
from irgraph.ops.operator import Trait

HOST_SYNCS = frozenset(("sync.event", "sync.stream", "sync.device"))
"""Events that make the host wait for a device."""

UNFILLED = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")
"""Ops that allocate uninitialised memory, which the program itself fills."""


@cached_per_graph
def live_out(graph: Graph) -> Mapping[str, str]:
    """Return the kind of every live-out tensor, by name and in launch order.

    Kinds: ``param``, ``state`` and ``input`` are declared tensors; ``returned``, results of the
    step; ``gradient``, gradients that ``AccumulateGrad`` stores; ``host``, tensors that the host
    reads or receives as a copy. If the captured program does not specify its results, possible
    results have the kind ``output``: tensors that no op uses, and tensors written in place that no
    later op accesses, except those that a lookup saves for its backward.
    """
    kinds = {declaration.tensor.name: declaration.role for declaration in graph.tensors}
    for tensor in graph.returned or ():
        kinds.setdefault(tensor.name, "returned")
    declared = frozenset(kinds)
    for op in graph.walk():
        if op.name != "autograd.AccumulateGrad":
            continue
        for name in _accumulated_gradients(op, declared):
            kinds.setdefault(name, "gradient")
    used = _used_names(graph)
    for op in _calls(graph.leaves()):
        for name, kind in _unused_results(op, used):
            kinds.setdefault(name, kind)
    if graph.returned is not None:
        return {name: kind for name, kind in kinds.items() if kind != "output"}
    for name in _written_last(graph):
        kinds.setdefault(name, "output")
    return kinds


def reads_on_host(op: Op) -> bool:
    """Return whether an op reads a value of a device on the host."""
    return op.name in names_with(Trait.HOST_READ)


def blocks_host(op: Op) -> bool:
    """Return whether an op makes the host wait for a device or for other processes."""
    if op.name in HOST_SYNCS:
        return True
    return op.name in names_with(Trait.HOST_READ, Trait.BARRIER)


def waits(op: Op) -> bool:
    """Return whether an op makes the host or a stream wait: for work, processes or a batch."""
    if op.name in HOST_SYNCS or op.name == LOAD:
        return True
    return op.name in names_with(Trait.WAIT, Trait.BARRIER)


def saves_auxiliaries(op: Op) -> bool:
    """Return whether an op saves its results after the first for its backward.

    The sizes of such results depend on the device.
    """
    return op.name in names_with(Trait.BAGS)


def is_label(op: Op) -> bool:
    """Return whether a leaf computes nothing, such as an annotation or an event."""
    if op.is_scope and not op.outputs:
        return True
    return op.name.startswith("sync.") or op.name == LOAD


def _calls(leaves: Iterable[Op]) -> list[Op]:
    return [op for op in leaves if not is_label(op)]


def _written_last(graph: Graph) -> list[str]:
    """Return tensors in the step's buffers that an op writes in place and no later op accesses."""
    declared = {declaration.tensor.buffer for declaration in graph.tensors}
    last_ops: dict[str, Op] = {}
    for op in _calls(graph.leaves()):
        for tensor in (*op.inputs, *op.outputs):
            if tensor.buffer not in declared:
                last_ops[tensor.buffer] = op
    names: list[str] = []
    for op in dict.fromkeys(last_ops.values()):
        for tensor in written_by(op):
            if last_ops.get(tensor.buffer) is op:
                names.append(tensor.name)
    return names


def _accumulated_gradients(op: Op, declared: Container[str]) -> list[str]:
    """Return a gradient's names after an ``AccumulateGrad`` node: its results, or else operands.

    A node that accumulates into a gradient declared before the step has no gradient of its own.
    """
    leaves = _calls(op.leaves())
    producers = [leaf for leaf in leaves if leaf.outputs]
    if producers:
        return [tensor.name for tensor in producers[-1].outputs]
    written = {tensor.name for leaf in leaves for tensor in written_by(leaf)}
    if any(name in declared for name in written):
        return []
    return sorted(written) or [tensor.name for tensor in op.inputs]


def _used_names(graph: Graph) -> set[str]:
    """Return the names of tensors used by ops with results or writes, or read by the host."""
    names: set[str] = set()
    for op in _calls(graph.leaves()):
        if op.outputs or written_by(op) or reads_on_host(op):
            names.update(tensor.name for tensor in op.inputs)
    return names


def _unused_results(op: Op, used: Container[str]) -> list[tuple[str, str]]:
    if reads_on_host(op):
        return [(tensor.name, "host") for tensor in op.inputs]
    if op.base in UNFILLED:
        return []
    results = op.outputs[:1] if saves_auxiliaries(op) else op.outputs
    reads_device = any(tensor.device != "cpu" for tensor in op.inputs)
    kinds: list[tuple[str, str]] = []
    for tensor in results:
        is_copy = reads_device and tensor.device == "cpu"
        if tensor.name not in used:
            kinds.append((tensor.name, "host" if is_copy else "output"))
    return kinds
