"""Printer of ``model.ir``: each graph has one canonical text, byte for byte."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from irgraph.diagnostics import json_text
from irgraph.ir.graph import FORMAT, Graph
from irgraph.ir.op import Note, Op, Result, Value, is_call_name
from irgraph.ir.quantity import Quantity
from irgraph.ir.tensor import DeviceRef, DType, Tensor

INDENT = "  "


def print_graph(graph: Graph) -> str:
    """Return the canonical text of a graph and its rarer steps, with a final newline."""
    return "\n".join(map(print_step, (graph, *graph.rarer)))


def print_step(graph: Graph) -> str:
    """Return the canonical text of a graph without its rarer steps, with a final newline."""
    lines = [_header(graph), ""]
    lines.extend(f"device @{d.name} {quote(d.sheet)}" for d in graph.devices)
    lines.extend(f"stream {s.name} @{s.device}" for s in graph.streams)
    lines.extend(f"schema {quote(text)}" for text in graph.schemas)
    writer = _Writer(graph.device)
    for declared in graph.tensors:
        label = f" {quote(declared.label)}" if declared.label else ""
        typed = writer.type_of(declared.tensor)
        value = "" if declared.value is None else f" = {literal(declared.value)}"
        lines.append(f"{declared.role} %{declared.tensor.name}{label} : {typed}{value}")
    if graph.ops or graph.returned is not None:
        lines.append("")
    writer.lines = lines
    for op in graph.ops:
        writer.op(op, "", TOP_CONTEXT)
    if graph.returned is not None:
        names = ", ".join(f"%{tensor.name}" for tensor in graph.returned)
        lines.append(f"return {names}".rstrip())
    return "\n".join(lines) + "\n"


def print_op(op: Op, device: str = "gpu0") -> str:
    """Return the text of one op and its body, without a final newline."""
    writer = _Writer(device)
    writer.op(op, "", TOP_CONTEXT)
    return "\n".join(writer.lines)


def _header(graph: Graph) -> str:
    is_format_1 = graph.returned is None and all(d.value is None for d in graph.tensors)
    settings = [f"format = {1 if is_format_1 else FORMAT}"]
    if graph.dims:
        dims = ", ".join(f"{name} = {size}" for name, size in graph.dims.items())
        settings.append(f"dims = {{{dims}}}")
    settings.extend(f"{name} = {literal(value)}" for name, value in graph.settings.items())
    return f"model {quote(graph.name)} {{ {'  '.join(settings)} }}"


def quote(text: str) -> str:
    """Return a string literal."""
    if text.isascii() and text.isprintable() and '"' not in text and "\\" not in text:
        return f'"{text}"'
    return json_text(text)


def number(value: float) -> str:
    """Return a float literal that cannot be read as an integer."""
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return repr(float(value))


def literal(value: Value) -> str:
    """Return an operand or attribute as text: a tensor's name, a literal, or a list."""
    if isinstance(value, Tensor):
        return f"%{value.name}"
    if isinstance(value, tuple):
        return f"[{', '.join(map(literal, value))}]"
    return _scalar(value)


def _scalar(value: Value) -> str:
    return _LITERALS.get(type(value), str)(value)


_LITERALS: dict[type, Callable[..., str]] = {
    bool: lambda value: "true" if value else "false",
    type(None): lambda value: "none",
    float: number,
    DType: str,
    DeviceRef: lambda value: f"@{value}",
    str: quote,
    int: str,
}


def _note(value: Note) -> str:
    if isinstance(value, Quantity):
        return str(value)
    if isinstance(value, str) and value.isascii() and value.isidentifier():
        return value
    return literal(value)


def _notes(notes: Mapping[str, Note]) -> str:
    return ", ".join(f"{name} = {_note(value)}" for name, value in notes.items())


Context = tuple[str, str, str, str]
TOP_CONTEXT: Context = ("main", "", "", "forward")
"""Thread, stream, module and phase of an op that does not specify them."""


class _Writer:
    """Writer of the lines of ops, with a cache of repeated types."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.lines: list[str] = []
        self.names: dict[str, str] = {}
        self.shapes: dict[tuple[int, int], tuple[str, Tensor]] = {}

    def op(self, op: Op, indent: str, outer: Context) -> None:
        """Append an op and its body."""
        context = (op.thread, op.stream, op.module, op.phase)
        results = ", ".join(map(self.result, op.results))
        name = self.names.get(op.name) or self.name(op.name)
        head = f"{indent}{results} = {name}" if results else indent + name
        types = f" : {', '.join(map(self.result_type, op.results))}" if results else ""
        tail = "" if context == outer else self.location(context, outer)
        if op.notes:
            tail += f" [{_notes(op.notes)}]"
        if op.origin:
            tail += f" from {quote(op.origin)}"
        self.lines.append(f"{head}({self.arguments(op)}){types}{tail}{' {' if op.body else ''}")
        if op.body:
            for child in op.body:
                self.op(child, indent + INDENT, context)
            self.lines.append(indent + "}")

    def arguments(self, op: Op) -> str:
        """Return operands and attributes, written tensors marked."""
        written, operand = op.written, self.operand
        parts = [operand(value, written) for value in op.operands]
        parts += [f"{name} = {operand(value, written)}" for name, value in op.attributes.items()]
        return ", ".join(parts)

    def operand(self, value: Value, written: frozenset[str]) -> str:
        """Return one operand; ``!`` marks a tensor that the op writes."""
        if isinstance(value, Tensor):
            return f"%{value.name}!" if value.name in written else f"%{value.name}"
        if isinstance(value, tuple):
            return f"[{', '.join([self.operand(item, written) for item in value])}]"
        return _scalar(value)

    def result(self, result: Result) -> str:
        """Return one result's name, a list of names, or ``_``."""
        if isinstance(result, Tensor):
            return f"%{result.name}"
        if result is None:
            return "_"
        return f"[{', '.join(f'%{tensor.name}' for tensor in result)}]"

    def result_type(self, result: Result) -> str:
        """Return one result's type and location."""
        if isinstance(result, Tensor):
            return self.type_of(result)
        if result is None:
            return "none"
        return f"[{', '.join(map(self.type_of, result))}]"

    def type_of(self, tensor: Tensor) -> str:
        """Return a tensor's type, its device if it is not the first one, and its location."""
        cached = self.shapes.get((id(tensor.shape), id(tensor.strides)))
        shape = self.shape(tensor) if cached is None else cached[0]
        device = "" if tensor.device == self.device else f" @{tensor.device}"
        offset = f"+{tensor.offset}" if tensor.offset else ""
        return f"{tensor.dtype}[{shape}]{device} in ${tensor.buffer}{offset}"

    def shape(self, tensor: Tensor) -> str:
        """Return sizes and strides as text, cached by the identities of the tensor's tuples."""
        text = ", ".join(map(str, tensor.shape))
        if tensor.strides is not None:
            text += "; " + ", ".join(map(str, tensor.strides))
        self.shapes[id(tensor.shape), id(tensor.strides)] = text, tensor
        return text

    def name(self, name: str) -> str:
        """Return the text of an op's name, quoted if necessary."""
        spelt = self.names[name] = name if is_call_name(name) else quote(name)
        return spelt

    def location(self, context: Context, outer: Context) -> str:
        """Return thread and stream, module and phase, if they differ from the outer op's."""
        text = ""
        if context[:2] != outer[:2]:
            thread, stream = context[:2]
            text += f" on {thread}/{stream}" if stream else f" on {thread}"
        if context[2] != outer[2]:
            text += f" in module {quote(context[2])}"
        if context[3] != outer[3]:
            text += f" phase {context[3]}"
        return text
