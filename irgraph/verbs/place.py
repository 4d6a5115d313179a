"""``place``: embedding tables reside on another tier of memory, with some of their rows in a cache.

A lookup becomes separate ops, so that the scheduler finds which work overlaps: the cache is probed,
missing rows are read on a stream for input and output, bags are pooled from both, and the cache is
filled with the rows read. Rows are added in their original order, so that bags are equal to the
last bit.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from irgraph.ir.edit import map_tensors
from irgraph.ir.effects import is_view
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.ir.schema import arguments_of
from irgraph.ir.tensor import Tensor
from irgraph.verbs.fuse import put_in_place
from irgraph.verbs.insert import outermost_call
from irgraph.verbs.refusal import RefusedError, op_refusal
from irgraph.verbs.reorder import reorder
from irgraph.verbs.streams import NewStreams, on_streams
from irgraph.verbs.tiered_lookups import (
    BAG_FILL,
    BAG_PROBE,
    FILL,
    POOL,
    PROBE,
    READ,
    Lookup,
    TablePlacement,
    Writer,
    placeable_lookups,
)

STREAM = "io"
"""Prefix of the names of streams for reads, followed by a number."""

HOST = "cpu"
"""Device of tables that the device's own memory does not hold."""


class Placement(Struct, frozen=True):
    """Result of ``place``: the graph, its new ops, and the reason why it was legal."""

    graph: Graph
    ops: tuple[Op, ...]
    legal: str


def placement_obstacle(graph: Graph, name: str) -> str:
    """Return why a table, by its label, cannot be placed; ``""`` if it can."""
    try:
        _check(
            graph,
            [_lookup(graph, *entry) for entry in placeable_lookups(graph) if entry[0] == name],
        )
    except RefusedError as error:
        return error.reason
    return ""


def place(graph: Graph, names: Collection[str], placement: TablePlacement) -> Placement:
    """Place tables, by their labels, on a tier; they are read together, and their bags are pooled.

    Raises:
        RefusedError: a table is used by anything but one plain lookup of bags, a lookup's results
            are needed for its backward, or the lookups depend on each other.
    """
    lookups = [_lookup(graph, *entry) for entry in placeable_lookups(graph) if entry[0] in names]
    _check(graph, lookups)
    declared, ops = Writer(graph, placement).build(lookups)
    graph_with_caches = replace(graph, tensors=(*graph.tensors, *declared))
    fusion = put_in_place(
        graph_with_caches, [[lookup.outer] for lookup in lookups], ops, caller="place"
    )
    reordered = _overlap_reads(
        _without_device(fusion.graph, {lookup.weight.buffer for lookup in lookups}), fusion.ops
    )
    stream = NewStreams(reordered).name(STREAM)
    reads = [(op, stream) for op in _current_ops(reordered, fusion.ops, (READ, FILL, BAG_FILL))]
    result, _ = on_streams(reordered, reads)
    reason = fusion.legal.partition("; placed")[0]
    return Placement(result, ops, f"bags add up the same rows in the same order; {reason}")


def _overlap_reads(graph: Graph, new_ops: Sequence[Op]) -> Graph:
    """Read rows as early as their indices are available, and pool them as late as possible.

    Views that make the indices move with the reads.
    """
    makers = {t.name: op for op in graph.leaves() for t in op.outputs}
    reads = _current_ops(graph, new_ops, (BAG_PROBE, PROBE, READ))
    reads_and_views = [*_views(reads, makers), *reads]
    graph = reorder(graph, reads_and_views, "earliest").graph
    graph = reorder(graph, _current_ops(graph, new_ops, (POOL, FILL, BAG_FILL)), "latest").graph
    (pool,), fills = (_current_ops(graph, new_ops, names) for names in ((POOL,), (FILL, BAG_FILL)))
    later_leaves = list(graph.leaves())[graph.places[pool] + 1 :]
    if not fills or later_leaves[0] is fills[0]:
        return graph
    return reorder(graph, fills, "before", outermost_call(graph, later_leaves[0])).graph


def _views(ops: Sequence[Op], makers: Mapping[str, Op]) -> list[Op]:
    """Return the views that some ops need, and views that these need, in order."""
    views: dict[Op, Op] = {}
    queue = [t.name for op in ops for t in op.inputs]
    while queue:
        op = makers.get(queue.pop())
        if op is not None and op not in views and is_view(op):
            views[op] = op
            queue += [t.name for t in op.inputs]
    return list(views.values())[::-1]


def _current_ops(graph: Graph, new_ops: Sequence[Op], names: Collection[str]) -> list[Op]:
    """Return the new ops of some names as they are in a graph now, identified by their tensors."""
    keys = {_key(op) for op in new_ops if op.name in names}
    return [op for op in graph.leaves() if op.name in names and _key(op) in keys]


def _key(op: Op) -> tuple[str, ...]:
    return (op.name, *(t.name for t in (*op.inputs, *op.outputs)))


def _without_device(graph: Graph, buffers: Collection[str]) -> Graph:
    """Return a graph with the tensors of some buffers moved off the device."""

    def relocate(tensor: Tensor) -> Tensor:
        return replace(tensor, device=HOST) if tensor.buffer in buffers else tensor

    declared = tuple(replace(d, tensor=relocate(d.tensor)) for d in graph.tensors)
    return replace(
        graph, tensors=declared, ops=tuple(map_tensors(op, relocate) for op in graph.ops)
    )


def _lookup(graph: Graph, name: str, weight: Tensor, leaf: Op) -> Lookup:
    arguments = arguments_of(leaf, graph.schemas)
    return Lookup(name, weight, leaf, outermost_call(graph, leaf), arguments)


def _check(graph: Graph, lookups: Sequence[Lookup]) -> None:
    """Refuse tables that other ops use, and lookups that are not plain ones."""
    table_names: set[str] = set()
    for lookup in lookups:
        if lookup.name in table_names:
            raise op_refusal(lookup.leaf, f"looks up table {lookup.name!r} a second time")
        table_names.add(lookup.name)
    for lookup in lookups:
        _check_arguments(graph, lookup)
        own_leaves = set(lookup.outer.leaves())
        for _, leaf in graph.touching.get(lookup.weight.buffer, ()):
            if leaf not in own_leaves and leaf is not graph.end:
                raise op_refusal(leaf, f"uses table {lookup.name!r} too, which only a lookup may")
            if leaf is graph.end:
                raise RefusedError(f"table {lookup.name!r} is returned", [(lookup.leaf, "")])
        _check_uses(graph, lookup, own_leaves)
    modes = {lookup.arguments.get("mode", 0) for lookup in lookups}
    if len(modes) > 1:
        raise op_refusal(lookups[-1].leaf, "pools in another way than the others: place them apart")
    if len({bool(lookup.arguments.get("include_last_offset")) for lookup in lookups}) > 1:
        raise op_refusal(lookups[-1].leaf, "takes other offsets than the others: place them apart")


def _check_arguments(graph: Graph, lookup: Lookup) -> None:
    indices, offsets = lookup.arguments.get("indices"), lookup.arguments.get("offsets")
    if not isinstance(indices, Tensor) or not isinstance(offsets, Tensor) or indices.rank != 1:
        raise op_refusal(lookup.leaf, "does not look up bags by indices and offsets")
    if isinstance(lookup.arguments.get("per_sample_weights"), Tensor):
        raise op_refusal(lookup.leaf, "weights its rows, which pooling from a cache cannot do")
    if isinstance(lookup.arguments.get("compressed_indices_mapping"), Tensor):
        raise op_refusal(lookup.leaf, "looks up a pruned table, whose rows pooling does not find")
    if lookup.arguments.get("padding_idx") not in (None, -1):
        raise op_refusal(lookup.leaf, "leaves out a padding row, which pooling cannot do")
    if lookup.weight.buffer not in graph.lasting or not lookup.weight.contiguous:
        raise op_refusal(
            lookup.leaf,
            f"looks up %{lookup.weight.name}, which is not a table that outlives the step",
        )


def _check_uses(graph: Graph, lookup: Lookup, own_leaves: Collection[Op]) -> None:
    """Refuse a lookup if other ops use its results besides the bags, as its backward does."""
    for tensor in lookup.leaf.outputs[1:]:
        for _, leaf in graph.touching.get(tensor.buffer, ()):
            if leaf not in own_leaves:
                raise op_refusal(
                    leaf,
                    f"uses %{tensor.name} of the lookup of {lookup.name!r}: only "
                    "steps of inference are placed",
                )
