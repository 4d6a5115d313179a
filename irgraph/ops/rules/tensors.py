"""Rules of tensors: their types, sizes, devices, and the buffers of results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from irgraph.facts import lasting_facts
from irgraph.ir.dim import Dim, evaluate
from irgraph.ir.dtypes import ITEMSIZE
from irgraph.ir.graph import OPERANDS, Declared, Graph
from irgraph.ir.op import Op
from irgraph.ir.tensor import DeviceRef, Tensor, size_error
from irgraph.ops.rules.call_errors import overwritten_operand, result_devices
from irgraph.ops.rules.calls import checked_libraries
from irgraph.ops.rules.finding import Finding


def tensors(graph: Graph, ops: Sequence[Op]) -> Iterator[Finding]:
    """A tensor's type and sizes are valid, and it is on a declared device."""
    check = _TensorCheck(graph, _device_names(graph), set())
    for tensor, op in _all_tensors(graph.tensors, ops):
        if id(tensor) in check.valid:
            continue
        findings = list(check.findings(tensor, op))
        yield from findings
        if not findings:
            check.valid.add(id(tensor))


def _device_names(graph: Graph) -> set[str]:
    names = {device.name for device in graph.devices}
    return names | {"cpu"}


def _all_tensors(
    declarations: Iterable[Declared],
    ops: Iterable[Op],
) -> Iterator[tuple[Tensor, Op | None]]:
    for declared in declarations:
        yield declared.tensor, None
    for op in ops:
        for tensor in op.outputs:
            yield tensor, op


class _TensorCheck(Struct, frozen=True):
    """Finder of invalid tensors; ``valid`` has the ``id`` of valid tensors and sizes."""

    graph: Graph
    devices: set[str]
    valid: set[int]

    def findings(
        self,
        tensor: Tensor,
        op: Op | None,
    ) -> Iterator[Finding]:
        """Yield the findings about a tensor."""
        if tensor.device not in self.devices:
            message = f"%{tensor.name} is on undeclared @{tensor.device}"
            yield Finding("devices", message, op, _declaration_hint(tensor.device))
        yield from _type_findings(tensor, op)
        strides = tensor.strides or ()
        for size in (*tensor.shape, *strides, tensor.offset):
            if type(size) is int or not isinstance(size, Dim) or id(size) in self.valid:
                continue
            problem = _dim_error(size, self.graph)
            if problem:
                yield Finding("dims", f"%{tensor.name}: {problem}", op)
            else:
                self.valid.add(id(size))


def _declaration_hint(device: str) -> str:
    return f'declare it: device @{device} "v100"'


def _type_findings(tensor: Tensor, op: Op | None) -> Iterator[Finding]:
    strides = tensor.strides
    has_type = tensor.dtype in ITEMSIZE
    if not has_type:
        yield Finding("types", f"%{tensor.name} has the unknown type {tensor.dtype}", op)
    if strides is not None and len(strides) != len(tensor.shape):
        yield Finding("types", f"%{tensor.name} does not have one stride per axis", op)
    elif has_type and (problem := size_error(tensor)):
        yield Finding("types", problem, op)
    if min((tensor.offset, *tensor.shape)) < 0:
        yield Finding("types", f"%{tensor.name} has a negative size or offset", op)


def _dim_error(size: Dim, graph: Graph) -> str:
    try:
        value = evaluate(size.terms, graph.dims)
    except KeyError as missing:
        return f"{size} uses the undeclared dimension {missing.args[0]}"
    return "" if value == size else f"{size} is {value}, not {int(size)}"


def streams(graph: Graph, ops: Sequence[Op]) -> Iterator[Finding]:
    """Streams are declared, on declared devices."""
    devices = {device.name for device in graph.devices}
    for stream in graph.streams:
        if stream.device not in devices:
            hint = f'declare it before: device @{stream.device} "v100"'
            message = f"stream {stream.name} is on undeclared @{stream.device}"
            yield Finding("streams", message, None, hint)
    declared = {stream.name for stream in graph.streams}
    for op in ops:
        if op.stream and op.stream not in declared:
            hint = f"declare it: stream {op.stream} @{graph.device}"
            yield Finding("streams", f"runs on the undeclared stream {op.stream}", op, hint)


def result_placement(graph: Graph, ops: Sequence[Op]) -> Iterator[Finding]:
    """Results are on their op's device."""
    devices = _device_names(graph)
    has_operands = OPERANDS not in graph.settings
    libraries = checked_libraries()
    for op in ops:
        device_refs = _device_refs(op)
        for name in device_refs:
            if name not in devices:
                message = f"names the undeclared @{name}"
                yield Finding("devices", message, op, _declaration_hint(name))
        if not has_operands or op.body or not op.inputs:
            continue
        if not op.name.startswith(libraries):
            continue
        device = device_refs[0] if device_refs else op.inputs[0].device
        for tensor in op.outputs:
            if tensor.device != device and device in devices:
                yield from _device_findings(op, tensor)


def _device_refs(op: Op) -> list[DeviceRef]:
    if not op.attributes:
        return []
    values = op.attributes.values()
    return [value for value in values if isinstance(value, DeviceRef)]


def _device_findings(op: Op, result: Tensor) -> Iterator[Finding]:
    devices = result_devices(op)
    if result.device not in devices:
        names = [f"@{device}" for device in sorted(devices)]
        expected = " or ".join(names)
        message = f"makes %{result.name} on {expected}, not on @{result.device}"
        yield Finding("devices", message, op, "aten.to copies a tensor to another device")


def overwritten_operands(graph: Graph, ops: Sequence[Op]) -> Iterator[Finding]:
    """Results do not overlap operands that their op only reads."""
    if OPERANDS in graph.settings:
        return
    for op in ops:
        if not _shares_buffers(op):
            continue
        for tensor in op.outputs:
            operand = overwritten_operand(op, tensor)
            if operand is not None:
                place = f"in ${tensor.buffer}, over its operand %{operand.name}"
                hint = "it makes a new tensor: give that its own buffer"
                yield Finding("written", f"makes %{tensor.name} {place}", op, hint)


SHARING_SLOT = "irgraph.ops.rules.tensors"
"""Slot of an op that caches whether a result is in the buffer of an operand."""


def _shares_buffers(op: Op) -> bool:
    """Return whether a result of a call that makes new tensors is in the buffer of an operand."""
    facts = lasting_facts(op)
    shares: bool | None = facts.get(SHARING_SLOT)
    if shares is None:
        is_checked = not op.body and op.name.startswith(checked_libraries())
        buffers = {tensor.buffer for tensor in op.inputs}
        new_buffers = {tensor.buffer for tensor in op.outputs}
        shares = is_checked and not buffers.isdisjoint(new_buffers)
        facts[SHARING_SLOT] = shares
    return shares
