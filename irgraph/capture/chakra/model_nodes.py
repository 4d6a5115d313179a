"""Compares the op nodes of a Chakra trace with the model in its metadata."""

from __future__ import annotations

from collections.abc import Sequence

from irgraph.capture.chakra.schema import METADATA_NODE, Message
from irgraph.capture.chakra.torch_values import Values, torch_name
from irgraph.ir.graph import Graph

GROUPS_NODE = "## process_group:init ##"
"""Name of the node that lists process groups in PyTorch's traces."""


def contradictions(graph: Graph, nodes: Sequence[Message]) -> tuple[str, ...]:
    """Return a sentence if op nodes differ from the model: in name, operands or results."""
    op_nodes = [n for n in nodes if n.type == METADATA_NODE and n.name != GROUPS_NODE]
    ops, values = list(graph.walk()), Values(graph)
    expected = [
        (torch_name(op), *map(str, (*values.inputs(op)[1:], *values.outputs(op)))) for op in ops
    ]
    actual = [
        (n.name, n.inputs.shapes, n.inputs.types, *map(str, _fields(n.outputs))) for n in op_nodes
    ]
    differing = sum(a != b for a, b in zip(expected, actual, strict=False))
    differing += abs(len(expected) - len(actual))
    if not differing:
        return ()
    counts = f"{differing} of {len(actual)} op nodes"
    return (f"{counts} contradict the model in the trace's metadata, which is used",)


def _fields(side: Message) -> tuple[str, str, str]:
    return side.values, side.shapes, side.types
