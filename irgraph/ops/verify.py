"""Rules that every graph must obey; all findings are reported, not only the first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from difflib import get_close_matches
from functools import cache

from msgspec import Struct

from irgraph.facts import facts_of
from irgraph.ir.dim import Dim, evaluate
from irgraph.ir.dtypes import ITEMSIZE
from irgraph.ir.graph import OPERANDS, Declared, Graph, outermost
from irgraph.ir.op import Op, Value, external_operands, results_by_name
from irgraph.ir.schema import Schema, SchemaError, known_ops, parse_schema, schemas_of
from irgraph.ir.tensor import DeviceRef, Tensor, size_error
from irgraph.ir.tf32 import PLAIN
from irgraph.ir.torch_schemas.custom_ops import package_ops
from irgraph.ir.torch_schemas.pure_operators import FOREIGN, refusal_by_name
from irgraph.ops.call_errors import (
    overwritten_operand,
    result_devices,
    schema_error,
    shape_error,
    usage,
)
from irgraph.ops.resized import has_valid_sizes

CHECKED = ("aten.", "irgraph.")
"""Libraries whose schemas are known completely."""


@cache
def checked_libraries() -> tuple[str, ...]:
    """Return the libraries whose calls are checked, packages' ops included."""
    libraries = (f"{name.partition('.')[0]}." for name in sorted(package_ops()))
    return tuple(dict.fromkeys((*CHECKED, *libraries)))


class Finding(Struct, frozen=True):
    """One broken rule: its name, the error, the op that breaks it, if any, and the remedy."""

    rule: str
    message: str
    op: Op | None = None
    hint: str = ""


class VerifyError(ValueError):
    """A graph breaks rules; ``findings`` has all violations."""

    def __init__(self, graph: Graph, findings: list[Finding]) -> None:
        self.graph = graph
        self.findings = findings
        super().__init__("\n".join(describe(graph, finding) for finding in findings))


def describe(graph: Graph, finding: Finding) -> str:
    """Return a finding as one line with its location in the text and in the capture."""
    op = finding.op
    if op is None:
        return f"{graph.source or graph.name}: {finding.message} [{finding.rule}]"
    line = f":{op.line}" if op.line else ""
    origin = f" (from {op.origin})" if op.origin else ""
    location = f"{graph.source or graph.name}{line}"
    return f"{location}: {op.name}: {finding.message}{origin} [{finding.rule}]"


def verify(graph: Graph) -> list[Finding]:
    """Return all findings about a graph, in launch order; empty if it is valid.

    Rules of single ops skip ops that were valid in a graph of the same kind before.
    """
    kind = _graph_kind(graph)
    ops = [op for op in graph.walk() if facts_of(op).get(VERIFIED_SLOT) is not kind]
    findings = [finding for rule in RULES for finding in rule(graph)]
    findings += [finding for rule in RULES_OF_OPS for finding in rule(graph, ops)]
    if not findings:
        for op in ops:
            facts_of(op)[VERIFIED_SLOT] = kind
    return findings


VERIFIED_SLOT = "irgraph.ops.verify"
"""Slot of an op with the kind of graphs in which it was valid."""

MAX_GRAPH_KINDS = 64
"""Maximum number of kinds of graphs that are distinguished at a time."""

_KINDS: OrderedDict[object, object] = OrderedDict()


def _graph_kind(graph: Graph) -> object:
    """Return the token of all graphs in which rules of single ops read equal declarations."""
    read = (graph.devices, graph.streams, graph.schemas, OPERANDS in graph.settings)
    key = (*read, tuple(graph.dims.items()))
    kind = _KINDS.setdefault(key, object())
    if len(_KINDS) > MAX_GRAPH_KINDS:
        _KINDS.pop(next(iter(_KINDS)), None)
    return kind


def check(graph: Graph) -> Graph:
    """Return the graph, or raise ``VerifyError`` with all findings."""
    findings = verify(graph)
    if findings:
        raise VerifyError(graph, findings)
    return graph


def _definitions(graph: Graph) -> Iterator[Finding]:
    """Names are defined once, before their uses, and denote the same tensor everywhere."""
    defined: dict[str, Tensor] = {}
    for declared in graph.tensors:
        if declared.tensor.name in defined:
            yield Finding("names", f"%{declared.tensor.name} is declared twice")
        defined[declared.tensor.name] = declared.tensor
        if declared.value is not None and not _has_all_elements(declared):
            name, count = declared.tensor.name, declared.tensor.numel
            yield Finding("values", f"%{name} has {count} elements: its value is no such list")
    for outer in graph.ops:
        for op in outermost(outer):
            if not _is_defined(op, defined):
                yield from _definition_findings(op, defined)
    for tensor in graph.returned or ():
        if tensor.name not in defined:
            yield Finding("names", f"%{tensor.name} is returned and never defined")
        elif defined[tensor.name] != tensor:
            yield Finding("names", f"%{tensor.name} is returned with another type than it has")


def _is_defined(op: Op, defined: dict[str, Tensor]) -> bool:
    """Return whether all names of an op are valid; if so, add its results to ``defined``."""
    if not op.body and not op.outputs:  # nothing to define
        return all(defined.get(t.name) is t for t in op.inputs)
    operands, results = external_operands(op), results_by_name(op)
    if operands is None or not defined.keys().isdisjoint(results):
        return False
    for name, tensor in operands.items():
        definition = defined.get(name)
        if definition is not tensor and definition != tensor:
            return False
    defined.update(results)
    return True


def _definition_findings(op: Op, defined: dict[str, Tensor]) -> Iterator[Finding]:
    for tensor in op.inputs:
        if tensor.name not in defined:
            yield Finding("names", f"%{tensor.name} is used before it is defined", op)
        elif defined[tensor.name] is not tensor and defined[tensor.name] != tensor:
            yield Finding("names", f"%{tensor.name} differs from its definition", op)
    for tensor in op.outputs:
        if tensor.name in defined:
            yield Finding("names", f"%{tensor.name} is defined a second time", op)
    for child in op.body:
        yield from _definition_findings(child, defined)
    for tensor in op.outputs:
        if op.body and tensor.name not in defined and not op.is_autograd:
            hint = "an op inside a call must define the call's result, under the same name"
            yield Finding("names", f"no op inside defines its result %{tensor.name}", op, hint)
        defined[tensor.name] = tensor


def _written(_: Graph, ops: Sequence[Op]) -> Iterator[Finding]:
    """Every tensor that an op writes in place is one of its operands."""
    for op in ops:
        if op.written:
            operand_names = {t.name for t in op.inputs}
            for name in sorted(op.written - operand_names):
                yield Finding("written", f"writes %{name}!, which is no operand of it", op)


def _has_all_elements(declared: Declared) -> bool:
    """Return whether a constant has one number per element."""
    value = declared.value or ()
    numbers = all(isinstance(item, (int, float)) for item in value)
    return numbers and len(value) == declared.tensor.numel


def _buffer_devices(graph: Graph) -> Iterator[Finding]:
    """A buffer is on one device."""
    pairs = {(t.buffer, t.device) for op in graph.walk() for t in op.outputs}
    pairs.update((declared.tensor.buffer, declared.tensor.device) for declared in graph.tensors)
    if len({buffer for buffer, _ in pairs}) == len(pairs):
        return
    device_by_buffer: dict[str, str] = {}
    for tensor, op in _all_tensors(graph.tensors, graph.walk()):
        if device_by_buffer.setdefault(tensor.buffer, tensor.device) != tensor.device:
            conflict = f"both @{device_by_buffer[tensor.buffer]} and @{tensor.device}"
            yield Finding("devices", f"%{tensor.name} puts ${tensor.buffer} on {conflict}", op)


def _tensors(graph: Graph, ops: Sequence[Op]) -> Iterator[Finding]:
    """A tensor's type and sizes are valid, and it is on a declared device."""
    devices = {d.name for d in graph.devices} | {"cpu"}
    valid: set[int] = set()
    for tensor, op in _all_tensors(graph.tensors, ops):
        if id(tensor) in valid:
            continue
        findings = list(_tensor_findings(tensor, op, graph, devices, valid))
        yield from findings
        if not findings:
            valid.add(id(tensor))


def _tensor_findings(
    tensor: Tensor, op: Op | None, graph: Graph, devices: set[str], valid: set[int]
) -> Iterator[Finding]:
    """Yield the findings about a tensor; ``valid`` collects the ``id`` of valid sizes."""
    if tensor.device not in devices:
        message = f"%{tensor.name} is on undeclared @{tensor.device}"
        yield Finding("devices", message, op, _declaration_hint(tensor.device))
    yield from _type_findings(tensor, op)
    for size in (*tensor.shape, *(tensor.strides or ()), tensor.offset):
        if type(size) is int or not isinstance(size, Dim) or id(size) in valid:
            continue
        problem = _dim_error(size, graph)
        if problem:
            yield Finding("dims", f"%{tensor.name}: {problem}", op)
        else:
            valid.add(id(size))


def _declaration_hint(device: str) -> str:
    return f'declare it: device @{device} "v100"'


def _all_tensors(
    before: Iterable[Declared], ops: Iterable[Op]
) -> Iterator[tuple[Tensor, Op | None]]:
    for declared in before:
        yield declared.tensor, None
    for op in ops:
        for tensor in op.outputs:
            yield tensor, op


def _type_findings(tensor: Tensor, op: Op | None) -> Iterator[Finding]:
    strides = tensor.strides
    if tensor.dtype not in ITEMSIZE:
        yield Finding("types", f"%{tensor.name} has the unknown type {tensor.dtype}", op)
    if strides is not None and len(strides) != len(tensor.shape):
        yield Finding("types", f"%{tensor.name} does not have one stride per axis", op)
    elif tensor.dtype in ITEMSIZE and (problem := size_error(tensor)):
        yield Finding("types", problem, op)
    if tensor.offset < 0 or min(tensor.shape, default=0) < 0:
        yield Finding("types", f"%{tensor.name} has a negative size or offset", op)


def _dim_error(size: Dim, graph: Graph) -> str:
    try:
        value = evaluate(size.terms, graph.dims)
    except KeyError as missing:
        return f"{size} uses the undeclared dimension {missing.args[0]}"
    return "" if value == size else f"{size} is {value}, not {int(size)}"


def _streams(graph: Graph, ops: Sequence[Op]) -> Iterator[Finding]:
    """Streams are declared, on declared devices."""
    devices = {d.name for d in graph.devices}
    for stream in graph.streams:
        if stream.device not in devices:
            hint = f'declare it before: device @{stream.device} "v100"'
            message = f"stream {stream.name} is on undeclared @{stream.device}"
            yield Finding("streams", message, None, hint)
    declared = {s.name for s in graph.streams}
    for op in ops:
        if op.stream and op.stream not in declared:
            hint = f"declare it: stream {op.stream} @{graph.device}"
            yield Finding("streams", f"runs on the undeclared stream {op.stream}", op, hint)


def _unique_ops(graph: Graph) -> Iterator[Finding]:
    """Every op occurs only once in a graph."""
    seen: set[Op] = set()
    ops = tuple(graph.walk())
    if len(set(map(id, ops))) == len(ops):
        return
    for op in ops:
        if op in seen:
            yield Finding("tree", "the same op occurs in two places", op)
        seen.add(op)


def _schemas(graph: Graph, ops: Sequence[Op]) -> Iterator[Finding]:
    """Calls of irgraph's and torch's ops match their schemas; declared schemas can be parsed."""
    declared: dict[str, list[Schema]] = {}
    for text in graph.schemas:
        try:
            schema = parse_schema(text)
        except SchemaError as error:
            yield Finding("schemas", str(error))
        else:
            declared.setdefault(schema.name, []).append(schema)
    if OPERANDS in graph.settings:
        return
    fitting: set[tuple[object, ...]] = set()
    libraries = checked_libraries()
    for op in ops:
        if not op.name.startswith(libraries):
            continue
        form = _form(op)
        if form not in fitting:
            findings = list(
                _schema_findings(op, (*declared.get(op.name, ()), *schemas_of(op.name)))
            )
            yield from findings
            if form and not findings:
                fitting.add(form)


def _form(op: Op) -> tuple[object, ...]:
    """Return the key that determines whether a schema accepts a call; empty if more does."""
    operands = op.operands
    counts = (len(op.results), len(operands))
    form: tuple[object, ...] = (op.name, *counts, *map(_value_kind, operands))
    if op.attributes:
        form = (*form, *op.attributes, *map(_value_kind, op.attributes.values()))
    if not op.written:
        return form
    marks = [isinstance(v, Tensor) and v.name in op.written for v in operands]
    return (*form, *marks) if sum(marks) == len(op.written) else ()


def _value_kind(value: Value) -> object:
    return bool(value) if type(value) is tuple else type(value)


def _schema_findings(op: Op, schemas: tuple[Schema, ...]) -> Iterator[Finding]:
    """A call matches a schema of its op."""
    if schemas:
        problem = schema_error(op, schemas)
        if problem:
            yield Finding("schemas", problem, op, usage(schemas))
    elif op.name.startswith("irgraph."):
        hint = "it is misspelled, or from a newer irgraph"
        yield Finding("schemas", "irgraph has no op of that name", op, hint)


def _result_placement(graph: Graph, ops: Sequence[Op]) -> Iterator[Finding]:
    """Results are on their op's device, and do not overlap operands that it only reads."""
    devices = {d.name for d in graph.devices} | {"cpu"}
    skips_operands = OPERANDS in graph.settings
    libraries = checked_libraries()
    for op in ops:
        inputs, outputs = op.inputs, op.outputs
        values = op.attributes.values() if op.attributes else ()
        device_refs = [value for value in values if isinstance(value, DeviceRef)]
        for name in device_refs:
            if name not in devices:
                yield Finding(
                    "devices", f"names the undeclared @{name}", op, _declaration_hint(name)
                )
        if skips_operands or op.body or not (inputs and outputs and op.name.startswith(libraries)):
            continue
        device = device_refs[0] if device_refs else inputs[0].device
        buffers = {tensor.buffer for tensor in inputs}
        for tensor in outputs:
            if tensor.buffer in buffers or tensor.device != device in devices:
                yield from _placement_findings(op, tensor)


def _placement_findings(op: Op, result: Tensor) -> Iterator[Finding]:
    devices = result_devices(op)
    if result.device not in devices:
        expected = " or ".join(f"@{device}" for device in sorted(devices))
        message = f"makes %{result.name} on {expected}, not on @{result.device}"
        yield Finding("devices", message, op, "aten.to copies a tensor to another device")
    operand = overwritten_operand(op, result)
    if operand is not None:
        message = f"makes %{result.name} in ${result.buffer}, over its operand %{operand.name}"
        yield Finding("written", message, op, "it makes a new tensor: give that its own buffer")


def _shapes(graph: Graph, ops: Sequence[Op]) -> Iterator[Finding]:
    """Results have the shapes that follow from the operands' shapes."""
    if OPERANDS in graph.settings:
        return
    declared = _declared(graph)
    for op in ops:
        if op.body or op.name in declared or has_valid_sizes(op):
            continue
        problem = shape_error(op)
        if problem:
            yield Finding("shapes", problem, op)


def _declared(graph: Graph) -> set[str]:
    """Return the names of the ops whose schemas a model declares."""
    names = (text.partition("(")[0].partition(".")[0] for text in graph.schemas)
    return {name.strip().replace("::", ".") for name in names}


def unknown(graph: Graph) -> Iterator[Finding]:
    """Yield a warning for each name of an op without a known schema."""
    seen = _declared(graph)
    for op in graph.leaves():
        if op.is_scope or op.name in seen or schemas_of(op.name):
            continue
        seen.add(op.name)
        message = "it has no known schema: nothing moves across it, and it cannot be executed"
        matches = get_close_matches(op.name, known_ops(), 1, 0.8)
        yield Finding("names", message, op, f"did you mean {matches[0]}?" if matches else "")


def _foreign_ops(_: Graph, ops: Sequence[Op]) -> Iterator[Finding]:
    """No op opens files or prints: no training step has such an operator of torch."""
    for op in ops:
        reason = refusal_by_name(op.name)
        if reason in FOREIGN:
            hint = "no command executes it; remove it from the model"
            yield Finding("operators", f"is not a function of tensors: {reason}", op, hint)


def _tf32_types(_: Graph, ops: Sequence[Op]) -> Iterator[Finding]:
    """Products in tf32 multiply f32."""
    for op in ops:
        if op.name in PLAIN:
            kinds = {t.dtype for t in (*op.inputs, *op.outputs)} - {"f32"}
            if kinds:
                hint = f"{PLAIN[op.name]} takes other types"
                yield Finding("types", f"rounds f32 to tf32, and is given {min(kinds)}", op, hint)


RULES: tuple[Callable[[Graph], Iterator[Finding]], ...] = (
    _definitions,
    _buffer_devices,
    _unique_ops,
)
"""Every rule of whole graphs, in the order in which findings are reported."""

RULES_OF_OPS: tuple[Callable[[Graph, Sequence[Op]], Iterator[Finding]], ...] = (
    _written,
    _tensors,
    _streams,
    _schemas,
    _foreign_ops,
    _result_placement,
    _shapes,
    _tf32_types,
)
"""Every rule of single ops, in the order in which findings are reported."""
