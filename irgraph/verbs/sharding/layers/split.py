"""Linear layers whose weights ranks share: what one rank runs of the step.

A column-parallel layer has its outputs split over ranks, a row-parallel one its inputs
(Megatron-LM, arXiv:1909.08053). Every rank has all samples. What follows from that for each tensor
is worked out op by op (``rules``, ``views``): a tensor is the same on all ranks, one of equal
blocks, or its part of a sum; where an op needs another form, it is summed, gathered or cut before.
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
from irgraph.verbs.sharding.families import STEP, follow
from irgraph.verbs.sharding.layers.exchange import LocalTensors
from irgraph.verbs.sharding.layers.linear import Layer, linear_layers
from irgraph.verbs.sharding.layers.placement import LayerPlacement, split
from irgraph.verbs.sharding.layers.rewrite import RankOps
from irgraph.verbs.sharding.writer import GROUP


class Split(Struct, frozen=True):
    """What one rank runs.

    Attributes:
        graph: the rank's model.
        made: new ops.
        sums, gathers: collectives.
        layers: how many are split.
        layouts: what the rank's tensors are of the whole step's.
    """

    graph: Graph
    made: int
    sums: int
    gathers: int
    layers: int
    layouts: tuple[TensorLayout, ...] = ()


def split_layers(graph: Graph, plan: Plan, rank: int, group: str = GROUP) -> Split:
    """Return what one rank of a plan runs: all samples, and its parts of linear layers.

    Args:
        graph: the whole step.
        plan: names layers.
        rank: from 0.
        group: the process group of the ranks; the step may have collectives of another.

    Raises:
        IrgraphError: the plan names a layer that is not there (exit code 2).
        RefusedError: a layer cannot be split so, or an op cannot run on parts.
    """
    _check(graph, plan, rank, group)
    layers = _named(plan, linear_layers(graph))
    places = _places(graph, plan, layers) if plan.ranks > 1 else {}
    ops = RankOps(graph, rank, plan.ranks, places, group)
    made = ops.graph_of()
    layouts = _layouts(graph, ops.held)
    given: dict[str, Value] = {RANK: rank, PARTS: layout_text(layouts)}
    made = with_ranks(replace(made, settings={**graph.settings, **given}), plan.ranks)
    count = ops.held.count
    return Split(made, ops.made, count["sum"], count["gather"], len(layers), tuple(layouts))


def _check(graph: Graph, plan: Plan, rank: int, group: str) -> None:
    if not 0 <= rank < plan.ranks:
        raise RefusedError(f"there is no rank {rank} among {plan.ranks}")
    spread = [name for name, placed in plan.tables.items() if placed.scheme != DATA]
    if spread:
        message = f"table {spread[0]!r} is spread, which shares samples: split layers have all"
        raise RefusedError(f"{message} samples on every rank, so that tables are data-parallel")
    if plan.optimizer:
        raise RefusedError(
            "the optimizer cannot be split, too, where layers are: leave one of both out"
        )
    for op in graph.leaves():
        if is_collective(op) and (group == GROUP or group_of(op) == group):
            raise op_refusal(op, "is there already: the step runs on several ranks")


def _named(plan: Plan, layers: Mapping[str, Layer]) -> dict[str, tuple[Layer, str]]:
    """Return the layers of a plan with their splits; ``*`` in a name stands for any text."""
    found: dict[str, tuple[Layer, str]] = {}
    for pattern, scheme in plan.layers.items():
        names = [name for name in layers if name == pattern or fnmatchcase(name, pattern)]
        if not names:
            message = (
                f"plan: the model has no linear layer {pattern!r}{suggestion(pattern, layers)}"
            )
            shown = ", ".join(list(layers)[:8]) or "none"
            raise fail(message, hint=f"linear layers: {shown}", exit_code=2)
        for name in names:
            if found.setdefault(name, (layers[name], scheme))[1] != scheme:
                message = f"plan: layer {name!r} is {found[name][1]}, and {scheme} by {pattern!r}"
                raise fail(message, exit_code=2)
    return found


def _places(
    graph: Graph, plan: Plan, layers: Mapping[str, tuple[Layer, str]]
) -> dict[str, LayerPlacement]:
    """Return how the weights of layers, their biases and their optimizer's state are split."""
    axes: dict[str, int] = {}
    tensors: list[Tensor] = []
    for name, (layer, scheme) in layers.items():
        axis = 0 if scheme == COLUMNS else 1
        size, what = layer.weight.shape[axis], "inputs" if axis else "outputs"
        if size % plan.ranks:
            raise RefusedError(
                f"layer {name!r} has {size} {what}, which {plan.ranks} ranks cannot share equally"
            )
        axes[layer.weight.name] = axis
        tensors.append(layer.weight)
        if layer.bias is not None and axis == 0:
            axes[layer.bias.name] = 0
            tensors.append(layer.bias)
    shared = {t.buffer: t.name for t in tensors}
    for declared in graph.tensors:
        other = declared.tensor
        if shared.get(other.buffer, other.name) != other.name:
            raise RefusedError(f"%{other.name} shares its memory with a layer that is split")
    return {name: split(axis) for name, axis in (axes | _states(graph, tensors, axes)).items()}


def _states(graph: Graph, tensors: Sequence[Tensor], axes: Mapping[str, int]) -> dict[str, int]:
    """Return the axes along which what optimizers keep of parameters is split."""
    declared = {d.tensor.name for d in graph.tensors}
    found: dict[str, int] = {}
    for scope in (op for op in graph.ops if op.name.startswith(STEP)):
        for family in follow(scope, tensors):
            name = family.parameter.name
            if family.refused:
                message = f"{family.refused} updates %{name} as a whole: its parts cannot be apart"
                raise RefusedError(message)
            found.update(dict.fromkeys(family.names & declared, axes[name]))
    return found


def _layouts(graph: Graph, held: LocalTensors) -> list[TensorLayout]:
    """Return what every tensor that leaves the step, or starts it, is of the whole's."""
    places = ((name, held.places[name]) for name in live_out(graph))
    return [
        TensorLayout(name, "split", (place.axis, place.axis + 1))
        for name, place in places
        if place.kind == "split"
    ]
