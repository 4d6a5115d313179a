"""Turns recorded arguments into operands and attributes, by the operator's schema."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeAlias

from irgraph.capture.common.identity import Handle
from irgraph.capture.common.nodes import DEVICE
from irgraph.ir.dtypes import FROM_SCALAR
from irgraph.ir.schema import Argument, Schema, SchemaError, parse_schema, schemas_of
from irgraph.ir.tensor import DeviceRef, DType

Item: TypeAlias = Any
"""An argument or result: a ``Handle``, a literal, ``None``, or a list or tuple of them."""

LAYOUTS = ("strided", "sparse_coo", "sparse_csr", "mkldnn")
MEMORY_FORMATS = ("contiguous_format", "preserve_format", "channels_last", "channels_last_3d")

_NEUTRAL = {
    ("Layout?", "strided"), ("MemoryFormat?", "contiguous_format"), ("bool?", False),
}  # fmt: skip
"""Values that are equivalent to omitting an optional argument."""


@dataclass(slots=True, eq=False)
class CapturedCall:
    """An operation before its tensors have names.

    ``operands``, ``results`` and ``attributes`` hold a ``Handle`` where an ``Op`` holds a tensor;
    ``written`` are the handles that the call writes in place.
    """

    name: str
    operands: list[Item] = field(default_factory=list)
    results: list[Item] = field(default_factory=list)
    attributes: dict[str, Item] = field(default_factory=dict)
    written: list[Handle] = field(default_factory=list)
    body: list[CapturedCall] = field(default_factory=list)
    thread: str = "main"
    stream: str = ""
    module: str = ""
    phase: str = "forward"
    origin: str = ""

    def walk(self) -> Iterator[CapturedCall]:
        """Yield this call and all below it, outer before inner."""
        yield self
        for child in self.body:
            yield from child.walk()


def handles_in(values: Item) -> Iterator[Handle]:
    """Yield the handles among values, including those in nested lists."""
    if isinstance(values, Handle):
        yield values
    elif isinstance(values, (list, tuple)):
        for value in values:
            yield from handles_in(value)


@cache
def resolve_schema(text: str) -> tuple[Schema, bool] | None:
    """Return a recorded schema, and whether the shipped list has the same overload.

    If so, the shipped schema is returned, since it records which ops are composite. ``None`` if
    the text is no schema.
    """
    try:
        schema = parse_schema(text)
    except SchemaError:
        return None
    names = [argument.name for argument in schema.arguments]
    for shipped in schemas_of(schema.name):
        if shipped.overload == schema.overload:
            if [argument.name for argument in shipped.arguments] == names:
                return shipped, True
            return parse_schema(text, shipped.composite, shipped.random), False
    return schema, False


def fill(
    call: CapturedCall, schema: Schema, values: Sequence[Item], device: Callable[[str], str]
) -> None:
    """Set a call's operands, attributes and written tensors from values in schema order."""
    leading = True
    for argument, value in zip(schema.arguments, values, strict=False):
        if argument.written:
            call.written.extend(handles_in(value))
        leading = leading and not argument.keyword and argument.is_tensor and _is_tensors(value)
        if leading:
            call.operands.append(_tuple(value))
            continue
        literal = _literal(argument, value, device)
        if not _is_default(argument, literal):
            call.attributes[argument.name] = literal


def _is_tensors(value: Item) -> bool:
    if isinstance(value, (list, tuple)):
        return all(item is None or isinstance(item, Handle) for item in value)
    return isinstance(value, Handle)


def _tuple(value: Item) -> Item:
    return tuple(map(_tuple, value)) if isinstance(value, (list, tuple)) else value


def _literal(argument: Argument, value: Item, device: Callable[[str], str]) -> Item:
    kind = argument.type.rstrip("?")
    if value is None or isinstance(value, Handle):
        return value
    if kind == "ScalarType" and isinstance(value, int):
        return DType(FROM_SCALAR[value]) if value in FROM_SCALAR else value
    if kind == "Device" and isinstance(value, str) and DEVICE.fullmatch(value):
        return DeviceRef(device(value))
    if kind == "Layout" and isinstance(value, int):
        return LAYOUTS[value] if 0 <= value < len(LAYOUTS) else value
    if kind == "MemoryFormat" and isinstance(value, int):
        return MEMORY_FORMATS[value] if 0 <= value < len(MEMORY_FORMATS) else value
    return _tuple(value)


def _is_default(argument: Argument, value: Item) -> bool:
    if argument.default is None:
        return False
    default = _default(argument.default)
    if value is None or default is None:
        return (value is None and default is None) or (argument.type, value) in _NEUTRAL
    if isinstance(value, tuple) and not isinstance(default, tuple):
        return all(type(item) is type(default) and item == default for item in value)
    return bool(value == default)


@cache
def _default(text: str) -> Item:
    try:
        return _tuple(ast.literal_eval(text))
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return text
