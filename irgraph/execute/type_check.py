"""Checks results against torch's types; each kind of call is evaluated once."""

from __future__ import annotations

from collections.abc import Hashable, Iterator

from irgraph.execute.types.views import bound_findings, view_difference, view_form
from irgraph.ir.compare import call_form, typed
from irgraph.ir.graph import OPERANDS, Graph
from irgraph.ir.op import Op, Result, Value, tensors_in
from irgraph.ir.schema import schemas_of
from irgraph.ir.tensor import Tensor
from irgraph.ops.book import names_with
from irgraph.ops.inference import ShapeError, torch_results
from irgraph.ops.live_out import is_label, saves_auxiliaries
from irgraph.ops.operator import Trait
from irgraph.ops.rules.calls import checked_libraries
from irgraph.ops.rules.finding import Finding

BAGS_BACKWARD = "aten._embedding_bag_"
"""Name prefix of backward passes of lookups, whose saved operands differ in size by device."""


def type_findings(graph: Graph) -> Iterator[Finding]:
    """Yield the ops that torch's meta device rejects, or computes with results of other types.

    Strides are compared only of views, as devices differ in others. Ops that torch lacks, whose
    sizes depend on values, or whose operands a trace did not record, are omitted. Raises
    ``ImportError`` if torch is missing.
    """
    if OPERANDS in graph.settings:
        return
    message_by_form: dict[object, str] = {}
    libraries = checked_libraries()
    for op in graph.leaves():
        is_checked = op.name.startswith(libraries) and schemas_of(op.name)
        needs_data = op.name in names_with(Trait.HOST_READ, Trait.DATA)
        if is_label(op) or not is_checked or needs_data or op.name.startswith(BAGS_BACKWARD):
            continue
        if (op.written or not op.results) and _has_text(op):
            continue
        form = (call_form(op, _form), view_form(op))
        if form not in message_by_form:
            message_by_form[form] = _mismatch(op, graph)
        if message_by_form[form]:
            yield Finding("shapes", message_by_form[form], op)
    yield from bound_findings(graph)


def _has_text(op: Op) -> bool:
    """Return whether an argument is a text, as streams, storages and devices are recorded."""
    return any(isinstance(value, str) for value in (*op.operands, *op.attributes.values()))


def _form(value: Value | Result) -> Hashable:
    if isinstance(value, Tensor):
        return value.dtype, value.shape, value.strides
    return typed(value)


def _mismatch(op: Op, graph: Graph) -> str:
    try:
        expected = torch_results(op, graph.schemas, graph.dims)
    except ShapeError as error:
        return str(error) if error.refused else ""
    pairs = list(zip(expected, op.results, strict=False))[: 1 if saves_auxiliaries(op) else None]
    difference = next((text for pair in pairs for text in _differences(*pair)), "")
    return difference or _view_mismatch(op, pairs)


def _view_mismatch(op: Op, pairs: list[tuple[Result, Result]]) -> str:
    for expected, actual in pairs:
        for first, second in zip(tensors_in([expected]), tensors_in([actual]), strict=False):
            difference = view_difference(op, first, second)
            if difference:
                return difference
    return ""


def _differences(expected: Result, actual: Result) -> Iterator[str]:
    """Yield differences between torch's results and the model's; missing results are skipped."""
    if isinstance(expected, tuple) and isinstance(actual, tuple):
        if len(expected) != len(actual):
            yield f"makes a list of {len(expected)} tensors, not of {len(actual)}"
        for first, second in zip(expected, actual, strict=False):
            yield from _differences(first, second)
    elif (
        isinstance(expected, Tensor)
        and isinstance(actual, Tensor)
        and _text(expected) != _text(actual)
    ):
        yield f"makes {_text(expected)}, not %{actual.name}, {_text(actual)}"


def _text(tensor: Tensor) -> str:
    return f"{tensor.dtype}[{', '.join(str(int(size)) for size in tensor.shape)}]"
