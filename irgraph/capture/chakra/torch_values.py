"""Operands and results in the form of PyTorch's execution traces: values, shapes and types."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from typing import Any, TypeAlias

from irgraph.ir.dtypes import ELEMENT_TYPES
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op, Value
from irgraph.ir.schema import accepts, schemas_of
from irgraph.ir.tensor import DeviceRef, DType, Tensor

Columns: TypeAlias = tuple[list[Any], list[Any], list[str]]
"""Values, shapes and types, one of each for every operand or result."""

CPP = {kind.name: kind.cpp[0] if kind.cpp else "float" for kind in ELEMENT_TYPES}
"""C++ names of element types; tf32 is stored as float."""

SCALAR = {kind.name: kind.scalar for kind in ELEMENT_TYPES}

NONE: tuple[Any, Any, str] = ("<None>", [], "None")
"""An omitted argument."""


def torch_name(op: Op) -> str:
    """Return an op's name in torch's notation: ``aten::linear``, ``AddmmBackward0``, a label."""
    if op.is_annotation:
        return op.name
    if op.is_autograd:
        return op.base
    return op.name.replace(".", "::", 1)


class Values:
    """Encodes tensors with numbers for themselves and for their memory, from 1."""

    def __init__(self, graph: Graph) -> None:
        self.tensors = {name: number for number, name in enumerate(graph.by_name, 1)}
        self.buffers = {name: number for number, name in enumerate(graph.by_buffer, 1)}
        self.devices = {d.name: f"cuda:{number}" for number, d in enumerate(graph.devices)}

    def inputs(self, op: Op) -> Columns:
        """Return the arguments of a call, in the order of its schema if that is known."""
        return _columns(self._value(value) for value in _arguments(op))

    def outputs(self, op: Op) -> Columns:
        """Return the results of a call."""
        return _columns(self._value(result) for result in op.results)

    def _value(self, value: Value) -> tuple[Any, Any, str]:
        if isinstance(value, Tensor):
            return self._tensor(value)
        if isinstance(value, tuple):
            values, shapes, types = _columns(self._value(item) for item in value)
            return values, shapes, f"GenericList[{','.join(types)}]"
        if value is None:
            return NONE
        if isinstance(value, DType):
            return SCALAR.get(value, 0), [], "Int"
        if isinstance(value, DeviceRef):
            return self.devices.get(value, str(value)), [], "Device"
        kinds = {bool: "Bool", int: "Int", float: "Double"}
        kind = next(
            (name for python_type, name in kinds.items() if isinstance(value, python_type)),
            "String",
        )
        return (int(value) if kind == "Int" else value), [], kind

    def _tensor(self, tensor: Tensor) -> tuple[Any, Any, str]:
        device = self.devices.get(tensor.device, tensor.device)
        itemsize = tensor.itemsize
        value = [
            self.tensors.get(tensor.name, 0),
            self.buffers.get(tensor.buffer, 0),
            int(tensor.offset) // itemsize,
            int(tensor.numel),
            itemsize,
            device,
        ]
        return value, [int(size) for size in tensor.shape], f"Tensor({CPP[tensor.dtype]})"


def _columns(rows: Iterator[tuple[Any, Any, str]]) -> Columns:
    entries = list(rows)
    return [r[0] for r in entries], [r[1] for r in entries], [r[2] for r in entries]


def _arguments(op: Op) -> list[Value]:
    """Return a call's arguments, with the defaults of omitted ones."""
    schema = next((schema for schema in schemas_of(op.name) if accepts(schema, op)), None)
    if schema is None:
        return [*op.operands, *op.attributes.values()]
    others = schema.arguments[len(op.operands) :]
    return [*op.operands, *(op.attributes.get(a.name, _literal(a.default)) for a in others)]


@cache
def _literal(text: str | None) -> Value:
    """Return a default of a schema as a value; words such as ``Mean`` remain texts."""
    try:
        value = ast.literal_eval(text or "None")
    except (ValueError, SyntaxError):
        return text
    return tuple(value) if isinstance(value, list) else value
