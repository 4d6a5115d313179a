"""The calls of a recording, one node each, independent of the recording's version."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from msgspec import Struct

from irgraph.capture.common.damage import MAX_INT64, DamagedError, require_int, short_repr
from irgraph.ir.dtypes import FROM_CPP, ITEMSIZE

Recorded: TypeAlias = Any
"""A recorded value: a ``TraceTensor`` or ``Exact``, a literal, ``None``, or a list of them."""

Json: TypeAlias = Any
"""A decoded piece of a file."""


class TraceTensor(Struct, frozen=True):
    """A tensor as an execution trace describes it; both ids are used again after a free.

    Attributes:
        id: of the tensor object.
        storage: id of its memory; 0 if it has none.
        offset: elements from the start of the storage.
        device: torch's name, such as ``cuda:0``; ``""`` for a sparse tensor, and
            ``UNRECORDED_DEVICE`` if the trace has no device.
        shape, strides: in elements; strides are ``None`` if the trace has none, and all 0 for a
            sparse tensor.
        dtype: the IR's name of the element type.
    """

    id: int
    storage: int
    offset: int
    device: str
    shape: tuple[int, ...]
    dtype: str
    strides: tuple[int, ...] | None = None


@dataclass(slots=True, eq=False)
class RecordedNode:
    """One recorded range: an operator, an autograd node or an annotation.

    After an exception (checkpointing stops early with one), ranges may have no recorded caller.

    Attributes:
        id: number in the recording, in order of starts.
        name: as recorded, such as ``aten::linear``.
        schema: torch's schema string, ``""`` if it is no operator.
        inputs, outputs: values in the schema's order; tensors as ``TraceTensor``.
        sequence: autograd sequence number, -1 if none.
        forward: id of the range on the forward thread that a backward node belongs to.
        thread: the recording's thread number.
        backward: whether it is an autograd node.
        parent: id of the range that called it, 0 if none, ``MISSING_CALLER`` if it was not
            recorded.
        children: the ranges that it called, in order of starts.
        followers: calls that autograd made within the call after its kernel, if they are known.
        record: number that a Kineto trace of the same run gives to the call, 0 if unknown.
    """

    id: int
    name: str
    schema: str = ""
    inputs: list[Recorded] = field(default_factory=list)
    outputs: list[Recorded] = field(default_factory=list)
    sequence: int = -1
    forward: int = 0
    thread: int = 0
    backward: bool = False
    parent: int = 0
    children: list[RecordedNode] = field(default_factory=list)
    followers: list[RecordedNode] = field(default_factory=list)
    record: int = 0

    def walk(self) -> Iterator[RecordedNode]:
        """Yield this node and all below it, outer before inner."""
        pending = [self]
        while pending:
            node = pending.pop()
            yield node
            pending.extend(reversed(node.children))


def saved_copies(node: RecordedNode) -> list[RecordedNode]:
    """Return autograd's copies of the operands that an in-place call is about to overwrite.

    The call's backward reads them; no other result of a call's inside is read elsewhere.
    """
    writes = node.name.endswith("_") and not node.name.endswith("__")
    return [child for child in node.children if writes and child.name == "aten::clone"]


DTYPE_BY_SIZE = {1: "u8", 2: "i16", 4: "i32", 8: "i64"}
"""Substitute for an unknown element type, by its size in bytes."""

UNDEFINED = "nullptr"

UNRECORDED_DEVICE = "unsaid"
"""Device of a tensor in traces that do not record devices."""

MISSING_CALLER = -1
"""Id of a caller that was not recorded."""


DEVICE = re.compile(r"([a-z]\w*(:\d{1,4})?)?", re.ASCII)
"""Pattern of torch's names of devices; the empty name is one."""

_LISTS = ("GenericList[", "Tuple[", "List[")
_MAX_LEVELS = 8  # levels of lists in a value


def decode_values(
    raw: Sequence[Json],
    shapes: Sequence[Json],
    types: Sequence[Json],
    strides: Sequence[Json],
    repairs: Counter[str],
) -> list[Recorded]:
    """Return recorded values with every tensor described in full and ``None`` for ``<None>``.

    ``repairs`` counts, by a sentence, contradictory values that can be read nevertheless.

    Raises:
        DamagedError: a value makes no sense.
    """
    if not len(raw) == len(shapes) == len(types):
        counts = f"{len(raw)} values, {len(shapes)} shapes and {len(types)} types"
        raise DamagedError(f"it has {counts}")
    return [
        _decode_value(value, shapes[i], types[i], _item_or_default(strides, i, None), repairs)
        for i, value in enumerate(raw)
    ]


def _decode_value(
    value: Json, shape: Json, kind: str, strides: Json, repairs: Counter[str], depth: int = 0
) -> Recorded:
    if depth > _MAX_LEVELS:
        raise DamagedError("a value is nested too deeply")
    if kind.startswith("Tensor("):
        return _decode_tensor(value, shape, kind[7:-1], strides, repairs)
    if kind.startswith(_LISTS) and isinstance(value, list):
        kinds = _split_types(kind[kind.index("[") + 1 : -1])
        if len(kinds) < len(value):
            kinds = kinds + kinds[-1:] * (len(value) - len(kinds))
        return [
            _decode_value(
                item,
                _item_or_default(shape, i, []),
                kinds[i],
                _item_or_default(strides, i, None),
                repairs,
                depth + 1,
            )
            for i, item in enumerate(value)
        ]
    if isinstance(value, (list, dict)):
        raise DamagedError(f"{short_repr(value)} is no value of type {short_repr(kind)}")
    if type(value) is int and not -MAX_INT64 <= value <= MAX_INT64:
        raise DamagedError(f"the number {value} does not fit into 64 bits")
    return None if value == "<None>" else value


def _item_or_default(items: Json, i: int, default: Json) -> Json:
    return items[i] if isinstance(items, list) and i < len(items) else default


def _split_types(kinds: str) -> list[str]:
    """Split a list of types at commas outside brackets."""
    if "[" not in kinds and "<" not in kinds:
        return kinds.split(",")
    parts, depth, start = [], 0, 0
    for i, char in enumerate(kinds):
        depth += (char in "[<(") - (char in "]>)")
        if char == "," and depth == 0:
            parts.append(kinds[start:i])
            start = i + 1
    return [*parts, kinds[start:]]


def _decode_tensor(
    value: Json, shape: Json, dtype: str, strides: Json, repairs: Counter[str]
) -> TraceTensor | None:
    if dtype.startswith(UNDEFINED):
        return None
    if not isinstance(value, list) or len(value) < 5:
        raise DamagedError(f"a tensor is {short_repr(value)}, not a list of five or six")
    identity, storage, offset, numel, itemsize = (
        require_int(item, f"tensor's {word}", 0)
        for item, word in zip(value, ("id", "storage", "offset", "size", "itemsize"), strict=False)
    )
    device = value[5] if len(value) > 5 else UNRECORDED_DEVICE
    if not isinstance(device, str) or not DEVICE.fullmatch(device):
        raise DamagedError(f"its tensor's device is {short_repr(device)}")
    element_type = FROM_CPP.get(dtype) or DTYPE_BY_SIZE.get(itemsize, "u8")
    sizes = _decode_sizes(shape, "shape")
    if not device:  # a sparse tensor has no own memory
        return TraceTensor(identity, 0, 0, device, sizes, element_type, (0,) * len(sizes))
    elements = math.prod(sizes)
    if elements != numel:
        repairs["tensors whose number of elements contradicts their shape: shape used"] += 1
    if dtype in FROM_CPP and ITEMSIZE[element_type] != itemsize:
        repairs["tensors whose element size contradicts their type: type used"] += 1
    require_int((offset + elements) * ITEMSIZE[element_type], "tensor's end", 0)
    steps = _decode_sizes(strides, "strides") if strides else ()
    return TraceTensor(
        identity,
        storage,
        offset,
        device,
        sizes,
        element_type,
        steps if len(steps) == len(sizes) else None,
    )


def _decode_sizes(sizes: Json, label: str) -> tuple[int, ...]:
    if not isinstance(sizes, list):
        raise DamagedError(f"its tensor's {label} is {short_repr(sizes)}, not a list")
    return tuple(require_int(size, f"tensor's {label}", 0) for size in sizes)


def unknown_types(kinds: Iterable[str]) -> list[str]:
    """Return the element types in recorded types that the IR does not have, sorted."""
    names = {name for kind in kinds for name in re.findall(r"Tensor\(([^()]*)\)", kind)}
    return sorted(name for name in names if name not in FROM_CPP)
