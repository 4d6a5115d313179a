"""Reads an ONNX model: one flat list of nodes, types of inputs, values of constants."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from msgspec import Struct
from onnx import (
    TensorProto,
    external_data_helper,
    helper,
    inliner,
    numpy_helper,
    version_converter,
)

from irgraph.diagnostics import SourceSpan, fail, suggestion
from irgraph.ir.dtypes import FROM_ONNX, FROM_TORCH, TORCH

MIN_OPSET, NATIVE_OPSET = 7, 13
"""Minimum opset to read, and the opset to which onnx converts older models."""

MAX_CONSTANT_ELEMENTS = 4096
"""Maximum number of elements of constants whose values are read, as shapes may depend on them."""


class OnnxNode(Struct, frozen=True):
    """One call of an ONNX operator; names of absent inputs and outputs are empty."""

    op: str
    domain: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    module: str = ""


@dataclass
class Model:
    """An ONNX model whose inputs have known shapes.

    Attributes:
        source: the file.
        opset: version of the default operator set.
        nodes: nodes in topological order.
        inputs: inputs by name, as tensors on torch's meta device.
        weights: constants whose content is too large to read, likewise.
        constants: the other constants by name, on the CPU.
        outputs: names of the outputs.
    """

    source: str
    opset: int
    nodes: list[OnnxNode] = field(default_factory=list)
    inputs: dict[str, Any] = field(default_factory=dict)
    weights: dict[str, Any] = field(default_factory=dict)
    constants: dict[str, Any] = field(default_factory=dict)
    outputs: tuple[str, ...] = ()

    @property
    def native_opset(self) -> int:
        """Return the opset of its nodes, after the conversion of an old model."""
        return max(self.opset, NATIVE_OPSET)


def read_onnx(data: bytes, dims: Mapping[str, int], path: Path) -> Model:
    """Read a model from the content of its file.

    Large weights in external files are not read: their shapes are enough.

    Args:
        data: the content.
        dims: sizes of the model's open dimensions, by name.
        path: the file, for messages and for small constants in external files next to it.

    Raises:
        IrgraphError: onnx is missing; the file is not a model, of an unsupported opset, or
            invalid; an open dimension has no size, or the IR lacks a type.
    """
    source = str(path)
    proto, opset = _convert_opset(_load(data, path), source)
    _bind_dims(proto.graph, dims, source)
    graph = _inline_functions(proto).graph
    _drop_large_contents(graph, path)
    weights, constants = {}, {}
    for tensor in graph.initializer:
        if prod(tensor.dims) <= MAX_CONSTANT_ELEMENTS:
            constants[tensor.name] = _content(tensor, source)
        else:
            place = f"the constant {tensor.name!r}"
            weights[tensor.name] = _on_meta(tensor.data_type, tensor.dims, place, source)
    for sparse in graph.sparse_initializer:
        raise fail(
            f"the sparse constant {sparse.values.name!r} is not supported", SourceSpan(source)
        )
    inputs = [i for i in graph.input if i.name not in {*weights, *constants}]
    nodes = list(map(node_of, graph.node))
    outputs = tuple(value.name for value in graph.output)
    _check_producers(
        nodes, outputs, [*weights, *constants, *(value.name for value in inputs)], source
    )
    return Model(
        source,
        opset,
        nodes,
        {value.name: _input_tensor(value, source) for value in inputs},
        weights,
        constants,
        outputs,
    )


def _check_producers(
    nodes: Iterable[OnnxNode], outputs: Iterable[str], inputs: Iterable[str], source: str
) -> None:
    """Raise ``IrgraphError`` if a value has two producers, a node no result, or an output none."""
    producers = dict.fromkeys(inputs, "the model's inputs and constants")
    for node in nodes:
        if not any(node.outputs):
            raise fail(f"the node {node.name or node.op!r} makes no value", SourceSpan(source))
        for name in filter(None, node.outputs):
            if name in producers:
                message = (
                    f"the value {name!r} is made twice: by {producers[name]}, and by {node.op}"
                )
                raise fail(message, SourceSpan(source), hint="in ONNX each value is made once")
            producers[name] = node.op
    missing = [name for name in outputs if name not in producers]
    if missing:
        raise fail(f"nothing makes the output {missing[0]!r}", SourceSpan(source))


def _input_tensor(value: Any, source: str) -> Any:  # noqa: ANN401
    kind = value.type.WhichOneof("value")
    if kind != "tensor_type":
        message = f"the input {value.name!r} is a {str(kind).removesuffix('_type')}, not a tensor"
        raise fail(message, SourceSpan(source))
    tensor_type = value.type.tensor_type
    if not tensor_type.HasField("shape"):
        hint = "export it with the shapes of its inputs"
        raise fail(
            f"the model gives no shape for its input {value.name!r}", SourceSpan(source), hint=hint
        )
    sizes = [size.dim_value for size in tensor_type.shape.dim]
    return _on_meta(tensor_type.elem_type, sizes, f"the input {value.name!r}", source)


def _on_meta(number: int, sizes: Iterable[int], place: str, source: str) -> Any:  # noqa: ANN401
    dtype = dtype_of(number)
    if not is_ir_dtype(dtype):
        raise fail(
            f"{place} has type {type_word(number)}, which is not supported", SourceSpan(source)
        )
    return torch.empty(tuple(sizes), dtype=dtype, device="meta")


def _content(tensor: Any, source: str) -> Any:  # noqa: ANN401
    try:
        return tensor_of(tensor)
    except TypeError as error:
        raise fail(f"the constant {tensor.name!r}: {error}", SourceSpan(source)) from None


def type_word(number: int) -> str:
    """Return ONNX's name of an element type by its number."""
    is_known = number in TensorProto.DataType.values()
    return str(TensorProto.DataType.Name(number)).lower() if is_known else str(number)


@cache
def _dtypes() -> Mapping[int, Any]:
    """Return torch's element types by ONNX's numbers: the IR's types, and others of constants."""
    words = {number: TORCH[name] for number, name in FROM_ONNX.items()}
    others = {4: "uint16", 12: "uint32", 13: "uint64", 18: "float8_e4m3fnuz", 20: "float8_e5m2fnuz"}
    return {number: getattr(torch, word) for number, word in {**words, **others}.items()}


def is_ir_dtype(dtype: Any) -> bool:  # noqa: ANN401
    """Return whether the IR has one of torch's element types."""
    return str(dtype).removeprefix("torch.") in FROM_TORCH


def dtype_of(number: int) -> Any:  # noqa: ANN401
    """Return torch's element type for ONNX's number, ``None`` if there is none."""
    return _dtypes().get(number)


def number_of(dtype: Any) -> int:  # noqa: ANN401
    """Return ONNX's number of one of torch's element types."""
    return next(number for number, torch_dtype in _dtypes().items() if torch_dtype == dtype)


def tensor_of(proto: Any) -> Any:  # noqa: ANN401
    """Return a constant on the CPU; raise ``TypeError`` if torch has no such type."""
    dtype = dtype_of(proto.data_type)
    if dtype is None:
        raise TypeError(f"torch has no {type_word(proto.data_type)}")
    array = np.array(numpy_helper.to_array(proto))
    if array.dtype.kind == "V" or array.dtype.name.startswith(("bfloat", "float8")):
        bits = torch.from_numpy(array.reshape(-1).view(f"u{array.dtype.itemsize}"))
        return bits.view(dtype).reshape(array.shape)
    return torch.from_numpy(array)


def _load(data: bytes, path: Path) -> Any:  # noqa: ANN401
    try:
        proto = onnx.load_model_from_string(data)
    except Exception as error:
        raise fail(f"not an ONNX model: {error}", SourceSpan(str(path))) from None
    if not _has_valid_text(proto):
        raise fail("not an ONNX model: it holds a name that is no UTF-8", SourceSpan(str(path)))
    if not proto.graph.node and not proto.graph.output:
        raise fail("not an ONNX model: it holds no graph", SourceSpan(str(path)))
    return proto


def _has_valid_text(message: Any) -> bool:  # noqa: ANN401
    """Return whether all texts of a message are valid: protobuf returns invalid ones as bytes."""
    for kind, content in message.ListFields():
        if kind.type not in (kind.TYPE_MESSAGE, kind.TYPE_STRING):
            continue
        is_single = isinstance(content, (str, bytes)) or hasattr(content, "ListFields")
        for value in (content,) if is_single else content:
            if not (
                _has_valid_text(value) if kind.type == kind.TYPE_MESSAGE else isinstance(value, str)
            ):
                return False
    return True


def _convert_opset(proto: Any, source: str) -> tuple[Any, int]:  # noqa: ANN401
    """Return a model of an opset that the converters support, and its original opset."""
    newest = onnx.defs.onnx_opset_version()
    opsets = [o.version for o in proto.opset_import if o.domain in ("", "ai.onnx")]
    version = int(opsets[0]) if opsets else newest
    if version < MIN_OPSET:
        raise fail(
            f"opset {version} is too old: irgraph reads {MIN_OPSET} and newer", SourceSpan(source)
        )
    if version > newest:
        hint = "pip install -U onnx"
        raise fail(
            f"opset {version} is newer than onnx {onnx.__version__}", SourceSpan(source), hint=hint
        )
    if version >= NATIVE_OPSET:
        return proto, version
    try:
        return version_converter.convert_version(proto, NATIVE_OPSET), version
    except Exception as error:
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)
        message = f"onnx cannot convert opset {version} to {NATIVE_OPSET}: {first}"
        raise fail(message, SourceSpan(source)) from None


def _bind_dims(graph: Any, dims: Mapping[str, int], source: str) -> None:  # noqa: ANN401
    """Set the sizes of the inputs' open dimensions in place."""
    constants = {tensor.name for tensor in graph.initializer}
    open_dims: dict[str, None] = {}
    for value in graph.input:
        if value.name in constants:
            continue
        for axis, size in enumerate(value.type.tensor_type.shape.dim):
            if size.HasField("dim_value"):
                continue
            name = size.dim_param or f"{value.name}_{axis}"
            open_dims[name] = None
            if name in dims:
                size.dim_value = dims[name]
    unknown = [name for name in dims if name not in open_dims]
    if unknown:
        names = ", ".join(open_dims) or "none"
        similar = suggestion(unknown[0], open_dims)
        message = f"--dim: the model has no open dimension {unknown[0]!r}{similar}"
        raise fail(message, SourceSpan(source), hint=f"its open dimensions: {names}", exit_code=2)
    missing = [name for name in open_dims if name not in dims]
    if missing:
        hint = "give " + " ".join(f"--dim {name}=SIZE" for name in missing)
        message = f"the model leaves {', '.join(missing)} open"
        raise fail(message, SourceSpan(source), hint=hint, exit_code=2)


def _inline_functions(proto: Any) -> Any:  # noqa: ANN401
    if not proto.functions:
        return proto
    return inliner.inline_local_functions(proto)


def _drop_large_contents(graph: Any, path: Path) -> None:  # noqa: ANN401
    """Drop the contents of large constants; read small ones from external files."""
    for tensor in graph.initializer:
        external = tensor.data_location == tensor.EXTERNAL
        if prod(tensor.dims) > MAX_CONSTANT_ELEMENTS:
            for name in ("raw_data", "float_data", "int32_data", "int64_data", "double_data"):
                tensor.ClearField(name)
        elif external:
            try:
                external_data_helper.load_external_data_for_tensor(tensor, str(path.parent))
            except Exception as error:
                message = f"the content of {tensor.name!r} cannot be read: {error}"
                hint = "put the model's data beside it: other sizes follow from this content"
                raise fail(message, SourceSpan(str(path)), hint=hint) from None
            tensor.data_location = tensor.DEFAULT
            del tensor.external_data[:]


def node_of(node: Any) -> OnnxNode:  # noqa: ANN401
    """Return a node with its attributes as plain values."""
    attributes = {a.name: _as_text(helper.get_attribute_value(a)) for a in node.attribute}
    scopes = {p.key: p.value for p in getattr(node, "metadata_props", ())}
    return OnnxNode(
        node.op_type,
        node.domain if node.domain != "ai.onnx" else "",
        node.name or next(iter(node.output), ""),
        tuple(node.input),
        tuple(node.output),
        attributes,
        _module(node.name, scopes),
    )


def _as_text(value: Any) -> Any:  # noqa: ANN401
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _module(name: str, scopes: Mapping[str, str]) -> str:
    """Return the module path of a node, as recorded by torch's exporters, ``""`` if unknown."""
    scope_text = scopes.get("pkg.torch.onnx.name_scopes", "")
    if scope_text:
        try:
            with warnings.catch_warnings(action="ignore"):  # warnings would quote the content
                paths = ast.literal_eval(scope_text)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            paths = ()
        has_module = (
            isinstance(paths, (list, tuple)) and len(paths) > 1 and isinstance(paths[-2], str)
        )
        return paths[-2].encode("utf-8", "replace").decode() if has_module else ""
    parts = name.split("/")
    return ".".join(parts[1:-1]) if name.startswith("/") else ""
