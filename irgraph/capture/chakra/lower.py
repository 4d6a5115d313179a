"""Lowers Chakra traces to graphs: exactly if irgraph wrote them, else by their tensors."""

from __future__ import annotations

from msgspec.structs import replace

from irgraph.capture.chakra.model_nodes import contradictions
from irgraph.capture.chakra.schema import MODEL, NODE_TYPES, Message, attributes
from irgraph.capture.chakra.stream import decode
from irgraph.capture.chakra.torch_nodes import TENSOR, execution_trace
from irgraph.capture.common.result import Capture, require_valid
from irgraph.capture.common.source import Source
from irgraph.diagnostics import SourceSpan, fail

MAX_LISTED_KINDS = 3
"""Maximum number of node kinds to list in an error."""


def lower_chakra(source: Source, *, name: str | None = None, step: int | None = None) -> Capture:
    """Lower a Chakra trace to a graph.

    A trace that irgraph wrote contains its model, which is returned unchanged. A trace that
    Chakra's converter made from a PyTorch execution trace contains the recorded host operators,
    and is lowered like the execution trace. The durations of its device nodes are omitted, with a
    note.

    Args:
        source: the file.
        name: the graph's name; by default the model's name, or the file's.
        step: number of the ``ProfilerStep`` to lower; by default the last complete one.

    Raises:
        IrgraphError: the file is damaged, or has no operators with tensors (exit code 4).
    """
    metadata, nodes = decode(source.read(), source.name)
    facts = attributes(metadata)
    if MODEL in facts:
        return _original_model(str(facts[MODEL]), nodes, source, name, step)
    if not any(TENSOR in node.inputs.types or TENSOR in node.outputs.types for node in nodes):
        raise _no_tensors_error(nodes, source)
    from irgraph.capture.execution_trace import decode_execution_trace, lower_execution_trace

    trace = decode_execution_trace(execution_trace(facts, nodes, source.name), source.name)
    capture = lower_execution_trace(trace, name=name or _stem(source), step=step)
    timed_nodes = [
        n for n in nodes if attributes(n).get("is_cpu_op") is False and n.duration_micros
    ]
    if not timed_nodes:
        return capture
    note = f"the durations of {len(timed_nodes)} nodes of the device are left out: no card is named"
    return replace(capture, notes=(*capture.notes, note))


def _original_model(
    text: str, nodes: list[Message], source: Source, name: str | None, step: int | None
) -> Capture:
    """Return the model that a trace was written from, with contradictory nodes as its health."""
    from irgraph.text import parse

    if step is not None:
        raise fail(f"no step {step}: the trace holds one step of a model", SourceSpan(source.name))
    graph = parse(text, source.name)
    health = [f"{source.name}: {text}" for text in contradictions(graph, nodes)]
    checked = require_valid(replace(graph, name=name) if name else graph, source.name)
    return Capture(checked, health=tuple(health))


def _stem(source: Source) -> str:
    return source.path.name.removesuffix(".gz").removesuffix(".et") if source.path.name else "trace"


def _no_tensors_error(nodes: list[Message], source: Source) -> Exception:
    kinds: dict[str, int] = {}
    for node in nodes:
        kind = NODE_TYPES[node.type] if node.type < len(NODE_TYPES) else f"type {node.type}"
        kinds[kind] = kinds.get(kind, 0) + 1
    top_kinds = sorted(kinds.items(), key=lambda item: -item[1])[:MAX_LISTED_KINDS]
    listed = ", ".join(f"{count} x {kind}" for kind, count in top_kinds) or "none"
    return fail(
        f"the Chakra trace carries no tensors, so no model can be made of it (nodes: {listed})",
        SourceSpan(source.name),
        hint="traces that chakra_converter makes from PyTorch's execution traces carry them; "
        "those of generators have durations alone",
    )
