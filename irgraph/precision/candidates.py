"""Candidates for narrower formats: tables and layers, and the statement for each format."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from irgraph.backend import backend
from irgraph.ir.graph import Graph
from irgraph.ir.op import EMPTY, Op, tensors_in
from irgraph.verbs.cast import check_cast
from irgraph.verbs.insert import outermost_call
from irgraph.verbs.quantize import parameter_of, quantize
from irgraph.verbs.quantizing.bags import is_lookup
from irgraph.verbs.quantizing.layers import factors, is_layer
from irgraph.verbs.refusal import RefusedError
from irgraph.verbs.tiered_lookups import READ

TABLE, LAYER = "table", "layer"

STATIC = "i8 static"
"""Format of layers in ``i8`` whose rows are rounded in fixed steps, from calibration data."""

FORMATS = {
    TABLE: ("f16", "bf16", "f8e4m3", "f8e5m2", "i8", "i4", "i2"),
    LAYER: ("tf32", "f16", "bf16", "f8e4m3", "f8e5m2", "i8", STATIC, "i4"),
}
"""Formats to try, by kind of candidate; layers are converted to tf32 by ``cast``."""

CASTS = ("tf32",)

UNITS = {"tf32": "tf32", "bf16": "bf16", "f8e4m3": "f8e4m3", "f8e5m2": "f8e5m2", "i4": "bf16"}
"""Formats of layers that torch multiplies only on matrix units, with the type of these units.
Other cards can also multiply integers and f16, if not faster."""

Plan = Mapping[int, str]
"""Formats of the changed candidates, by the candidate's index."""


class Candidate(Struct, frozen=True):
    """A parameter, with all ops that use it.

    Attributes:
        name: name of the parameter, in the program or in the model.
        kind: ``table`` or ``layer``.
        ops: names of the ops.
        results: names of their results, by which a script selects them.
        rows: names of the tensors that layers multiply by their weight.
        formats: possible formats.
        refused: reasons against the other formats, by format.
    """

    name: str
    kind: str
    ops: tuple[str, ...]
    results: tuple[str, ...]
    rows: tuple[str, ...]
    formats: tuple[str, ...]
    refused: Mapping[str, str]

    def statement(self, format_name: str, ranges: Mapping[str, float]) -> str:
        """Return the statement that converts it to a format; ``ranges`` are by layers' rows."""
        verb = "cast" if self.kind == LAYER and format_name in CASTS else "quantize"
        names = sorted({op.partition(".")[2] for op in self.ops})
        ops = f"aten.{names[0]}" if len(names) == 1 else f"aten.{{{','.join(names)}}}"
        condition = " or ".join(f'op.result == "{name}"' for name in self.results)
        format_text = f'"{format_name}"' if verb == "quantize" else format_name
        if format_name == STATIC:
            format_text = f'"i8" range {max(ranges[name] for name in self.rows):.6g}'
        return f"{verb} many {ops} where {condition} to {format_text}"


def candidates(
    graph: Graph, formats: Sequence[str] = (), device: str | None = None
) -> list[Candidate]:
    """Return the candidates of a graph in launch order; ``formats`` restricts the formats to try.

    With a ``device`` layers are not tried in formats that it cannot multiply.
    """
    unsupported = _unsupported_formats(device) if device else {}
    units_by_parameter: dict[str, list[Op]] = {}
    for leaf in graph.leaves():
        unit = outermost_call(graph, leaf)
        if is_lookup(unit) or is_layer(unit):
            parameter_units = units_by_parameter.setdefault(_parameter_label(graph, unit), [])
            parameter_units += [unit] if unit not in parameter_units else []
    narrowable = [
        _candidate(graph, name, units, formats, unsupported)
        for name, units in units_by_parameter.items()
    ]
    return [*narrowable, *_placed_tables(graph, formats)]


def _placed_tables(graph: Graph, formats: Sequence[str]) -> Iterator[Candidate]:
    """Yield the tables on a slower tier, which cannot be converted there."""
    labels = {d.tensor.buffer: d.label or d.tensor.name for d in graph.tensors}
    reason = "it is placed already: make it narrower before, and place it after (--place)"
    reasons = {
        format_name: reason
        for format_name in FORMATS[TABLE]
        if not formats or format_name in formats
    }
    for op in (leaf for leaf in graph.leaves() if leaf.name == READ):
        for weight in tensors_in(op.operands[:1]):
            name = labels.get(weight.buffer, weight.name)
            yield Candidate(name, TABLE, (op.name,), (), (), (), reasons)


def _unsupported_formats(device: str) -> dict[str, str]:
    """Return the formats of layers that a device cannot multiply, with the reasons."""
    sheet = backend().device(device)
    if sheet.architecture == "cpu":
        return {}
    unsupported = [format_name for format_name, kind in UNITS.items() if not sheet.peak(kind)[1]]
    return {
        format_name: f"{sheet.name} has no matrix units for {UNITS[format_name]}"
        for format_name in unsupported
    }


def _parameter_label(graph: Graph, unit: Op) -> str:
    """Return the label of a unit's parameter, or the name of its result if it has none."""
    try:
        declared = parameter_of(graph, unit, "i8")
    except RefusedError:
        weight = unit.inputs[0] if is_lookup(unit) else factors(graph, unit)[1]
        buffer = None if weight is None else weight.buffer
        params = (d for d in graph.tensors if d.role == "param" and d.tensor.buffer == buffer)
        parameter = next(params, None)
        if parameter is None:
            return f"%{unit.outputs[0].name}" if unit.outputs else unit.name
        declared = parameter
    return declared.label or declared.tensor.name


def _candidate(
    graph: Graph,
    name: str,
    units: list[Op],
    formats: Sequence[str],
    unsupported: Mapping[str, str],
) -> Candidate:
    kind = TABLE if is_lookup(units[0]) else LAYER
    reasons: dict[str, str] = {}
    for format_name in FORMATS[kind]:
        if formats and format_name not in formats:
            continue
        unsupported_reason = unsupported.get(format_name, "") if kind == LAYER else ""
        reasons[format_name] = unsupported_reason or _refusal_reason(
            graph, units, kind, format_name
        )
    rows = (factors(graph, unit)[0] for unit in units if kind == LAYER)
    return Candidate(
        name,
        kind,
        tuple(unit.name for unit in units),
        tuple(unit.outputs[0].name for unit in units if unit.outputs),
        tuple(dict.fromkeys(t.name for t in rows if t is not None)),
        tuple(format_name for format_name, reason in reasons.items() if not reason),
        {format_name: reason for format_name, reason in reasons.items() if reason},
    )


def _refusal_reason(graph: Graph, units: list[Op], kind: str, format_name: str) -> str:
    try:
        if kind == LAYER and format_name in CASTS:
            for unit in units:
                check_cast(graph, unit, format_name)
            return ""
        dtype = "i8" if format_name == STATIC else format_name
        for unit in units:
            parameter_of(graph, unit, dtype)
        refusals = quantize(graph, units, dtype).refused
    except RefusedError as error:
        return error.reason
    return refusals[0][1].reason if refusals else ""


def script(
    candidate_list: Sequence[Candidate], plan: Plan, ranges: Mapping[str, float] = EMPTY
) -> str:
    """Return a plan as a script for ``irgraph opt -s``.

    ``ranges`` are the largest absolute values of layers' rows, by name.
    """
    formats = sorted(plan.items())
    return "".join(
        f"{candidate_list[number].statement(format_name, ranges)}\n"
        for number, format_name in formats
    )
