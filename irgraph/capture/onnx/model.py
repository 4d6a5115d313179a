"""Reads an ONNX model: one flat list of nodes, every shape known, constants folded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from irgraph.diagnostics import Place, fail, near
from irgraph.ir.dtypes import FROM_ONNX

OLDEST = 13
SMALL = 4096
"""Elements up to which constants are kept as values, so that shapes can follow from them."""

ROUNDS = 12
"""Rounds of folding and inference: each lets shapes follow from what the one before folded."""


@dataclass(frozen=True, slots=True)
class Node:
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
    """An ONNX model with every shape known.

    Attributes:
        source: the file.
        name: the graph's name.
        opset: version of the default operator set.
        nodes: in topological order, without those whose results are constants.
        types: element type and shape by the name of a value.
        inputs: names of what the caller gives.
        weights: names of constants that are tensors of the model.
        outputs: names of what the caller gets.
        values: contents of small constants (numpy arrays), by name.
        dims: open dimensions and the sizes that they were given.
    """

    source: str
    name: str
    opset: int
    nodes: list[Node] = field(default_factory=list)
    types: dict[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    inputs: tuple[str, ...] = ()
    weights: frozenset[str] = frozenset()
    outputs: tuple[str, ...] = ()
    values: dict[str, Any] = field(default_factory=dict)
    dims: dict[str, int] = field(default_factory=dict)


def read_onnx(data: bytes, dims: Mapping[str, int], path: Path) -> Model:
    """Read a model from the content of its file.

    Weights that lie in other files are not read: their shapes are enough.

    Args:
        data: the content.
        dims: sizes of the dimensions that the model leaves open, by name.
        path: the file, for messages; small constants may lie in others beside it.

    Raises:
        IrgraphError: onnx is missing; the file is no model, older than opset 13, or wrong; an
            open dimension got no size, or a shape cannot be found.
    """
    proto = _load(data, path)
    opset = _opset(proto, str(path))
    _bind(proto.graph, dims, str(path))
    proto = _inlined(proto)
    _strip(proto, path)
    values = _initial(proto.graph)
    proto = _settle(proto, values, str(path))
    graph = proto.graph
    weights = frozenset(tensor.name for tensor in graph.initializer)
    nodes = [_node(node) for node in graph.node if _needed(node, values)]
    return Model(
        str(path),
        graph.name,
        opset,
        nodes,
        _types(graph),
        tuple(i.name for i in graph.input if i.name not in weights),
        weights,
        tuple(o.name for o in graph.output),
        values,
        dict(dims),
    )


def import_onnx() -> Any:  # noqa: ANN401
    """Return the module onnx; raise ``IrgraphError`` where it is not installed."""
    try:
        import onnx
    except ImportError:
        hint = "pip install 'irgraph[onnx]'"
        raise fail("reading ONNX needs the package onnx", hint=hint, exit_code=2) from None
    return onnx


def _load(data: bytes, path: Path) -> Any:  # noqa: ANN401
    onnx = import_onnx()
    try:
        proto = onnx.load_model_from_string(data)
    except Exception as error:
        raise fail(f"not an ONNX model: {error}", Place(str(path))) from None
    if not proto.graph.node and not proto.graph.output:
        raise fail("not an ONNX model: it holds no graph", Place(str(path)))
    return proto


def _opset(proto: Any, source: str) -> int:  # noqa: ANN401
    version = next((o.version for o in proto.opset_import if o.domain in ("", "ai.onnx")), OLDEST)
    if version < OLDEST:
        hint = f"convert it: onnx.version_converter.convert_version(model, {OLDEST})"
        message = f"opset {version} is too old: irgraph reads {OLDEST} and newer"
        raise fail(message, Place(source), hint=hint)
    return int(version)


def _bind(graph: Any, dims: Mapping[str, int], source: str) -> None:  # noqa: ANN401
    """Give open dimensions of the inputs their sizes; forget shapes that others may contradict."""
    constants = {tensor.name for tensor in graph.initializer}
    opened: dict[str, None] = {}
    for value in graph.input:
        if value.name in constants:
            continue
        for axis, size in enumerate(value.type.tensor_type.shape.dim):
            if size.HasField("dim_value"):
                continue
            name = size.dim_param or f"{value.name}_{axis}"
            opened[name] = None
            if name in dims:
                size.dim_value = dims[name]
    unknown = [name for name in dims if name not in opened]
    if unknown:
        known = ", ".join(opened) or "none"
        message = f"--dim: the model has no open dimension {unknown[0]!r}{near(unknown[0], opened)}"
        raise fail(message, Place(source), hint=f"its open dimensions: {known}", exit_code=2)
    missing = [name for name in opened if name not in dims]
    if missing:
        hint = "give " + " ".join(f"--dim {name}=SIZE" for name in missing)
        message = f"the model leaves {', '.join(missing)} open"
        raise fail(message, Place(source), hint=hint, exit_code=2)
    if opened:
        del graph.value_info[:]
        for value in graph.output:
            value.type.tensor_type.ClearField("shape")


def _inlined(proto: Any) -> Any:  # noqa: ANN401
    if not proto.functions:
        return proto
    from onnx import inliner  # type: ignore[import-untyped,unused-ignore]

    return inliner.inline_local_functions(proto)


def _strip(proto: Any, path: Path) -> None:  # noqa: ANN401
    """Drop the contents of large constants; read small ones that lie in other files."""
    from onnx import external_data_helper

    for tensor in proto.graph.initializer:
        size = 1
        for dim in tensor.dims:
            size *= dim
        external = tensor.data_location == tensor.EXTERNAL
        if size > SMALL:
            for name in ("raw_data", "float_data", "int32_data", "int64_data", "double_data"):
                tensor.ClearField(name)
        elif external:
            try:
                external_data_helper.load_external_data_for_tensor(tensor, str(path.parent))
            except Exception as error:
                message = f"the content of {tensor.name!r} cannot be read: {error}"
                hint = "put the model's data beside it: other sizes follow from this content"
                raise fail(message, Place(str(path)), hint=hint) from None
            tensor.data_location = tensor.DEFAULT
            del tensor.external_data[:]


def _initial(graph: Any) -> dict[str, Any]:  # noqa: ANN401
    from onnx import numpy_helper

    found = {}
    for tensor in graph.initializer:
        size = 1
        for dim in tensor.dims:
            size *= dim
        if size <= SMALL:
            found[tensor.name] = numpy_helper.to_array(tensor)
    return found


def _settle(proto: Any, values: dict[str, Any], source: str) -> Any:  # noqa: ANN401
    """Infer shapes and fold constants by turns, until neither finds more."""
    from onnx import shape_inference

    for _ in range(ROUNDS):
        try:
            proto = shape_inference.infer_shapes(proto, strict_mode=False, data_prop=True)
        except Exception as error:
            first = str(error).strip().splitlines()[0]
            raise fail(f"shapes cannot be inferred: {first}", Place(source)) from None
        if not _fold(proto.graph, values):
            break
    return proto


def _fold(graph: Any, values: dict[str, Any]) -> bool:  # noqa: ANN401
    """Evaluate nodes whose inputs are small constants, and shapes that are known."""
    from onnx import numpy_helper

    types = _types(graph)
    left, folded = [], False
    for node in graph.node:
        made = None if node.output[0] in values else _evaluated(node, values, types)
        if made is None:
            left.append(node)
            continue
        folded = True
        for name, value in zip(node.output, made, strict=False):
            values[name] = value
            graph.initializer.append(numpy_helper.from_array(value, name))
    del graph.node[:]
    graph.node.extend(left)
    return folded


def _evaluated(node: Any, values: Mapping[str, Any], types: Mapping[str, Any]) -> Any:  # noqa: ANN401
    import numpy as np

    if node.domain not in ("", "ai.onnx"):
        return None
    if node.op_type in ("Shape", "Size") and _known(types.get(node.input[0])):
        shape = types[node.input[0]][1]
        if node.op_type == "Size":
            return [np.array(int(np.prod(shape)), dtype=np.int64)]
        said = {a.name: a.i for a in node.attribute}
        return [np.array(shape[said.get("start", 0) : said.get("end")], dtype=np.int64)]
    if node.op_type in ("If", "Loop", "Scan") or node.op_type.startswith("Random"):
        return None
    if any(name and name not in values for name in node.input):
        return None
    size = types.get(node.output[0])
    if node.op_type in ("ConstantOfShape", "Expand", "Tile", "Range", "EyeLike") and (
        size is None or not _known(size) or int(np.prod(size[1])) > SMALL
    ):
        return None
    return _run(node, values)


def _known(found: tuple[str, tuple[int, ...]] | None) -> bool:
    return found is not None and -1 not in found[1]


def _run(node: Any, values: Mapping[str, Any]) -> Any:  # noqa: ANN401
    """Evaluate one node by onnx's reference implementation; ``None`` where it cannot."""
    import numpy as np
    from onnx import TensorProto, defs, helper
    from onnx.reference import ReferenceEvaluator

    names = [name for name in node.input if name]
    inputs = [helper.make_tensor_value_info(n, TensorProto.UNDEFINED, None) for n in names]
    outputs = [helper.make_tensor_value_info(n, TensorProto.UNDEFINED, None) for n in node.output]
    graph = helper.make_graph([node], "one", inputs, outputs)
    opsets = [helper.make_opsetid("", min(defs.onnx_opset_version(), 21))]
    try:
        model = helper.make_model(graph, opset_imports=opsets)
        made = ReferenceEvaluator(model).run(None, {name: values[name] for name in names})
    except Exception:  # the evaluator raises what its kernels raise; the op then stays an op
        return None
    arrays = [np.asarray(value) for value in made]
    return arrays if all(array.size <= SMALL for array in arrays) else None


def _types(graph: Any) -> dict[str, tuple[str, tuple[int, ...]]]:  # noqa: ANN401
    """Return element type and shape by name; -1 stands for a size that is not known."""
    found: dict[str, tuple[str, tuple[int, ...]]] = {}
    for value in (*graph.input, *graph.value_info, *graph.output):
        tensor = value.type.tensor_type
        if tensor.HasField("shape"):
            sizes = [d.dim_value if d.HasField("dim_value") else -1 for d in tensor.shape.dim]
            found[value.name] = FROM_ONNX.get(tensor.elem_type, "?"), tuple(sizes)
    for tensor in graph.initializer:
        found[tensor.name] = FROM_ONNX.get(tensor.data_type, "?"), tuple(tensor.dims)
    return found


def _needed(node: Any, values: Mapping[str, Any]) -> bool:  # noqa: ANN401
    return any(name and name not in values for name in node.output)


def _node(node: Any) -> Node:  # noqa: ANN401
    from onnx import helper

    attributes = {a.name: _plain(helper.get_attribute_value(a)) for a in node.attribute}
    scopes = {p.key: p.value for p in getattr(node, "metadata_props", ())}
    return Node(
        node.op_type,
        node.domain if node.domain != "ai.onnx" else "",
        node.name or node.output[0],
        tuple(node.input),
        tuple(node.output),
        attributes,
        _module(node.name, scopes),
    )


def _plain(value: Any) -> Any:  # noqa: ANN401
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _module(name: str, scopes: Mapping[str, str]) -> str:
    """Return the path of the module that a node came from, as torch's exporters note it."""
    import ast

    noted = scopes.get("pkg.torch.onnx.name_scopes", "")
    if noted:
        try:
            paths: Sequence[str] = ast.literal_eval(noted)
        except (ValueError, SyntaxError):
            paths = ()
        return paths[-2] if len(paths) > 1 else ""
    parts = name.split("/")
    return ".".join(parts[1:-1]) if name.startswith("/") else ""
