"""What of a model could be narrower: tables and layers, and the statement for each format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.verbs.cast import check_cast
from irgraph.verbs.insert import outermost_call
from irgraph.verbs.quantize import parameter_of, quantize
from irgraph.verbs.quantizing.bags import is_lookup
from irgraph.verbs.quantizing.layers import is_layer
from irgraph.verbs.refusal import RefusedError

TABLE, LAYER = "table", "layer"
FORMATS = {
    TABLE: ("f16", "bf16", "f8e4m3", "i8", "i4", "i2"),
    LAYER: ("f16", "bf16", "i8"),
}
"""Formats that are tried, by kind; layers go to f16 and bf16 by ``cast``."""

Plan = Mapping[int, str]
"""The format of each candidate that changes, by its number."""


class Candidate(Struct, frozen=True):
    """A parameter, with all ops that use it.

    Attributes:
        name: of the parameter, in the program or in the model.
        kind: ``table`` or ``layer``.
        ops: names of the ops.
        results: names of their results, by which a script finds them.
        formats: what it can be brought to.
        refused: why not to the others, by format.
    """

    name: str
    kind: str
    ops: tuple[str, ...]
    results: tuple[str, ...]
    formats: tuple[str, ...]
    refused: Mapping[str, str]

    def statement(self, to: str) -> str:
        """Return the statement that brings it to a format."""
        verb = "quantize" if self.kind == TABLE or to == "i8" else "cast"
        names = sorted({op.partition(".")[2] for op in self.ops})
        ops = f"aten.{names[0]}" if len(names) == 1 else f"aten.{{{','.join(names)}}}"
        where = " or ".join(f'op.result == "{name}"' for name in self.results)
        form = f'"{to}"' if verb == "quantize" else to
        return f"{verb} many {ops} where {where} to {form}"


def candidates(graph: Graph, formats: Sequence[str] = ()) -> list[Candidate]:
    """Return what could be narrower, in launch order; ``formats`` limits what is tried."""
    shared: dict[str, list[Op]] = {}
    for leaf in graph.leaves():
        unit = outermost_call(graph, leaf)
        if is_lookup(unit) or is_layer(unit):
            used = shared.setdefault(_key(graph, unit), [])
            used += [unit] if unit not in used else []
    return [_candidate(graph, name, units, formats) for name, units in shared.items()]


def _key(graph: Graph, unit: Op) -> str:
    try:
        known = parameter_of(graph, unit, "i8")
    except RefusedError:
        return f"%{unit.outputs[0].name}" if unit.outputs else unit.name
    return known.label or known.tensor.name


def _candidate(graph: Graph, name: str, units: list[Op], formats: Sequence[str]) -> Candidate:
    kind = TABLE if is_lookup(units[0]) else LAYER
    refused: dict[str, str] = {}
    for to in (to for to in FORMATS[kind] if not formats or to in formats):
        refused[to] = _why_not(graph, units, kind, to)
    return Candidate(
        name,
        kind,
        tuple(unit.name for unit in units),
        tuple(unit.outputs[0].name for unit in units if unit.outputs),
        tuple(to for to, why in refused.items() if not why),
        {to: why for to, why in refused.items() if why},
    )


def _why_not(graph: Graph, units: list[Op], kind: str, to: str) -> str:
    try:
        if kind == LAYER and to != "i8":
            for unit in units:
                check_cast(graph, unit, to)
            return ""
        for unit in units:
            parameter_of(graph, unit, to)
        left = quantize(graph, units, to).refused
    except RefusedError as error:
        return error.reason
    return left[0][1].reason if left else ""


def script(known: Sequence[Candidate], plan: Plan) -> str:
    """Return a plan as a script for ``irgraph opt -s``."""
    return "".join(f"{known[number].statement(to)}\n" for number, to in sorted(plan.items()))
