"""Rules that every graph obeys; all findings are reported, not the first one only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from irgraph.ir.dim import Dim, evaluate
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.ir.schema import (
    Schema,
    SchemaError,
    parse_schema,
    resolve,
    schemas_of,
)
from irgraph.ir.tensor import ITEMSIZE, Tensor, oversized


@dataclass(frozen=True, slots=True)
class Finding:
    """One broken rule: its name, what is wrong, the op it was found at, if any, and what to do."""

    rule: str
    message: str
    op: Op | None = None
    hint: str = ""


class VerifyError(ValueError):
    """A graph breaks rules; ``findings`` holds all of them."""

    def __init__(self, graph: Graph, findings: list[Finding]) -> None:
        self.graph = graph
        self.findings = findings
        super().__init__("\n".join(describe(graph, finding) for finding in findings))


def describe(graph: Graph, finding: Finding) -> str:
    """Return a finding as one line with its place in the text and in the capture."""
    op = finding.op
    if op is None:
        return f"{graph.source or graph.name}: {finding.message} [{finding.rule}]"
    line = f":{op.line}" if op.line else ""
    origin = f" (from {op.origin})" if op.origin else ""
    place = f"{graph.source or graph.name}{line}"
    return f"{place}: {op.name}: {finding.message}{origin} [{finding.rule}]"


def verify(graph: Graph) -> list[Finding]:
    """Return everything that is wrong with a graph, in launch order; empty if it is sound."""
    return [finding for rule in RULES for finding in rule(graph)]


def check(graph: Graph) -> Graph:
    """Return the graph, or raise ``VerifyError`` with all findings."""
    findings = verify(graph)
    if findings:
        raise VerifyError(graph, findings)
    return graph


def _definitions(graph: Graph) -> Iterator[Finding]:
    """Names are defined once, before their uses, and mean the same tensor everywhere."""
    known: dict[str, Tensor] = {}
    for declared in graph.tensors:
        if declared.tensor.name in known:
            yield Finding("names", f"%{declared.tensor.name} is declared twice")
        known[declared.tensor.name] = declared.tensor
    for op in graph.ops:
        yield from _defined(op, known)


def _defined(op: Op, known: dict[str, Tensor]) -> Iterator[Finding]:
    for tensor in op.inputs:
        if tensor.name not in known:
            yield Finding("names", f"%{tensor.name} is used before it is defined", op)
        elif known[tensor.name] is not tensor and known[tensor.name] != tensor:
            yield Finding("names", f"%{tensor.name} is not what it was defined as", op)
    for tensor in op.outputs:
        if tensor.name in known:
            yield Finding("names", f"%{tensor.name} is defined a second time", op)
    for child in op.body:
        yield from _defined(child, known)
    for tensor in op.outputs:
        if op.body and tensor.name not in known and not op.is_autograd:
            hint = "what a call gives is made by an op inside it, under the same name"
            yield Finding("names", f"no op inside defines its result %{tensor.name}", op, hint)
        known[tensor.name] = tensor


def _written(graph: Graph) -> Iterator[Finding]:
    """What an op writes in place is one of its operands."""
    for op in graph.walk():
        if op.written:
            held = {t.name for t in op.inputs}
            for name in sorted(op.written - held):
                yield Finding("written", f"writes %{name}!, which is no operand of it", op)


def _buffers(graph: Graph) -> Iterator[Finding]:
    """A buffer lies on one declared device; types, strides and offsets make sense."""
    devices = {d.name for d in graph.devices} | {"cpu"}
    home: dict[str, str] = {}
    for tensor, op in _all_tensors(graph):
        if tensor.dtype not in ITEMSIZE:
            yield Finding("types", f"%{tensor.name} has the unknown type {tensor.dtype}", op)
        if tensor.device not in devices:
            hint = f'declare it: device @{tensor.device} "v100"'
            message = f"%{tensor.name} lies on undeclared @{tensor.device}"
            yield Finding("devices", message, op, hint)
        if home.setdefault(tensor.buffer, tensor.device) != tensor.device:
            both = f"both @{home[tensor.buffer]} and @{tensor.device}"
            yield Finding("devices", f"%{tensor.name} puts ${tensor.buffer} on {both}", op)
        if tensor.strides is not None and len(tensor.strides) != tensor.rank:
            yield Finding("types", f"%{tensor.name} has not one stride an axis", op)
        elif tensor.dtype in ITEMSIZE and oversized(tensor):
            yield Finding("types", oversized(tensor), op)
        if tensor.offset < 0 or any(size < 0 for size in tensor.shape):
            yield Finding("types", f"%{tensor.name} has a negative size or offset", op)


def _all_tensors(graph: Graph) -> Iterator[tuple[Tensor, Op | None]]:
    for declared in graph.tensors:
        yield declared.tensor, None
    for op in graph.walk():
        for tensor in op.outputs:
            yield tensor, op


def _dims(graph: Graph) -> Iterator[Finding]:
    """Sizes are what their expressions give under the model's dimensions."""
    for tensor, op in _all_tensors(graph):
        for size in (*tensor.shape, *(tensor.strides or ()), tensor.offset):
            problem = _wrong(size, graph)
            if problem:
                yield Finding("dims", f"%{tensor.name}: {problem}", op)


def _wrong(size: int, graph: Graph) -> str:
    if not isinstance(size, Dim):
        return ""
    try:
        value = evaluate(size.terms, graph.dims)
    except KeyError as missing:
        return f"{size} uses the undeclared dimension {missing.args[0]}"
    return "" if value == size else f"{size} is {value}, not {int(size)}"


def _streams(graph: Graph) -> Iterator[Finding]:
    """Streams are declared, on declared devices."""
    devices = {d.name for d in graph.devices}
    for stream in graph.streams:
        if stream.device not in devices:
            hint = f'declare it before: device @{stream.device} "v100"'
            message = f"stream {stream.name} is on undeclared @{stream.device}"
            yield Finding("streams", message, None, hint)
    declared = {s.name for s in graph.streams}
    for op in graph.walk():
        if op.stream and op.stream not in declared:
            hint = f"declare it: stream {op.stream} @{graph.device}"
            yield Finding("streams", f"runs on the undeclared stream {op.stream}", op, hint)


def _single(graph: Graph) -> Iterator[Finding]:
    """Every op stands in one place only."""
    seen: set[int] = set()
    for op in graph.walk():
        if id(op) in seen:
            yield Finding("tree", "the same op stands in two places", op)
        seen.add(id(op))


def _schemas(graph: Graph) -> Iterator[Finding]:
    """Our own ops fit their schemas; declared schemas can be read."""
    for text in graph.schemas:
        try:
            parse_schema(text)
        except SchemaError as error:
            yield Finding("schemas", str(error))
    for op in graph.leaves():
        if op.name.startswith("irgraph."):
            if not schemas_of(op.name):
                hint = "it is misspelled, or of a newer irgraph"
                yield Finding("schemas", "irgraph has no op of that name", op, hint)
            elif resolve(op) is None:
                hint = "; ".join(map(_call, schemas_of(op.name)))
                yield Finding("schemas", "its operands do not fit its schema", op, hint)


def _call(schema: Schema) -> str:
    """Return how an op is called: its name with its arguments."""
    return f"{schema.name}({', '.join(argument.name for argument in schema.arguments)})"


RULES: tuple[Callable[[Graph], Iterator[Finding]], ...] = (
    _definitions,
    _written,
    _buffers,
    _dims,
    _streams,
    _single,
    _schemas,
)
"""Every rule, in the order in which findings are reported."""
