"""Lower an ONNX model: its forward pass as torch would run it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from irgraph.capture.common.result import Capture
from irgraph.capture.common.sized import with_named_dim
from irgraph.capture.common.source import Source
from irgraph.capture.onnx.build import Builder, Site
from irgraph.capture.onnx.layers import LAYERS
from irgraph.capture.onnx.model import Model, read_onnx
from irgraph.capture.onnx.operators import ARITHMETIC, Emit
from irgraph.capture.onnx.products import PRODUCTS, with_linear_layers
from irgraph.ir.graph import Device, Graph
from irgraph.ir.op import Op

OPERATORS: Mapping[str, Emit] = {**ARITHMETIC, **PRODUCTS, **LAYERS}
"""What adds the ops of each ONNX operator that has a counterpart in torch."""


def lower_onnx(
    path: str | Path | Source,
    *,
    dims: Mapping[str, int] | None = None,
    name: str | None = None,
    sheet: str = "v100",
) -> Capture:
    """Lower an ONNX model of opset 13 or newer to a graph of torch's ops.

    Shapes are inferred by onnx, constants folded; views stay views. Operators without counterpart
    become ops ``onnx.NAME``, which no cost model knows, and are listed in the notes.

    Args:
        path: the model; contents of large weights are not needed.
        dims: sizes of the dimensions that the model leaves open, by name. The first one stays a
            dimension of the graph, if the model can be lowered at other sizes too.
        name: the graph's name; by default the file's.
        sheet: name of the device sheet that the graph's device stands for.

    Raises:
        IrgraphError: onnx is missing (exit code 2), or the model cannot be lowered.
    """
    dims = dict(dims or {})
    with Source.opened(path) as source:
        data = source.read()
    graph, notes = _lower(read_onnx(data, dims, source.path), name, sheet)
    if not dims:
        return Capture(graph, notes)
    first, size = next(iter(dims.items()))

    def at(other: int) -> Graph:
        return _lower(read_onnx(data, {**dims, first: other}, source.path), name, sheet)[0]

    graph, more = with_named_dim(graph, first, size, at)
    return Capture(graph, (*notes, *more))


def _lower(model: Model, name: str | None, sheet: str) -> tuple[Graph, tuple[str, ...]]:
    build = Builder(model)
    for value in model.inputs:
        build.tensor(value)
    unmapped: Counter[str] = Counter()
    for node in with_linear_layers(model):
        site = Site(build, node)
        emit = OPERATORS.get(node.op) if not node.domain else None
        if emit is None or emit(site) is False:
            unmapped[f"{node.domain}.{node.op}" if node.domain else node.op] += 1
            _opaque(site)
    notes = [
        f"{count} x {op} of ONNX has no counterpart in torch: no cost model knows it"
        for op, count in sorted(unmapped.items())
    ]
    file = Path(model.source).name
    graph = Graph(
        name or file.removesuffix(".onnx"),
        settings={"source": file, "opset": model.opset},
        devices=(Device("gpu0", sheet),),
        tensors=tuple(build.declared),
        ops=tuple(build.ops),
        returned=tuple(build.tensors[name] for name in model.outputs if name in build.tensors),
    )
    return graph, tuple(notes)


def _opaque(site: Site) -> None:
    """Add an op for a node that has no counterpart."""
    node = site.node
    operands = tuple(site.input(i) for i in range(len(node.inputs)) if site.given(i))
    results = tuple(site.out(i) for i, output in enumerate(node.outputs) if output)
    origin = f"onnx#{node.name}"
    op = Op(f"onnx.{node.op}", operands, results, module=node.module, origin=origin)
    site.build.ops.append(op)
