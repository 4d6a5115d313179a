"""Rules of whole graphs: names, buffers and the tree of ops."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from irgraph.ir.graph import Declared, Graph, outermost
from irgraph.ir.op import Op, external_operands, results_by_name
from irgraph.ir.tensor import Tensor
from irgraph.ops.rules.finding import Finding

Definitions = dict[str, Tensor]
"""Tensors by the names that are defined so far."""


def definitions(graph: Graph) -> Iterator[Finding]:
    """Names are defined once, before their uses, and denote the same tensor everywhere."""
    defined: Definitions = {}
    for declared in graph.tensors:
        yield from _declaration_findings(declared, defined)
        defined[declared.tensor.name] = declared.tensor
    for outer in graph.ops:
        for op in outermost(outer):
            if not _is_defined(op, defined):
                yield from _definition_findings(op, defined)
    for tensor in graph.returned or ():
        definition = defined.get(tensor.name)
        if definition is None:
            yield Finding("names", f"%{tensor.name} is returned and never defined")
        elif definition != tensor:
            yield Finding("names", f"%{tensor.name} is returned with another type than it has")


def _declaration_findings(declared: Declared, defined: Definitions) -> Iterator[Finding]:
    tensor = declared.tensor
    if tensor.name in defined:
        yield Finding("names", f"%{tensor.name} is declared twice")
    if declared.value is not None and not _has_all_elements(declared):
        count = tensor.numel
        yield Finding("values", f"%{tensor.name} has {count} elements: its value is no such list")


def _has_all_elements(declared: Declared) -> bool:
    """Return whether a constant has one number per element."""
    elements = declared.value or ()
    if len(elements) != declared.tensor.numel:
        return False
    return all(isinstance(element, (int, float)) for element in elements)


def _is_defined(op: Op, defined: Definitions) -> bool:
    """Return whether all names of an op are valid; if so, add its results to ``defined``."""
    if not op.body and not op.outputs:  # nothing to define
        return all(defined.get(tensor.name) is tensor for tensor in op.inputs)
    operands = external_operands(op)
    results = results_by_name(op)
    if operands is None or not defined.keys().isdisjoint(results):
        return False
    for name, tensor in operands.items():
        definition = defined.get(name)
        if definition is not tensor and definition != tensor:
            return False
    defined.update(results)
    return True


def _definition_findings(op: Op, defined: Definitions) -> Iterator[Finding]:
    for tensor in op.inputs:
        definition = defined.get(tensor.name)
        if definition is None:
            yield Finding("names", f"%{tensor.name} is used before it is defined", op)
        elif definition is not tensor and definition != tensor:
            yield Finding("names", f"%{tensor.name} differs from its definition", op)
    for tensor in op.outputs:
        if tensor.name in defined:
            yield Finding("names", f"%{tensor.name} is defined a second time", op)
    for child in op.body:
        yield from _definition_findings(child, defined)
    for tensor in op.outputs:
        is_missing = bool(op.body) and tensor.name not in defined
        if is_missing and not op.is_autograd:
            hint = "an op inside a call must define the call's result, under the same name"
            yield Finding("names", f"no op inside defines its result %{tensor.name}", op, hint)
        defined[tensor.name] = tensor


def buffer_devices(graph: Graph) -> Iterator[Finding]:
    """A buffer is on one device."""
    declared = ((declared.tensor, None) for declared in graph.tensors)
    results = ((tensor, op) for op in graph.walk() for tensor in op.outputs)
    device_by_buffer: dict[str, str] = {}
    for tensor, op in chain(declared, results):
        device = device_by_buffer.setdefault(tensor.buffer, tensor.device)
        if device != tensor.device:
            devices = f"both @{device} and @{tensor.device}"
            message = f"%{tensor.name} puts ${tensor.buffer} on {devices}"
            yield Finding("devices", message, op)


def unique_ops(graph: Graph) -> Iterator[Finding]:
    """Every op occurs only once in a graph."""
    ops = tuple(graph.walk())
    seen: set[Op] = set()
    if len(set(ops)) == len(ops):
        return
    for op in ops:
        if op in seen:
            yield Finding("tree", "the same op occurs in two places", op)
        seen.add(op)
