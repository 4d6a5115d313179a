"""Infers the devices of tensors from calls in traces that do not record them (schema 1.0.0).

The results of a call that names a device are on that device. The operands and results of all other
calls except copies are on one device; host scalars may be operands on any device.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from irgraph.capture.common.nodes import UNRECORDED_DEVICE, Recorded, RecordedNode, TraceTensor
from irgraph.capture.common.resolve import tensors_in

_DEVICE_NAME = re.compile(r"(?:cuda|hip|xpu|mtia)(?::\d+)?|cpu")
_COPY_CALLS = tuple(
    f"aten::{name}"
    for name in (
        "to",
        "_to_copy",
        "copy_",
        "_copy_from",
        "pin_memory",
        "_pin_memory",
        "set_",
        "cuda",
        "cpu",
        "item",
        "_local_scalar_dense",
        "is_nonzero",
    )
)
"""Calls whose operands and results may be on different devices."""


def infer_devices(nodes: Sequence[RecordedNode]) -> int:
    """Assign a device to every tensor without one, in place; return the number of such tensors.

    A tensor whose device cannot be inferred is assigned to the CPU.
    """
    without_device = [t for node in nodes for t in _tensors(node) if t.device == UNRECORDED_DEVICE]
    if not without_device:
        return 0
    device_by_storage: dict[int, str] = {}
    for node in nodes:
        devices = [v for v in node.inputs if isinstance(v, str) and _DEVICE_NAME.fullmatch(v)]
        if devices and not node.children and "pin_memory" not in node.name:
            _record_devices(device_by_storage, tensors_in(node.outputs), _with_index(devices[0]))
    without_copies = [
        node for node in nodes if not any(n.name.startswith(_COPY_CALLS) for n in node.walk())
    ]
    previous_count = -1
    while previous_count < len(device_by_storage):
        previous_count = len(device_by_storage)
        for node in without_copies:
            _propagate_device(node, device_by_storage)
    for node in nodes:
        node.inputs = [_with_device(value, device_by_storage) for value in node.inputs]
        node.outputs = [_with_device(value, device_by_storage) for value in node.outputs]
    return len(without_device)


def _tensors(node: RecordedNode) -> list[TraceTensor]:
    return list(tensors_in([*node.inputs, *node.outputs]))


def _with_index(device: str) -> str:
    return device if device == "cpu" or ":" in device else f"{device}:0"


def _record_devices(
    device_by_storage: dict[int, str], tensors: Iterable[TraceTensor], device: str
) -> None:
    for tensor in tensors:
        device_by_storage.setdefault(tensor.storage, device)


def _propagate_device(node: RecordedNode, device_by_storage: dict[int, str]) -> None:
    """Propagate the device of one of a call's tensors to the others; scalars are ignored."""
    tensors = [t for t in _tensors(node) if t.shape]
    devices = {device_by_storage[t.storage] for t in tensors if t.storage in device_by_storage} - {
        "cpu"
    }
    if len(devices) == 1:
        (device,) = devices
        _record_devices(device_by_storage, [*tensors, *tensors_in(node.outputs)], device)


def _with_device(value: Recorded, device_by_storage: dict[int, str]) -> Recorded:
    if isinstance(value, list):
        return [_with_device(item, device_by_storage) for item in value]
    if isinstance(value, TraceTensor) and value.device == UNRECORDED_DEVICE:
        return replace(value, device=device_by_storage.get(value.storage, "cpu"))
    return value
