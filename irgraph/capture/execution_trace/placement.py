"""Devices of tensors in traces that do not record them (schema 1.0.0): they follow from the calls.

A call that names a device makes its results there. All other calls but copies take and make
tensors on one device; scalars of the host go anywhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from irgraph.capture.common.nodes import UNRECORDED_DEVICE, Recorded, RecordedNode, TraceTensor
from irgraph.capture.common.resolve import tensors_in

_NAMED = re.compile(r"(?:cuda|hip|xpu|mtia)(?::\d+)?|cpu")
_MOVES = tuple(
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
"""Calls whose operands and results may lie on different devices."""


def infer_devices(nodes: Sequence[RecordedNode]) -> int:
    """Give every tensor without a device one, in place; return how many there are.

    What nothing tells the device of lies on the CPU.
    """
    unsaid = [t for node in nodes for t in _tensors(node) if t.device == UNRECORDED_DEVICE]
    if not unsaid:
        return 0
    known: dict[int, str] = {}
    for node in nodes:
        named = [v for v in node.inputs if isinstance(v, str) and _NAMED.fullmatch(v)]
        if named and not node.children and "pin_memory" not in node.name:
            _learn(known, tensors_in(node.outputs), _whole(named[0]))
    still = [node for node in nodes if not any(n.name.startswith(_MOVES) for n in node.walk())]
    before = -1
    while before < len(known):
        before = len(known)
        for node in still:
            _follow(node, known)
    for node in nodes:
        node.inputs = [_with_device(value, known) for value in node.inputs]
        node.outputs = [_with_device(value, known) for value in node.outputs]
    return len(unsaid)


def _tensors(node: RecordedNode) -> list[TraceTensor]:
    return list(tensors_in([*node.inputs, *node.outputs]))


def _whole(device: str) -> str:
    return device if device == "cpu" or ":" in device else f"{device}:0"


def _learn(known: dict[int, str], tensors: Iterable[TraceTensor], device: str) -> None:
    for tensor in tensors:
        known.setdefault(tensor.storage, device)


def _follow(node: RecordedNode, known: dict[int, str]) -> None:
    """Learn the devices of a call's tensors from one of them; a scalar says nothing of others."""
    tensors = [t for t in _tensors(node) if t.shape]
    devices = {known[t.storage] for t in tensors if t.storage in known} - {"cpu"}
    if len(devices) == 1:
        (device,) = devices
        _learn(known, [*tensors, *tensors_in(node.outputs)], device)


def _with_device(value: Recorded, known: dict[int, str]) -> Recorded:
    if isinstance(value, list):
        return [_with_device(item, known) for item in value]
    if isinstance(value, TraceTensor) and value.device == UNRECORDED_DEVICE:
        return replace(value, device=known.get(value.storage, "cpu"))
    return value
