"""Rules of calls: their schemas, writes, shapes and types."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from functools import cache

from irgraph.ir.graph import OPERANDS, Graph
from irgraph.ir.op import Op, Value
from irgraph.ir.schema import Schema, SchemaError, known_ops, parse_schema, schemas_of
from irgraph.ir.tensor import Tensor
from irgraph.ir.tf32 import PLAIN
from irgraph.ir.torch_schemas.custom_ops import package_ops
from irgraph.ir.torch_schemas.pure_operators import FOREIGN, refusal_by_name
from irgraph.ops.resized import has_valid_sizes
from irgraph.ops.rules.call_errors import schema_error, shape_error, usage
from irgraph.ops.rules.finding import Finding

CHECKED = ("aten.", "irgraph.")
"""Libraries whose schemas are known completely."""


@cache
def checked_libraries() -> tuple[str, ...]:
    """Return the libraries whose calls are checked, packages' ops included."""
    libraries = dict.fromkeys(CHECKED)
    for name in sorted(package_ops()):
        library, _, _ = name.partition(".")
        libraries[f"{library}."] = None
    return tuple(libraries)


def writes(_: Graph, ops: Sequence[Op]) -> Iterator[Finding]:
    """Every tensor that an op writes in place is one of its operands."""
    for op in ops:
        if not op.written:
            continue
        operand_names = {tensor.name for tensor in op.inputs}
        for name in sorted(op.written - operand_names):
            yield Finding("written", f"writes %{name}!, which is no operand of it", op)


def schemas(graph: Graph, ops: Sequence[Op]) -> Iterator[Finding]:
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
        if form in fitting:
            continue
        of_model = declared.get(op.name, ())
        overloads = (*of_model, *schemas_of(op.name))
        findings = list(_schema_findings(op, overloads))
        yield from findings
        if form and not findings:
            fitting.add(form)


def _form(op: Op) -> tuple[object, ...]:
    """Return the key that determines whether a schema accepts a call; empty if more does."""
    operands = op.operands
    counts = (len(op.results), len(operands))
    form: tuple[object, ...] = (op.name, *counts, *map(_value_kind, operands))
    if op.attributes:
        kinds = map(_value_kind, op.attributes.values())
        form = (*form, *op.attributes, *kinds)
    if not op.written:
        return form
    marks = [isinstance(value, Tensor) and value.name in op.written for value in operands]
    if sum(marks) != len(op.written):
        return ()
    return (*form, *marks)


def _value_kind(value: Value) -> object:
    return bool(value) if type(value) is tuple else type(value)


def _schema_findings(op: Op, overloads: tuple[Schema, ...]) -> Iterator[Finding]:
    """A call matches a schema of its op."""
    if overloads:
        problem = schema_error(op, overloads)
        if problem:
            yield Finding("schemas", problem, op, usage(overloads))
    elif op.name.startswith("irgraph."):
        hint = "it is misspelled, or from a newer irgraph"
        yield Finding("schemas", "irgraph has no op of that name", op, hint)


def shapes(graph: Graph, ops: Sequence[Op]) -> Iterator[Finding]:
    """Results have the shapes that follow from the operands' shapes."""
    if OPERANDS in graph.settings:
        return
    declared = _declared_names(graph)
    for op in ops:
        if op.body or op.name in declared or has_valid_sizes(op):
            continue
        problem = shape_error(op)
        if problem:
            yield Finding("shapes", problem, op)


def _declared_names(graph: Graph) -> set[str]:
    """Return the names of the ops whose schemas a model declares."""
    names: set[str] = set()
    for text in graph.schemas:
        signature, _, _ = text.partition("(")
        name, _, _ = signature.partition(".")
        names.add(name.strip().replace("::", "."))
    return names


def unknown(graph: Graph) -> Iterator[Finding]:
    """Yield a warning for each name of an op without a known schema."""
    seen = _declared_names(graph)
    for op in graph.leaves():
        if op.is_scope or op.name in seen or schemas_of(op.name):
            continue
        seen.add(op.name)
        message = "it has no known schema: nothing moves across it, and it cannot be executed"
        yield Finding("names", message, op, _spelling_hint(op.name))


def _spelling_hint(name: str) -> str:
    matches = get_close_matches(name, known_ops(), 1, 0.8)
    return f"did you mean {matches[0]}?" if matches else ""


def foreign_ops(_: Graph, ops: Sequence[Op]) -> Iterator[Finding]:
    """No op opens files or prints: no training step has such an operator of torch."""
    for op in ops:
        reason = refusal_by_name(op.name)
        if reason in FOREIGN:
            hint = "no command executes it; remove it from the model"
            yield Finding("operators", f"is not a function of tensors: {reason}", op, hint)


def tf32_types(_: Graph, ops: Sequence[Op]) -> Iterator[Finding]:
    """Products in tf32 multiply f32."""
    for op in ops:
        plain_op = PLAIN.get(op.name)
        if plain_op is None:
            continue
        kinds = {tensor.dtype for tensor in (*op.inputs, *op.outputs)}
        kinds.discard("f32")
        if kinds:
            message = f"rounds f32 to tf32, and is given {min(kinds)}"
            yield Finding("types", message, op, f"{plain_op} takes other types")
