"""Reference for quantised models: the original with values rounded to narrow formats.

``irgraph quantize`` measures the accuracy that quantisation loses. This module tests that nothing
else changed: if the original model computes with parameters and activations that the formats of the
quantised model can represent, both must agree, whatever the format.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from msgspec import Struct
from msgspec.structs import replace

from irgraph.execute.narrow.preparation import round_to_groups
from irgraph.execute.ranks.replicas import run_replicas
from irgraph.execute.records import Result
from irgraph.execute.tensor_pair import to_dense
from irgraph.execute.torch_values import DTYPES, Torch, view_of
from irgraph.ir.graph import Graph
from irgraph.ir.narrow.ops import QUANTIZE, STATIC, TOLERANCE, UNSCALED
from irgraph.ir.narrow.prepared import PREPARED, ROWS, WEIGHT, Prepared, prepared_of
from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor
from irgraph.ops.book import factors_of, names_with
from irgraph.ops.operator import Trait
from irgraph.ops.references.narrow import round_rows, steps_of
from irgraph.ops.references.rows import SCALED, from_format, scale_of, to_format


def is_quantized(graph: Graph) -> bool:
    """Return whether parameters of a graph are prepared in narrow formats."""
    return PREPARED in graph.settings


def tolerance_of(graph: Graph) -> float:
    """Return the relative tolerance for a quantised model, 0 for any other."""
    if not is_quantized(graph):
        return 0.0
    kinds = {_tolerance_kind(row_format) for row_format in _row_formats(graph).values()}
    return max((TOLERANCE[kind] for kind in kinds), default=TOLERANCE["rows"])


def round_trip(prepared: Prepared, value: Torch) -> Torch:
    """Round a table to a format and back to f32."""
    scale = scale_of(value, prepared.format) if prepared.format in SCALED else None
    return from_format(to_format(value, prepared.format), prepared.format, scale)


def _round_weight(kind: str, value: Torch) -> Torch:
    """Round a layer's weight [outputs, inputs] to a format and back to f32."""
    return round_to_groups(value) if kind == "i4" else _round_to_format(value, kind)


def _round_to_format(values: Torch, row_format: str | float) -> Torch:
    """Round rows to a layer's format, an element type or the step of a range, and back to f32."""
    if isinstance(row_format, float):
        return steps_of(values / row_format, "i8").float() * row_format
    if row_format in UNSCALED:
        return values.to(DTYPES[row_format]).float()
    steps, scales = round_rows(values.flatten(0, -2), row_format)
    return (steps.float() * scales.unsqueeze(1)).view(values.shape)


def _tolerance_kind(row_format: str | float) -> str:
    return "f8" if isinstance(row_format, str) and row_format.startswith("f8") else "layers"


def _row_formats(graph: Graph) -> dict[str, str | float]:
    """Return the row format of each layer, a type or a static step, by the source of its weight."""
    sources = {p.name: p.source.name for p in prepared_of(graph) if p.part == WEIGHT}
    makers: dict[str, str | float] = {}
    format_by_source: dict[str, str | float] = {}
    for op in graph.leaves():
        if op.name == QUANTIZE:
            makers[op.outputs[0].name] = op.outputs[0].dtype
        elif op.name == STATIC:
            makers[op.outputs[0].name] = float(op.attributes["scale"])  # type: ignore[arg-type]
        elif len(op.inputs) > 1 and op.inputs[1].name in sources:
            rows = op.inputs[0]
            format_by_source[sources[op.inputs[1].name]] = makers.get(rows.name, rows.dtype)
    return format_by_source


def run_reference(
    before: Graph, rewritten: Sequence[Graph], initial_run: Result, seed: int, ranks: int
) -> Result:
    """Run the original model rounded to the formats of a rewritten model, or of all its ranks.

    ``initial_run`` is a run without rounding, whose initial values are reused.
    """
    declared = {d.tensor.name for d in before.tensors}
    parameters = [
        prepared
        for after in rewritten
        for prepared in prepared_of(after)
        if prepared.source.name in declared
    ]
    weights, rows = (
        {p.source.name: p for p in parameters if p.part == part} for part in (WEIGHT, ROWS)
    )
    values = {**initial_run.initial}
    row_formats = {
        name: row_format for after in rewritten for name, row_format in _row_formats(after).items()
    }
    layers = {
        before.by_name[name].buffer: _RoundedLayer(
            row_formats.get(name, "i8"), prepared.format, values[name].float()
        )
        for name, prepared in weights.items()
    }
    for name, prepared in rows.items():
        values[name] = round_trip(prepared, values[name].float())
    return run_replicas(before, values, seed, ranks, _Rounding(before, layers) if layers else None)


class _RoundedLayer(Struct, frozen=True):
    """Row format, weight format and source parameter of a quantised layer."""

    rows: str | float
    format: str
    value: Torch


class _Rounding:
    """Recomputes layers from rounded rows and weights.

    ``layers`` has the formats, by the weight's buffer. A weight that is a slice of a parameter is
    rounded as a slice. A table that is also a layer's weight has two formats.
    """

    def __init__(self, graph: Graph, layers: Mapping[str, _RoundedLayer]) -> None:
        self.layers = layers
        self.starts = {d.tensor.buffer: d.tensor.offset for d in graph.tensors}

    def __call__(self, op: Op, values: Mapping[str, Torch]) -> None:
        factors = factors_of(op) if op.name in names_with(Trait.LAYER) else ()
        if not factors:
            return
        rows, weight = (op.operands[index] for index in factors)
        if not isinstance(weight, Tensor) or weight.buffer not in self.layers:
            return
        assert isinstance(rows, Tensor)
        layer = self.layers[weight.buffer]
        part = replace(weight, offset=weight.offset - self.starts[weight.buffer], dtype="f32")
        layer_weight = view_of(layer.value.contiguous().untyped_storage(), part)
        factor = _round_weight(
            layer.format, layer_weight if op.name == "aten.linear" else layer_weight.t()
        )
        product = _round_to_format(values[rows.name], layer.rows) @ factor.t()
        for place, value in enumerate(op.operands):
            if isinstance(value, Tensor) and place not in factors:
                product = product + values[value.name]
        values[op.outputs[0].name].copy_(product)


def format_effect(graph: Graph, result: Result, other: Result) -> str:
    """Return a sentence on how much the formats alone change the results of a step."""
    shares = {t.name: _share(result[t.name], other[t.name]) for t in graph.returned or ()}
    if not shares:
        return ""
    name = max(shares, key=lambda key: shares[key])
    return f"%{name} moves by {shares[name]:.2g} of its size by what the formats lose: not judged"


def _share(value: Torch, other: Torch) -> float:
    first, second = (to_dense(v).double() for v in (value, other))
    size = float(torch.linalg.vector_norm(first))
    return float(torch.linalg.vector_norm(first - second)) / size if size else 0.0
