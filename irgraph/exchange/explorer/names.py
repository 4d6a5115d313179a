"""What nodes of a drawn graph are called: ids that survive a rewrite, and layers that fold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from irgraph.ir.graph import Graph
from irgraph.ir.op import Op

SLASH = "\N{DIVISION SLASH}"
"""Stands for a slash in names, which separates layers."""


def node_ids(graph: Graph) -> dict[int, str]:
    """Return an id for each op, by its identity.

    Ids are made of names, so that an op that a rewrite keeps has the same one before and after:
    its name, and its first result, or what it writes or takes; equal ones are numbered.
    """
    seen: Counter[str] = Counter()
    found = {}
    for op in graph.walk():
        made = next((t.name for t in op.outputs), "") or min(op.written, default="")
        made = made or next((t.name for t in op.inputs), "")
        text = f"{op.name} %{made}" if made else op.name
        seen[text] += 1
        found[id(op)] = text if seen[text] == 1 else f"{text} #{seen[text]}"
    return found


def tensor_id(name: str) -> str:
    """Return the id of the node of a tensor that exists before the step."""
    return f"tensor %{name}"


def segment(name: str) -> str:
    """Return a name as one layer of a namespace."""
    return name.replace("/", SLASH) or "(none)"


def namespaces(graph: Graph) -> dict[int, str]:
    """Return for each op the layer that it lies in, by its identity.

    Layers are the phase, labels around it, the path of its module, and the calls that it is part
    of. A call with a body is a layer of its own, and lies in it.
    """
    found: dict[int, str] = {}
    numbers: Counter[str] = Counter()

    def visit(ops: Sequence[Op], layers: tuple[str, ...], module: str) -> None:
        for op in ops:
            mine = (*layers, *_modules(op.module, module))
            if op.body or op.is_scope:
                numbers[op.name] += 1
                mine = (*mine, segment(f"{op.name} #{numbers[op.name]}"))
            found[id(op)] = "/".join(mine)
            visit(op.body, mine, op.module)

    for op in graph.ops:
        visit((op,), (op.phase,), "")
    return found


def _modules(path: str, around: str) -> tuple[str, ...]:
    """Return a module's path as layers, without what is around it already."""
    if not path or path == around:
        return ()
    inner = path.removeprefix(f"{around}.") if around else path
    return tuple(segment(part) for part in inner.split("."))
