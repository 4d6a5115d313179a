"""Expands a node into other nodes: onnx's definition of its operator, or the selected branch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from onnx import FunctionProto, GraphProto, NodeProto, TypeProto, defs, helper

from irgraph.capture.common.torch_object import Torch
from irgraph.capture.onnx.bind import UnsupportedError
from irgraph.capture.onnx.model import OnnxNode, node_of, number_of


def proto_of(node: OnnxNode) -> NodeProto:
    """Return a node as onnx's message."""
    return helper.make_node(
        node.op, node.inputs, node.outputs, node.name, domain=node.domain, **node.attributes
    )


def type_proto(tensor: Torch) -> TypeProto:
    """Return the type of a tensor as onnx's message."""
    return helper.make_tensor_type_proto(number_of(tensor.dtype), tuple(tensor.shape))


def body_of(node: OnnxNode, opset: int, type_of: Callable[[str], Torch]) -> list[OnnxNode] | None:
    """Return the nodes of onnx's definition of an operator, ``None`` if it has none."""
    try:
        schema = defs.get_schema(node.op, opset, node.domain)
    except defs.SchemaError:
        return None
    version = max((n for n in schema.all_function_opset_versions if n <= opset), default=0)
    if not version:
        return None
    unknown = [name for name in node.attributes if name not in schema.attributes]
    if unknown:
        raise UnsupportedError(f"its attribute {unknown[0]} is not defined by ONNX")
    if version in schema.context_dependent_function_opset_versions:
        types = [
            type_proto(type_of(name)).SerializeToString() if name else b"" for name in node.inputs
        ]
        node_bytes = proto_of(node).SerializeToString()
        raw = schema.get_context_dependent_function_with_opset_version(version, node_bytes, types)
    else:
        raw = schema.get_function_with_opset_version(version)
    if not raw:
        return None
    function = FunctionProto()
    function.ParseFromString(raw)
    return _inline_function(function, schema, node)


def _inline_function(function: FunctionProto, schema: Any, node: OnnxNode) -> list[OnnxNode]:  # noqa: ANN401
    """Return the nodes of a function with the inputs, outputs and attributes of a node."""
    names = dict(zip(function.input, node.inputs, strict=False))
    names |= dict.fromkeys(function.input[len(node.inputs) :], "")
    names |= dict(zip(function.output, node.outputs, strict=False))
    defaults = {a.name: helper.get_attribute_value(a) for a in function.attribute_proto}
    defaults |= {
        a.name: helper.get_attribute_value(a.default_value)
        for a in schema.attributes.values()
        if a.name in function.attribute and a.default_value.name
    }
    return _rename_values(function.node, node, names, {**defaults, **node.attributes})


def branch_of(node: OnnxNode, constants: Mapping[str, Torch]) -> list[OnnxNode] | None:
    """Return the nodes of the selected branch of an ``If``, ``None`` for other nodes."""
    if node.op != "If" or node.domain:
        return None
    if node.inputs[0] not in constants:
        raise UnsupportedError(f"its input cond, {node.inputs[0]!r}, is not a constant")
    condition = bool(constants[node.inputs[0]].item())
    graph = node.attributes["then_branch" if condition else "else_branch"]
    return inline_graph(graph, node, {}, node.outputs, "")


def inline_graph(
    graph: GraphProto,
    node: OnnxNode,
    input_names: Mapping[str, str],
    outputs: Sequence[str],
    mark: str,
) -> list[OnnxNode]:
    """Return the nodes of a graph within a node, with the outer names of its inputs and outputs."""
    nodes = [
        OnnxNode(
            "Constant",
            "",
            tensor.name,
            (),
            (f"{node.name}/{mark}{tensor.name}",),
            {"value": tensor},
        )
        for tensor in graph.initializer
    ]
    names = {t.name: f"{node.name}/{mark}{t.name}" for t in graph.initializer} | dict(input_names)
    nodes += _rename_values(graph.node, node, names, {}, mark)
    ends = zip((o.name for o in graph.output), outputs, strict=True)
    return nodes + [
        OnnxNode("Identity", "", node.name, (names.get(inner, inner),), (outer,), {}, node.module)
        for inner, outer in ends
        if outer
    ]


def _rename_values(
    protos: Sequence[NodeProto],
    node: OnnxNode,
    names: dict[str, str],
    attributes: Mapping[str, Any],
    mark: str = "",
) -> list[OnnxNode]:
    """Return the nodes of a body with new names of values; their results are added to ``names``."""
    nodes = []
    for proto in protos:
        inner = _resolve_node(proto, attributes, names)
        inputs = tuple(names.get(name, name) for name in inner.inputs)
        for name in inner.outputs:
            names.setdefault(name, f"{node.name}/{mark}{name}" if name else "")
        outputs = tuple(names[name] for name in inner.outputs)
        nodes.append(
            OnnxNode(
                inner.op, inner.domain, node.name, inputs, outputs, inner.attributes, node.module
            )
        )
    return nodes


def _resolve_node(
    proto: NodeProto, attributes: Mapping[str, Any], names: Mapping[str, str]
) -> OnnxNode:
    """Return a node of a body, its references to outer attributes and names resolved.

    References of graphs inside the node are resolved as well.
    """
    copy = NodeProto()
    copy.CopyFrom(proto)
    _resolve_references(copy, attributes)
    for graph in _graphs(copy):
        _rename_captures(graph, attributes, names)
    return node_of(copy)


def _graphs(node: NodeProto) -> list[GraphProto]:
    return [a.g for a in node.attribute if a.type == a.GRAPH]


def _resolve_references(node: NodeProto, attributes: Mapping[str, Any]) -> None:
    """Replace attributes that refer to the caller's attributes by those attributes."""
    resolved = [a for a in node.attribute if not a.ref_attr_name]
    for a in node.attribute:
        if a.ref_attr_name in attributes:
            resolved.append(helper.make_attribute(a.name, attributes[a.ref_attr_name]))
    del node.attribute[:]
    node.attribute.extend(resolved)


def _rename_captures(
    graph: GraphProto, attributes: Mapping[str, Any], names: Mapping[str, str]
) -> None:
    """Rename the values that a graph within a body uses from the body."""
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        _resolve_references(node, attributes)
        for inner in _graphs(node):
            _rename_captures(inner, attributes, names)
    for value in graph.output:
        value.name = names.get(value.name, value.name)
