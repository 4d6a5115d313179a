"""Forward calls beside some ops that must be called anew with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from irgraph.ir.graph import Graph, cached_per_graph
from irgraph.ir.op import Op
from irgraph.verbs.autograd.match_backward import outermost
from irgraph.verbs.autograd.tensor_mapping import LayoutError


@cached_per_graph
def _calls(graph: Graph) -> tuple[Sequence[Op], Mapping[int, int]]:
    """Return the outermost calls of the forward pass, and the position of each by its ``id``."""
    calls = [op for op in graph.top_level() if op.phase != "backward"]
    return calls, {id(op): i for i, op in enumerate(calls)}


def companion_calls(graph: Graph, old: Sequence[Op], error: LayoutError) -> list[Op]:
    """Return the calls that use a result, or the one that made what a gradient is of."""
    name, inside = error.tensor.name, {id(inner) for op in old for inner in op.walk()}
    positions = _calls(graph)[1]
    near = {id(op): op for op in _touching(graph, error.tensor.buffer) if id(op) in positions}
    found = [
        op
        for op in sorted(near.values(), key=lambda op: positions[id(op)])
        if any(t.name == name for t in (op.outputs if error.gradient else op.inputs))
        and id(op) not in inside
    ]
    returned = any(t.name == name for t in graph.returned or ())
    if not found or returned or any(id(o) in inside for op in found for o in op.walk()):
        raise error
    return found


def _touching(graph: Graph, buffer: str) -> list[Op]:
    """Return the outermost ops whose leaves touch a buffer."""
    leaves = (leaf for _, leaf in graph.touching.get(buffer, ()) if leaf is not graph.end)
    return [outermost(graph)[id(leaf)] for leaf in leaves]


def between(graph: Graph, members: Sequence[Op]) -> list[Op]:
    """Return the forward calls that use what members make, and make what members use."""
    inside = {id(inner) for op in members for inner in op.walk()}
    calls, positions = _calls(graph)
    outer = (outermost(graph)[id(leaf)] for op in members for leaf in op.leaves())
    places = [positions[id(op)] for op in outer if id(op) in positions]
    made = {t.name for op in members for t in op.outputs}
    after = []
    for op in calls[min(places, default=0) : max(places, default=-1) + 1]:
        if id(op) not in inside and any(t.name in made for t in op.inputs):
            after.append(op)
            made |= {t.name for t in op.outputs}
    used = {t.name for op in members for t in op.inputs}
    found = []
    for op in reversed(after):
        if any(t.name in used for t in op.outputs):
            found.append(op)
            used |= {t.name for t in op.inputs}
    return found[::-1]
