"""Replacement of autograd nodes; their other ops, such as sums of gradients, are preserved."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise

from msgspec.structs import replace

from irgraph.ir.dependence import dependences
from irgraph.ir.edit import Edit, map_tensors, map_value
from irgraph.ir.graph import Declared, Graph
from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor
from irgraph.verbs.autograd.match_backward import outermost
from irgraph.verbs.autograd.region import results_of
from irgraph.verbs.fuse import collect, put_in_place
from irgraph.verbs.launch_order import declared
from irgraph.verbs.refusal import RefusedError, describe
from irgraph.verbs.sequence import Extent, extent

Swap = tuple[Tensor, Tensor]
"""A tensor, and the tensor that replaces it."""


def exchange_nodes(
    edit: Edit, leaves: Sequence[Op], new: Sequence[Op], caller: str
) -> tuple[Op, ...]:
    """Replace leaves of the backward with new ops in an edit; return the new ops as inserted.

    Nothing changes outside the ``surrounding_extent`` of the leaves. ``new`` may be empty.
    """
    if not new:
        for op in leaves:
            edit.remove(op)
        return ()
    # Autograd adds gradients inside the node that computes the second one, so that a node may
    # contain calls that must be preserved. It is split in two, one part is replaced within its
    # neighbours only (a whole graph each time would be quadratic in the matches), and the rest is
    # merged with the node before it.
    leaf_set = set(leaves)
    nodes = _enclosing_ops(edit.graph, leaves)
    other_set = {leaf for op in nodes for leaf in _other_leaves(op, leaf_set)}
    if not other_set:
        return collect(edit, [nodes], new, caller=caller).ops
    window = surrounding_extent(edit.graph, leaves)
    units = window.units[window.first : window.last + 1]
    separated = _split_nodes(_subgraph(edit.graph, units), nodes, leaf_set)
    replacement = put_in_place(separated, [_enclosing_ops(separated, leaves)], new, caller=caller)
    for op in _merge_nodes(replacement.graph, other_set).ops:
        edit.insert(op, before=units[0])
    for op in units:
        edit.remove(op)
    return replacement.ops


def surrounding_extent(graph: Graph, leaves: Sequence[Op]) -> Extent:
    """Return the extent of the nodes of some leaves, and of the op before the first node."""
    nodes = extent(graph, _enclosing_ops(graph, leaves))
    return replace(nodes, first=max(nodes.first - 1, 0))


def _subgraph(graph: Graph, units: Sequence[Op]) -> Graph:
    """Return neighbouring ops of a graph as a separate graph."""
    inner = [op for unit in units for op in unit.walk()]
    results = {tensor.name for op in inner for tensor in op.outputs}
    operands = {t.name: t for op in inner for t in op.inputs if t.name not in results}
    declarations = tuple(Declared("input", tensor) for tensor in operands.values())
    return replace(graph, ops=tuple(units), tensors=(*graph.tensors, *declarations), returned=None)


def _enclosing_ops(graph: Graph, leaves: Sequence[Op]) -> list[Op]:
    """Return the outermost ops that contain some leaves."""
    ops = {outermost(graph)[leaf] for leaf in leaves}
    return sorted(ops, key=lambda op: graph.paths[op])


def _other_leaves(op: Op, leaf_set: Collection[Op]) -> list[Op]:
    """Return the leaves of an op except some."""
    return [leaf for leaf in op.leaves() if leaf not in leaf_set]


def _split_nodes(graph: Graph, nodes: Sequence[Op], leaf_set: Collection[Op]) -> Graph:
    """Return a graph in which each node with other leaves is split into two nodes."""
    edit = Edit(graph)
    for op in nodes:
        if not _other_leaves(op, leaf_set):
            continue
        inside = [child for child in op.body if any(leaf in leaf_set for leaf in child.leaves())]
        outside = [child for child in op.body if child not in inside]
        mixed = [child for child in inside if _other_leaves(child, leaf_set)]
        if mixed or not op.is_autograd:
            raise RefusedError(f"{(mixed or [op])[0].name} does more than its backward", [(op, "")])
        _check_separable(graph, op, inside)
        for part in (inside, outside):
            edit.insert(replace(op, body=tuple(part)), before=op)
        edit.remove(op)
    return edit.commit()


def _check_separable(graph: Graph, op: Op, inside: Collection[Op]) -> None:
    """Refuse to move calls of a node before its other calls if they depend on those."""
    for dependence in dependences(op.body, declared(graph)):
        before, after = op.body[dependence.before], op.body[dependence.after]
        if after in inside and before not in inside:
            notes = describe([dependence], op.body)
            raise RefusedError(f"{op.name} does more than its backward", [(op, ""), *notes])


def _merge_nodes(graph: Graph, other_set: Collection[Op]) -> Graph:
    """Return a graph in which the rest of a split node is merged with the node before it."""
    edit = Edit(graph)
    for before, op in pairwise(graph.top_level()):
        used = {t.name for child in op.body for t in child.inputs}
        is_remainder = bool(op.body) and all(leaf in other_set for leaf in op.leaves())
        if is_remainder and before.is_autograd and used & results_of([before]).keys():
            edit.insert(replace(before, body=(*before.body, *op.body)), before=before)
            edit.remove(before)
            edit.remove(op)
    return edit.commit()


def with_swaps(graph: Graph, swaps: Sequence[Swap]) -> Graph:
    """Return a graph in which swapped tensors, and their views, are replaced in all users.

    Ops that use none of them stay the same objects.
    """
    names: dict[str, Tensor] = {}
    for old, new in swaps:
        names[old.name] = new
        shift = new.offset - old.offset
        for tensor in _views(graph, old) if old.buffer != new.buffer else ():
            names[tensor.name] = replace(tensor, buffer=new.buffer, offset=tensor.offset + shift)
    if not names:
        return graph
    ops = tuple(_with_tensors(op, names) for op in graph.ops)
    returned = map_value(graph.returned, lambda t: names.get(t.name, t))
    return replace(graph, ops=ops, returned=returned)


def _views(graph: Graph, source: Tensor) -> list[Tensor]:
    """Return the tensors that calls make of a tensor in its own memory, and of those."""
    views: dict[str, Tensor] = {}
    for _, leaf in graph.touching.get(source.buffer, ()):
        if any(t.name == source.name or t.name in views for t in leaf.inputs):
            views.update((t.name, t) for t in leaf.outputs if t.buffer == source.buffer)
    return list(views.values())


def _with_tensors(op: Op, names: Mapping[str, Tensor]) -> Op:
    body = tuple(_with_tensors(child, names) for child in op.body)
    same = all(a is b for a, b in zip(body, op.body, strict=True))
    if not any(t.name in names for t in (*op.inputs, *op.outputs)):
        return op if same else replace(op, body=body)
    changed = map_tensors(replace(op, body=()), lambda t: names.get(t.name, t))
    return replace(changed, body=body)
