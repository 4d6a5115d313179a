"""Lowers the forward pass of an ONNX model to the ops that torch would run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from irgraph.capture.common.named_dims import with_named_dim
from irgraph.capture.common.result import Capture
from irgraph.capture.common.source import Source
from irgraph.diagnostics import fail
from irgraph.ir.graph import Declared, Device, Graph
from irgraph.ir.op import Value

if TYPE_CHECKING:
    from irgraph.capture.onnx.program import OnnxProgram

MAX_VALUE_ELEMENTS = 64
"""Maximum number of elements of a float weight whose values are stored in the graph."""


def lower_onnx(
    path: str | Path | Source,
    *,
    dims: Mapping[str, int] | None = None,
    name: str | None = None,
    sheet: str = "v100",
) -> Capture:
    """Lower an ONNX model of opset 7 or newer to a graph of torch's ops.

    Each node becomes the equivalent calls of torch, run on the meta device under the observer of
    live captures. Constants retain their values, except float weights of more than 64 elements.
    Nodes without equivalent become ops ``onnx.NAME``, which no cost model supports; the notes list
    each with the reason.

    Args:
        path: the model; contents of large weights are not needed.
        dims: sizes of the model's open dimensions, by name. The first one remains a dimension of
            the graph, if the model can be lowered at other sizes as well.
        name: the graph's name; by default the file's name.
        sheet: name of the device sheet of the graph's device.

    Raises:
        IrgraphError: onnx or torch is missing (exit code 2), or the model cannot be lowered.
    """
    _require_packages("onnx", "torch")
    from irgraph.capture.onnx.model import read_onnx
    from irgraph.capture.onnx.program import OnnxProgram

    dims = dict(dims or {})
    with Source.open_once(path) as source:
        data = source.read()
    title = name or Path(source.path).name.removesuffix(".onnx")

    def capture_at(sizes: Mapping[str, int]) -> Capture:
        return _capture(OnnxProgram(read_onnx(data, sizes, source.path)), title, sheet)

    capture = capture_at(dims)
    if not dims:
        return capture
    first, size = next(iter(dims.items()))
    graph, dim_notes = with_named_dim(
        capture.graph, first, size, lambda n: capture_at({**dims, first: n}).graph
    )
    return replace(capture, graph=graph, notes=(*capture.notes, *dim_notes))


def _require_packages(*packages: str) -> None:
    for package in packages:
        if find_spec(package) is None:
            hint = "pip install 'irgraph[onnx]'"
            raise fail(f"reading ONNX needs the package {package}", hint=hint, exit_code=2)


def _capture(program: OnnxProgram, name: str, sheet: str) -> Capture:
    """Capture the program of a model as a graph."""
    from irgraph.capture.live import capture
    from irgraph.capture.onnx.weights import Weights

    live_capture = capture(program, name=name, model=Weights(program.declared))
    model = program.model
    graph = replace(
        live_capture.graph,
        settings={"source": Path(model.source).name, "opset": model.opset},
        devices=(Device("gpu0", sheet),),
        tensors=tuple(_with_value(declared, program) for declared in live_capture.graph.tensors),
    )
    notes = [
        f"nothing in torch stands for {reason}; no cost model knows it"
        for reason in program.opaque_reasons
    ]
    return Capture(
        graph, (*live_capture.notes, *notes, *_omitted_values_note(graph)), live_capture.differing
    )


def _omitted_values_note(graph: Graph) -> Iterator[str]:
    """Yield a note on the weights whose values are not stored in the graph."""
    sizes = [d.tensor.numel for d in graph.tensors if d.role == "param" and d.value is None]
    if sizes:
        subject = f"the values of {len(sizes)} weight{'s' * (len(sizes) > 1)} are not kept"
        yield (
            f"{subject}: execution draws others (those of up to {MAX_VALUE_ELEMENTS} elements are)"
        )


def _with_value(declared: Declared, program: OnnxProgram) -> Declared:
    """Return a declared tensor with its role, its name in the model, and a constant's value."""
    role, _ = program.declared[declared.label]
    label = "" if role == "input" and declared.label == declared.tensor.name else declared.label
    return Declared(role, declared.tensor, label, _value(declared.label, program))


def _value(name: str, program: OnnxProgram) -> tuple[Value, ...] | None:
    """Return a constant's elements, ``None`` if execution generates them, as for large weights."""
    value = program.constant_values.get(name)
    if value is None or value.is_complex() or bool(value.isnan().any()):
        return None
    weight = name in program.model.constants and value.is_floating_point()
    if weight and value.numel() > MAX_VALUE_ELEMENTS:
        return None
    flat = value.reshape(-1)
    if str(value.dtype) == "torch.float32":  # the shortest decimals that are the same numbers
        return tuple(float(str(number)) for number in flat.numpy())
    return tuple((flat.double() if value.is_floating_point() else flat).tolist())
