"""``shard``: rewrites a step to the model of one of several ranks, with its collectives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from irgraph.facts import FactTable, fact
from irgraph.ir.graph import Graph
from irgraph.ir.op import Value
from irgraph.ir.ranks import GROUPS, RANK, group_of, groups_text, is_collective, with_ranks
from irgraph.ir.resize import fixed_numbers
from irgraph.ir.tensor import Tensor
from irgraph.ops.live_out import live_out
from irgraph.ops.places import Place, split
from irgraph.plans.layout import BATCH, LAYERS, PARTS, TensorLayout, layout_text
from irgraph.plans.plan import DATA, LOCAL, SPLIT, Mesh, Plan, TableShard, check_plan
from irgraph.verbs.refusal import RefusedError, op_refusal
from irgraph.verbs.sharding.choices.costs import GATHERED, NEVER, RETAINED
from irgraph.verbs.sharding.embeddings.lookups import Lookups, bag_starts
from irgraph.verbs.sharding.embeddings.table_exchange import TableExchange
from irgraph.verbs.sharding.embeddings.tables import table_sizes, tables_of
from irgraph.verbs.sharding.fixed_places import BlockUpdates, FixedPlaces
from irgraph.verbs.sharding.layers import gradient_places, layer_axes, with_states
from irgraph.verbs.sharding.losses import with_sums
from irgraph.verbs.sharding.mesh_axes import mesh_axes
from irgraph.verbs.sharding.optimizer import SplitOptimizer, split_optimizer
from irgraph.verbs.sharding.pins import pinned_places
from irgraph.verbs.sharding.propagation import propagate
from irgraph.verbs.sharding.rank_ops import RankOps
from irgraph.verbs.sharding.shares import Shares
from irgraph.verbs.sharding.writer import GROUP


class ShardResult(Struct, frozen=True):
    """The model of one rank.

    Attributes:
        graph: the rank's model.
        new_op_count: number of new ops.
        sum_count: number of tensors that are summed over ranks.
        legal: the reason why each rank's results are its part of the full step's, as a sentence.
        layouts: relations of the rank's tensors to the full step's tensors.
        moves: number of tensors that are summed, gathered, scattered and exchanged over ranks.
    """

    graph: Graph
    new_op_count: int
    sum_count: int
    legal: str
    layouts: tuple[TensorLayout, ...] = ()
    moves: Mapping[str, int] = {}


def shard(graph: Graph, plan: Plan, rank: int, dim: str = "") -> ShardResult:
    """Return the model of one rank of a plan: its share of the batch, and its parts of the tables.

    All ranks have equal numbers of samples; ids are exchanged, and bags are returned. Gradients of
    replicated parameters are summed before an op reads their full values.

    Args:
        graph: the full step, whose batch all ranks share.
        plan: a plan with a scheme for every table.
        rank: index of the rank, from 0.
        dim: the dimension of the batch (default: the only one).

    Raises:
        IrgraphError: the plan does not fit the model (exit code 2).
        RefusedError: an op can run neither on parts nor on tensors assembled from parts.
    """
    check_plan(plan, table_sizes(graph))
    if not 0 <= rank < plan.ranks:
        raise RefusedError(f"there is no rank {rank} among {plan.ranks}")
    if plan.mesh is not None:
        return _by_mesh(graph, plan, plan.mesh, rank, dim)
    if plan.layers or plan.pins:
        return split_layers(graph, plan, rank)
    return _by_samples(graph, plan, rank, dim)


def _by_samples(graph: Graph, plan: Plan, rank: int, dim: str, group: str = GROUP) -> ShardResult:
    """Return the model of one rank with its own samples."""
    dim = _dimension(graph, plan, dim, group)
    if plan.ranks == 1:
        return ShardResult(
            with_ranks(_with_settings(graph, rank, (), dim), 1),
            0,
            0,
            "one rank runs the whole step",
        )
    graph = with_sums(graph)
    tables = tables_of(graph)
    exchanged = frozenset(t.name for t in tables if plan.tables[t.name].scheme != DATA)
    lookups = Lookups(tables, exchanged, bag_starts(graph, tables))
    split_dims = frozenset({dim})
    batch = _batch_places(graph, Shares(graph.dims, split_dims, plan.ranks))
    axes = _parameter_axes(graph, plan, lookups)
    parameters = with_states(graph, axes)
    origins = dict.fromkeys(parameters, RETAINED if plan.parameters == RETAINED else GATHERED)
    pins = gradient_places(graph, axes)
    optimizer = _split_optimizer(graph, plan, lookups)
    updates = None
    if optimizer is not None:
        parameters |= optimizer.states
        updates = optimizer.updates
        if plan.gradients == SPLIT:
            pins |= updates.gradients
    layout = FixedPlaces(
        plan.ranks,
        split_dims,
        batch | parameters,
        pins,
        origins,
        updates=updates,
        has_local_norms=plan.norms == LOCAL,
    )
    ops, local = propagate(graph, layout, rank, group, lookups)
    layouts = rank_layouts(graph, ops)
    new_op_count = ops.new_op_count
    if exchanged:
        sharded = [table for table in tables_of(local) if table.name in exchanged]
        factors = {name: place.factor for name, place in ops.lookups.gradients.items()}
        exchange = TableExchange(local, plan, rank, sharded, factors, group)
        local = exchange.build_graph()
        new_op_count += exchange.new_op_count
        layouts = [layout for layout in layouts if layout.name not in exchange.parts]
        layouts += _table_layouts(graph, exchange.parts)
    local = with_ranks(_with_settings(local, rank, layouts, dim), plan.ranks)
    legal = _samples_text(ops, dim, updates)
    if plan.norms == LOCAL:
        legal += "; batch norms use statistics of each rank's samples: other results than the step"
    return ShardResult(local, new_op_count, ops.sum_count, legal, tuple(layouts))


def _samples_text(ops: RankOps, dim: str, updates: BlockUpdates | None) -> str:
    counts = ops.tensors.counts
    verb = "they are" if ops.sum_count != 1 else "it is"
    text = (
        f"every tensor is the same on all ranks, or its part along {dim}; "
        f"{ops.sum_count} summed over ranks before {verb} read whole"
    )
    others = [(n, noun) for noun, n in counts.items() if n and noun in MOVES]
    text += "".join(f", {n} {noun}{'s' * (n != 1)}" for n, noun in others)
    if updates is not None:
        count = len(updates.parameters)
        text += f"; rows of {count} parameters are updated apart, then gathered"
    return text


MOVES = ("gathering", "scattering", "exchange")
"""Conversions, other than sums, that move data between ranks."""


def _batch_places(graph: Graph, shares: Shares) -> dict[str, Place]:
    """Return the places of the tensors that exist before the step and have samples."""
    places = {}
    for declared in graph.tensors:
        tensor = declared.tensor
        axes = [axis for axis, size in enumerate(tensor.shape) if shares.depends(size)]
        if not axes:
            continue
        if len(axes) > 1 or shares.share(tensor.shape[axes[0]]) is None:
            shape = ", ".join(map(str, tensor.shape))
            names = ", ".join(shares.split_dims)
            raise RefusedError(
                f"%{tensor.name} [{shape}] cannot be split along one axis over {names}"
            )
        places[tensor.name] = split(axes[0])
    return places


def _parameter_axes(graph: Graph, plan: Plan, lookups: Lookups) -> dict[str, tuple[Tensor, int]]:
    """Return the parameters whose rows ranks share, each with its first axis, by name."""
    if not plan.parameters:
        return {}
    if plan.optimizer:
        raise RefusedError(
            "the optimizer's state is split with the parameters: leave out `optimizer`"
        )
    excluded = {name for table in lookups.tables for name in table.tensor_names}
    axes = {
        d.tensor.name: (d.tensor, 0)
        for d in graph.tensors
        if d.role == "param" and d.tensor.name not in excluded
        if d.tensor.shape and d.tensor.shape[0] % plan.ranks == 0 and d.tensor.contiguous
    }
    if not axes:
        raise RefusedError(f"there is no parameter whose rows {plan.ranks} ranks can share")
    return axes


def _split_optimizer(graph: Graph, plan: Plan, lookups: Lookups) -> SplitOptimizer | None:
    """Return the places of an optimizer whose state ranks share, ``None`` if they do not."""
    if plan.gradients and not plan.optimizer:
        raise RefusedError("gradients are split with the optimizer's state: add `optimizer`")
    if not plan.optimizer:
        return None
    exchanged = (table for table in lookups.tables if table.name in lookups.exchanged)
    excluded = frozenset(name for table in exchanged for name in table.tensor_names)
    return split_optimizer(graph, plan.ranks, excluded)


def rank_layouts(graph: Graph, ops: RankOps) -> list[TensorLayout]:
    """Return the layouts of tensors that exist before the step or leave it, and differ by rank."""
    layouts = []
    for name in live_out(graph):
        place = ops.tensors.places.get(name)
        if place is None or place.kind in ("same", "own"):
            continue
        if place.kind == "split":
            layouts.append(TensorLayout(name, "split", (place.axis, place.axis + 1)))
        else:
            layouts.append(TensorLayout(name, "mean" if place.factor else "sum"))
    return layouts


def _table_layouts(graph: Graph, parts: Mapping[str, TableShard | None]) -> list[TensorLayout]:
    """Return the layouts of the parts of tables that exist before the step or leave it."""
    present = ((name, parts.get(name)) for name in live_out(graph))
    return [
        TensorLayout(name, "piece", part.rows, part.columns)
        for name, part in present
        if part is not None
    ]


def _by_mesh(graph: Graph, plan: Plan, mesh: Mesh, rank: int, dim: str) -> ShardResult:
    """Return the model of one rank of a mesh, split by one axis after the other."""
    _check_whole_tables(plan)
    _check_collectives(graph, GROUP)
    results: list[ShardResult] = []
    layouts: list[TensorLayout] = []
    axes = mesh_axes(plan, mesh, rank)
    for axis in axes:
        if axis.group == LAYERS:
            result = split_layers(graph, axis.plan, axis.index, axis.group)
        else:
            result = _by_samples(graph, axis.plan, axis.index, dim, axis.group)
        graph = result.graph
        results.append(result)
        layouts += (replace(layout, over=axis.group) for layout in result.layouts)
    settings: dict[str, Value] = {
        RANK: rank,
        GROUPS: groups_text({axis.group: axis.members for axis in axes}),
        PARTS: layout_text(layouts),
    }
    sharded = replace(graph, settings={**graph.settings, **settings})
    pairs = zip(axes, results, strict=True)
    return ShardResult(
        with_ranks(sharded, plan.ranks),
        sum(result.new_op_count for result in results),
        sum(result.sum_count for result in results),
        "; ".join(f"over {axis.plan.ranks} ranks {result.legal}" for axis, result in pairs),
        tuple(layouts),
    )


LAYER_SPLITS = "irgraph.verbs.sharding.shard"
"""Slot of a graph's facts with its latest split layers: shardings of one mesh share them."""

MAX_LAYER_SPLITS = 32
"""Maximum number of split steps that a graph stores."""

LayerSplits: TypeAlias = FactTable[tuple[str, int, str], ShardResult]


def split_layers(graph: Graph, plan: Plan, rank: int, group: str = GROUP) -> ShardResult:
    """Return the model of one rank with parts of linear layers, and all samples.

    Args:
        graph: the whole step.
        plan: a plan with layers or pins alone.
        rank: index of the rank, from 0.
        group: the process group of the ranks.

    Raises:
        IrgraphError: the plan names a layer that the model lacks (exit code 2).
        RefusedError: an op can run neither on parts nor on tensors assembled from parts.
    """
    splits: LayerSplits = fact(graph, LAYER_SPLITS, lambda _: FactTable(MAX_LAYER_SPLITS))
    key = str(plan), rank, group
    result = splits.get(key)
    if result is None:
        result = splits[key] = _by_layers(graph, plan, rank, group)
    return result


def _by_layers(graph: Graph, plan: Plan, rank: int, group: str) -> ShardResult:
    _check_layers(graph, plan, group)
    graph = with_sums(graph) if plan.pins else graph
    axes = layer_axes(graph, plan) if plan.ranks > 1 else {}
    places = with_states(graph, axes)
    origins = dict.fromkeys(places, NEVER)
    pins = gradient_places(graph, axes)
    pins |= pinned_places(graph, plan) if plan.ranks > 1 else {}
    declared = {d.tensor.name for d in graph.tensors}
    places |= {name: place for name, place in pins.items() if name in declared}
    layout = FixedPlaces(plan.ranks, frozenset(), places, pins, origins, sums_results=True)
    ops, local = propagate(graph, layout, rank, group)
    layouts = rank_layouts(graph, ops)
    local = with_ranks(_with_settings(local, rank, layouts), plan.ranks)
    counts = ops.tensors.counts
    nouns = ("sum", "gathering", *(noun for noun in MOVES[1:] if counts[noun]))
    moves = " and ".join(f"{counts[noun]} {noun}{'s' * (counts[noun] != 1)}" for noun in nouns)
    legal = (
        "every tensor is the same on all ranks, an equal block of the whole step's, or a part of a"
        f" sum: {moves} over ranks before what needs tensors whole"
    )
    return ShardResult(local, ops.new_op_count, counts["sum"], legal, tuple(layouts), dict(counts))


def _check_layers(graph: Graph, plan: Plan, group: str) -> None:
    _check_whole_tables(plan)
    if plan.optimizer or plan.gradients:
        raise RefusedError(
            "the optimizer cannot be split by the same ranks as layers: add a `mesh`"
        )
    if plan.parameters:
        raise RefusedError("parameters cannot be split by the same ranks as layers: add a `mesh`")
    _check_collectives(graph, group)


def _check_whole_tables(plan: Plan) -> None:
    """Refuse tables that ranks share if other ranks have the same samples."""
    sharded_tables = [name for name, table_plan in plan.tables.items() if table_plan.scheme != DATA]
    if sharded_tables:
        message = (
            f"table {sharded_tables[0]!r} is spread, which shares samples: split layers have all"
        )
        raise RefusedError(f"{message} samples on every rank, so that tables are data-parallel")


def _check_collectives(graph: Graph, group: str) -> None:
    """Refuse a step that runs on several ranks already; one of a mesh has other groups."""
    for op in graph.leaves():
        if is_collective(op) and (group == GROUP or group_of(op) == group):
            raise op_refusal(op, "is there already: the step runs on several ranks")


def _dimension(graph: Graph, plan: Plan, dim: str, group: str) -> str:
    """Return the dimension of the batch; refuse one whose size the ranks cannot share."""
    if not dim and len(graph.dims) != 1:
        dim_names = ", ".join(graph.dims) or "none"
        raise RefusedError(f"which dimension is the batch is not known: the model has {dim_names}")
    dim = dim or next(iter(graph.dims))
    if dim not in graph.dims:
        raise RefusedError(f"the model has no dimension {dim!r}")
    if graph.dims[dim] % plan.ranks:
        raise RefusedError(f"{dim} = {graph.dims[dim]} is no multiple of {plan.ranks} ranks")
    if fixed_numbers(graph, dim):
        raise RefusedError(f"{fixed_numbers(graph, dim)[0]}: it does not follow {dim}")
    _check_collectives(graph, group)
    return dim


def _with_settings(
    graph: Graph, rank: int, layouts: Sequence[TensorLayout], dim: str = ""
) -> Graph:
    """Return a rank's model with its settings."""
    settings: dict[str, Value] = {RANK: rank, PARTS: layout_text(layouts)}
    if dim:
        settings = {RANK: rank, BATCH: dim, PARTS: layout_text(layouts)}
    return replace(graph, settings={**graph.settings, **settings})
