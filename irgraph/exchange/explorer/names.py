"""Names of the nodes of a drawn graph: ids that survive a rewrite, and collapsible layers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from irgraph.ir.graph import Graph
from irgraph.ir.op import Op

SLASH = "\N{DIVISION SLASH}"
"""Replacement for the slash in names, which would separate layers."""


def node_ids(graph: Graph) -> dict[Op, str]:
    """Return an id for each op, by its identity.

    Ids consist of names, so that an op that a rewrite leaves unchanged has the same id before and
    after: the op's name and its first result, or else a tensor that it writes or reads. Equal ids
    are numbered.
    """
    counts: Counter[str] = Counter()
    id_by_op = {}
    for op in graph.walk():
        tensor_name = next((t.name for t in op.outputs), "") or min(op.written, default="")
        tensor_name = tensor_name or next((t.name for t in op.inputs), "")
        text = f"{op.name} %{tensor_name}" if tensor_name else op.name
        counts[text] += 1
        id_by_op[op] = text if counts[text] == 1 else f"{text} #{counts[text]}"
    return id_by_op


def tensor_id(name: str) -> str:
    """Return the id of the node of a tensor that exists before the step."""
    return f"tensor %{name}"


def segment(name: str) -> str:
    """Return a name as one layer of a namespace."""
    return name.replace("/", SLASH) or "(none)"


def namespaces(graph: Graph) -> dict[Op, str]:
    """Return the layer of each op, by its identity.

    Layers are the phase, enclosing labels, the path of the module, and enclosing calls. A call with
    a body is a separate layer, which contains the call's own node.
    """
    layer_by_op: dict[Op, str] = {}
    numbers: Counter[str] = Counter()

    def visit(ops: Sequence[Op], layers: tuple[str, ...], module: str) -> None:
        for op in ops:
            op_layers = (*layers, *_modules(op.module, module))
            if op.body or op.is_scope:
                numbers[op.name] += 1
                op_layers = (*op_layers, segment(f"{op.name} #{numbers[op.name]}"))
            layer_by_op[op] = "/".join(op_layers)
            visit(op.body, op_layers, op.module)

    for op in graph.ops:
        visit((op,), (op.phase,), "")
    return layer_by_op


def _modules(path: str, outer: str) -> tuple[str, ...]:
    """Return a module's path as layers, without the path of the enclosing module."""
    if not path or path == outer:
        return ()
    inner = path.removeprefix(f"{outer}.") if outer else path
    return tuple(segment(part) for part in inner.split("."))
