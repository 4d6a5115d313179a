"""Splitting of linear layers over ranks: the model of one rank.

A column-parallel layer has its outputs split over ranks, a row-parallel layer its inputs
(Megatron-LM, arXiv:1909.08053). Every rank has all samples. The placement of each tensor is derived
op by op (``rules``, ``views``): a tensor is the same on all ranks, one of equal blocks, or a part
of a sum. If an op needs another placement, the tensor is summed, gathered or sliced before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from msgspec import Struct
from msgspec.structs import replace

from irgraph.diagnostics import fail, suggestion
from irgraph.ir.graph import Graph
from irgraph.ir.live_out import live_out
from irgraph.ir.op import Value
from irgraph.ir.ranks import RANK, group_of, is_collective, with_ranks
from irgraph.ir.tensor import Tensor
from irgraph.plans.layout import PARTS, TensorLayout, layout_text
from irgraph.plans.plan import COLUMNS, DATA, Plan
from irgraph.verbs.refusal import RefusedError, op_refusal
from irgraph.verbs.sharding.families import STEP, find_families
from irgraph.verbs.sharding.layers.exchange import LocalTensors
from irgraph.verbs.sharding.layers.linear import LinearLayer, linear_layers
from irgraph.verbs.sharding.layers.placement import LayerPlacement, split_along
from irgraph.verbs.sharding.layers.rewrite import RankOps
from irgraph.verbs.sharding.writer import GROUP


class LayerSplit(Struct, frozen=True):
    """The model of one rank.

    Attributes:
        graph: the rank's model.
        new_op_count: number of new ops.
        sums, gathers: number of collectives.
        layers: number of split layers.
        layouts: relations of the rank's tensors to the full step's tensors.
    """

    graph: Graph
    new_op_count: int
    sums: int
    gathers: int
    layers: int
    layouts: tuple[TensorLayout, ...] = ()


def split_layers(graph: Graph, plan: Plan, rank: int, group: str = GROUP) -> LayerSplit:
    """Return the model of one rank of a plan: all samples, and its parts of linear layers.

    Args:
        graph: the full step.
        plan: a plan with schemes of layers.
        rank: index of the rank, from 0.
        group: the process group of the ranks; the step may have collectives of another group.

    Raises:
        IrgraphError: the plan names a layer that the model lacks (exit code 2).
        RefusedError: a layer cannot be split in this way, or an op cannot run on parts.
    """
    _check(graph, plan, rank, group)
    layers = _match_layers(plan, linear_layers(graph))
    placements = _placements(graph, plan, layers) if plan.ranks > 1 else {}
    ops = RankOps(graph, rank, plan.ranks, placements, group)
    graph_of_rank = ops.build_graph()
    layouts = _layouts(graph, ops.tensors)
    settings: dict[str, Value] = {RANK: rank, PARTS: layout_text(layouts)}
    graph_of_rank = with_ranks(
        replace(graph_of_rank, settings={**graph.settings, **settings}), plan.ranks
    )
    count = ops.tensors.count
    return LayerSplit(
        graph_of_rank, ops.new_op_count, count["sum"], count["gather"], len(layers), tuple(layouts)
    )


def _check(graph: Graph, plan: Plan, rank: int, group: str) -> None:
    if not 0 <= rank < plan.ranks:
        raise RefusedError(f"there is no rank {rank} among {plan.ranks}")
    sharded_tables = [name for name, table_plan in plan.tables.items() if table_plan.scheme != DATA]
    if sharded_tables:
        message = (
            f"table {sharded_tables[0]!r} is spread, which shares samples: split layers have all"
        )
        raise RefusedError(f"{message} samples on every rank, so that tables are data-parallel")
    if plan.optimizer:
        raise RefusedError(
            "the optimizer cannot be split, too, where layers are: leave one of both out"
        )
    for op in graph.leaves():
        if is_collective(op) and (group == GROUP or group_of(op) == group):
            raise op_refusal(op, "is there already: the step runs on several ranks")


def _match_layers(
    plan: Plan, layers: Mapping[str, LinearLayer]
) -> dict[str, tuple[LinearLayer, str]]:
    """Return the layers of a plan with their schemes; ``*`` in a name matches any text."""
    matched: dict[str, tuple[LinearLayer, str]] = {}
    for pattern, scheme in plan.layers.items():
        names = [name for name in layers if name == pattern or fnmatchcase(name, pattern)]
        if not names:
            message = (
                f"plan: the model has no linear layer {pattern!r}{suggestion(pattern, layers)}"
            )
            layer_names = ", ".join(list(layers)[:8]) or "none"
            raise fail(message, hint=f"linear layers: {layer_names}", exit_code=2)
        for name in names:
            if matched.setdefault(name, (layers[name], scheme))[1] != scheme:
                message = f"plan: layer {name!r} is {matched[name][1]}, and {scheme} by {pattern!r}"
                raise fail(message, exit_code=2)
    return matched


def _placements(
    graph: Graph, plan: Plan, layers: Mapping[str, tuple[LinearLayer, str]]
) -> dict[str, LayerPlacement]:
    """Return the placements of the weights, biases and optimizer's state of layers, by name."""
    axes: dict[str, int] = {}
    tensors: list[Tensor] = []
    for name, (layer, scheme) in layers.items():
        axis = 0 if scheme == COLUMNS else 1
        size, kind = layer.weight.shape[axis], "inputs" if axis else "outputs"
        if size % plan.ranks:
            raise RefusedError(
                f"layer {name!r} has {size} {kind}, which {plan.ranks} ranks cannot share equally"
            )
        axes[layer.weight.name] = axis
        tensors.append(layer.weight)
        if layer.bias is not None and axis == 0:
            axes[layer.bias.name] = 0
            tensors.append(layer.bias)
    name_by_buffer = {t.buffer: t.name for t in tensors}
    for declared in graph.tensors:
        tensor = declared.tensor
        if name_by_buffer.get(tensor.buffer, tensor.name) != tensor.name:
            raise RefusedError(f"%{tensor.name} shares its memory with a layer that is split")
    return {
        name: split_along(axis) for name, axis in (axes | _state_axes(graph, tensors, axes)).items()
    }


def _state_axes(graph: Graph, tensors: Sequence[Tensor], axes: Mapping[str, int]) -> dict[str, int]:
    """Return the axes along which the optimizer's state of parameters is split, by name."""
    declared = {d.tensor.name for d in graph.tensors}
    axis_by_state: dict[str, int] = {}
    for scope in (op for op in graph.ops if op.name.startswith(STEP)):
        for family in find_families(scope, tensors):
            name = family.parameter.name
            if family.refused_op:
                message = (
                    f"{family.refused_op} updates %{name} as a whole: its parts cannot be apart"
                )
                raise RefusedError(message)
            axis_by_state.update(dict.fromkeys(family.names & declared, axes[name]))
    return axis_by_state


def _layouts(graph: Graph, local_tensors: LocalTensors) -> list[TensorLayout]:
    """Return the layouts of all split tensors that exist before the step or leave it."""
    placements = ((name, local_tensors.placements[name]) for name in live_out(graph))
    return [
        TensorLayout(name, "split", (placement.axis, placement.axis + 1))
        for name, placement in placements
        if placement.kind == "split"
    ]
