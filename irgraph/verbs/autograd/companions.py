"""Companions: forward calls next to replaced ops that must be called again with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from irgraph.ir.graph import Graph, cached_per_graph
from irgraph.ir.op import Op
from irgraph.verbs.autograd.match_backward import outermost
from irgraph.verbs.autograd.tensor_mapping import AdjacentCallError


@cached_per_graph
def _calls(graph: Graph) -> tuple[Sequence[Op], Mapping[Op, int]]:
    """Return the outermost calls of the forward pass, and the position of each."""
    calls = [op for op in graph.top_level() if op.phase != "backward"]
    return calls, {op: i for i, op in enumerate(calls)}


def companion_calls(graph: Graph, old: Sequence[Op], error: AdjacentCallError) -> list[Op]:
    """Return the calls that use a tensor with another layout, or the call that returned it."""
    name, inside = error.tensor.name, {inner for op in old for inner in op.walk()}
    positions = _calls(graph)[1]
    touching = {op for op in _ops_touching(graph, error.tensor.buffer) if op in positions}
    companions = [
        op
        for op in sorted(touching, key=lambda op: positions[op])
        if any(t.name == name for t in (op.outputs if error.gradient else op.inputs))
        and op not in inside
    ]
    returned = any(t.name == name for t in graph.returned or ())
    if not companions or returned or any(o in inside for op in companions for o in op.walk()):
        raise error
    return companions


@cached_per_graph
def _users_by_name(graph: Graph) -> Mapping[str, Sequence[Op]]:
    users: dict[str, dict[Op, None]] = {}
    for op in _calls(graph)[0]:
        for leaf in op.leaves():
            for tensor in leaf.inputs:
                users.setdefault(tensor.name, {})[op] = None
    return {name: tuple(ops) for name, ops in users.items()}


def forward_users(graph: Graph, name: str) -> Sequence[Op]:
    """Return the outermost calls of the forward pass that read a tensor."""
    return _users_by_name(graph).get(name, ())


def _ops_touching(graph: Graph, buffer: str) -> list[Op]:
    """Return the outermost ops whose leaves access a buffer."""
    leaves = (leaf for _, leaf in graph.touching.get(buffer, ()) if leaf is not graph.end)
    return [outermost(graph)[leaf] for leaf in leaves]


def intermediate_calls(graph: Graph, members: Sequence[Op]) -> list[Op]:
    """Return the forward calls that depend on members, and on which members depend."""
    inside = {inner for op in members for inner in op.walk()}
    calls, positions = _calls(graph)
    outer = (outermost(graph)[leaf] for op in members for leaf in op.leaves())
    spanned = [positions[op] for op in outer if op in positions]
    results = {t.name for op in members for t in op.outputs}
    downstream = []
    for op in calls[min(spanned, default=0) : max(spanned, default=-1) + 1]:
        if op not in inside and any(t.name in results for t in op.inputs):
            downstream.append(op)
            results |= {t.name for t in op.outputs}
    operands = {t.name for op in members for t in op.inputs}
    intermediate = []
    for op in reversed(downstream):
        if any(t.name in operands for t in op.outputs):
            intermediate.append(op)
            operands |= {t.name for t in op.inputs}
    return intermediate[::-1]
