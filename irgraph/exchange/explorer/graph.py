"""A model as a graph of Model Explorer: every op a node, every operand an edge.

The fields are those of ``graph_builder.py`` of github.com/google-ai-edge/model-explorer, as plain
values, so that writing a file does not require Model Explorer.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, TypeAlias

from irgraph.exchange.explorer.names import namespaces, node_ids, segment, tensor_id
from irgraph.ir.dependence import dependences
from irgraph.ir.graph import Declared, Graph
from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor

Row: TypeAlias = dict[str, Any]

ROLES = {"input": "inputs", "param": "parameters", "state": "state"}
"""Layers of tensors that exist before the step."""

RETURN = "return"
"""Id of the node of the step's returned tensors."""

WRITTEN = "written"
"""Id of the output of memory that an op writes in place."""

MAX_CHARACTERS = 2000
"""Maximum number of characters of an attribute."""


def explorer_graph(graph: Graph, name: str = "") -> Row:
    """Return a graph of Model Explorer.

    Leaves have an edge from the op that defines each of their operands, and from the op that last
    wrote its bytes, if that is another op. Calls with a body are layers that contain a node for the
    call itself, with its cost. ``name`` is the graph's id (default: its name).
    """
    ids, layers = node_ids(graph), namespaces(graph)
    sources = _sources(graph, ids)
    nodes = [_tensor_node(declared) for declared in graph.tensors]
    for op in graph.walk():
        nodes.append(_op_node(op, ids[op], layers[op], sources))
    if graph.end is not None:
        nodes.append(
            {
                "id": RETURN,
                "label": RETURN,
                "namespace": "",
                "incomingEdges": _edges(graph.end, sources),
            }
        )
    return {"id": name or graph.name, "nodes": nodes, "groupNodeAttributes": {"": _facts(graph)}}


class _Sources:
    """Sources of operands.

    Attributes:
        defined: node and output that define a tensor, by its name.
        written: operands and the nodes that wrote their bytes before, by the identity of a leaf.
    """

    def __init__(self) -> None:
        self.defined: dict[str, tuple[str, str]] = {}
        self.written: dict[Op, list[tuple[str, str]]] = defaultdict(list)


def _sources(graph: Graph, ids: dict[Op, str]) -> _Sources:
    sources = _Sources()
    for declared in graph.tensors:
        sources.defined[declared.tensor.name] = tensor_id(declared.tensor.name), "0"
    leaves = list(graph.leaves())
    for leaf in leaves:
        for index, tensor in enumerate(leaf.outputs):
            sources.defined.setdefault(tensor.name, (ids[leaf], str(index)))
    for op in graph.walk():  # names that no leaf defines: results of calls that change them
        for index, tensor in enumerate(op.outputs):
            sources.defined.setdefault(tensor.name, (ids[op], str(index)))
    ends = [graph.end] if graph.end is not None else []
    names = frozenset(declared.tensor.name for declared in graph.tensors)
    ops = [*leaves, *ends]
    for dependence in dependences(ops, names):
        if dependence.kind == "raw" and dependence.tensor is not None:
            source = ids[ops[dependence.before]]
            sources.written[ops[dependence.after]].append((dependence.tensor.name, source))
    return sources


def _edges(op: Op, sources: _Sources) -> list[Row]:
    """Return the edges into a leaf, without duplicates."""
    edge_by_key: dict[tuple[str, str, str], Row] = {}
    input_ids: dict[str, str] = {}
    for index, tensor in enumerate(op.inputs):
        input_ids.setdefault(tensor.name, str(index))
        source, output = sources.defined[tensor.name]
        edge_by_key[source, output, str(index)] = _edge(source, output, str(index))
    for name, source in sources.written[op]:
        input_id = input_ids.get(name, "0")
        if not any(key[0] == source and key[2] == input_id for key in edge_by_key):
            edge_by_key[source, WRITTEN, input_id] = _edge(source, WRITTEN, input_id)
    return list(edge_by_key.values())


def _edge(source: str, output: str, input_id: str) -> Row:
    return {"sourceNodeId": source, "sourceNodeOutputId": output, "targetNodeInputId": input_id}


def _tensor_node(declared: Declared) -> Row:
    tensor = declared.tensor
    path = [ROLES[declared.role], *(segment(part) for part in declared.label.split(".")[:-1])]
    return {
        "id": tensor_id(tensor.name),
        "label": f"{declared.role} %{tensor.name}",
        "namespace": "/".join(path),
        "attrs": _attributes(
            {"label": declared.label, "role": declared.role, "bytes": tensor.nbytes}
        ),
        "outputsMetadata": [_output("0", tensor)],
    }


def _op_node(op: Op, identity: str, layer: str, sources: _Sources) -> Row:
    facts = {
        "results": ", ".join(f"%{t.name}" for t in op.outputs),
        "writes": ", ".join(f"%{name}" for name in sorted(op.written)),
        **{name: _value_text(value) for name, value in op.attributes.items()},
        "module": op.module,
        "phase": op.phase,
        "thread": op.thread,
        "stream": op.stream,
        "origin": op.origin,
        **{f"note {name}": note for name, note in op.notes.items()},
    }
    node: Row = {
        "id": identity,
        "label": op.name,
        "namespace": layer,
        "attrs": _attributes(facts),
        "incomingEdges": [] if op.body else _edges(op, sources),
        "outputsMetadata": [_output(str(index), tensor) for index, tensor in enumerate(op.outputs)],
        "inputsMetadata": [
            {"id": str(index), "attrs": _attributes({"tensor": f"%{t.name}"})}
            for index, t in enumerate(op.inputs)
        ],
    }
    written = [t for t in op.inputs if t.name in op.written]
    if written:
        node["outputsMetadata"].append(_output(WRITTEN, written[0]))
    if op.body:
        node["config"] = {"pinToGroupTop": True}
    return node


def _output(output_id: str, tensor: Tensor) -> Row:
    facts = {
        "shape": type_text(tensor),
        "tensor_name": tensor.name,
        "buffer": f"${tensor.buffer}",
        "device": f"@{tensor.device}",
    }
    return {"id": output_id, "attrs": _attributes(facts)}


def type_text(tensor: Tensor) -> str:
    """Return a tensor's type as in the model's text, with numeric sizes: ``f32[2048, 64]``."""
    return f"{tensor.dtype}[{', '.join(str(int(size)) for size in tensor.shape)}]"


def _value_text(value: object) -> str:
    if isinstance(value, Tensor):
        return f"%{value.name}"
    if isinstance(value, tuple):
        return f"[{', '.join(map(_value_text, value))}]"
    return str(value)


def _attributes(facts: dict[str, Any]) -> list[Row]:
    """Return the known facts as attributes: texts, truncated to ``MAX_CHARACTERS``."""
    texts = ((name, str(value)) for name, value in facts.items() if value not in ("", None))
    return [
        {
            "key": name,
            "value": text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]} …",
        }
        for name, text in texts
    ]


def _facts(graph: Graph) -> dict[str, str]:
    """Return the facts of the graph that are displayed if no node is selected."""
    dims = ", ".join(f"{name} = {size}" for name, size in graph.dims.items())
    devices = ", ".join(f"@{device.name} {device.sheet}" for device in graph.devices)
    facts = {"model": graph.name, "dims": dims, "devices": devices}
    return {name: text for name, text in facts.items() if text}
