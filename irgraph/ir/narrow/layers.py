"""Tensors of short types inside quantised layers, between rounding and scaling."""

from __future__ import annotations

from irgraph.ir.dtypes import DIGITS
from irgraph.ir.graph import Graph, cached_per_graph
from irgraph.ir.narrow.ops import LAYER_FORMATS
from irgraph.ir.narrow.prepared import WEIGHT, prepared_of
from irgraph.ir.op import Op

PRODUCTS = {layer_format.product for layer_format in LAYER_FORMATS.values()}


@cached_per_graph
def short_layer_tensors(graph: Graph) -> frozenset[str]:
    """Return the names of floats shorter than f32 that only products with prepared weights use.

    Their rounding is part of the layer's format: its rows, padded or not, its sums, its weight.
    """
    weights = {prepared.name for prepared in prepared_of(graph) if prepared.part == WEIGHT}
    makers = {t.name: op for op in graph.leaves() for t in op.outputs}
    buffers: set[str] = set()
    for op in graph.leaves():
        if op.name in PRODUCTS and len(op.inputs) > 1 and op.inputs[1].name in weights:
            buffers |= {t.buffer for t in (*op.inputs, *op.outputs)}
            buffers |= _padded_buffer(makers.get(op.inputs[0].name))
    short = DIGITS["f32"]
    return frozenset(
        name
        for name, tensor in graph.by_name.items()
        if tensor.buffer in buffers and DIGITS.get(tensor.dtype, short) < short
    )


def _padded_buffer(maker: Op | None) -> set[str]:
    """Return the buffer of the rows that an op pads with zeros, empty for any other op."""
    if maker is None or maker.name != "aten.constant_pad_nd":
        return set()
    return {maker.inputs[0].buffer}
