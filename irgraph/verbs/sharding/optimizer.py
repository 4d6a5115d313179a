"""ZeRO-1 and ZeRO-2: each rank updates its rows of parameters, and stores the state of these only.

The optimizer's state is split as the parameters' rows are. Inside the optimizer's step a parameter
is split: each rank writes its rows in the complete parameter, and gathers the others' at the end.
Gradients are reduced and scattered before the step, or as soon as they exist (ZeRO-2).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import groupby

from msgspec import Struct

from irgraph.ir.effects import written_by
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor
from irgraph.ops.live_out import is_label
from irgraph.ops.places import SAME, Place, split
from irgraph.verbs.refusal import RefusedError, op_refusal
from irgraph.verbs.sharding.collectives import Collectives
from irgraph.verbs.sharding.families import STEP, Family, find_families
from irgraph.verbs.sharding.fixed_places import BlockUpdates
from irgraph.verbs.sharding.local_tensors import LocalTensors, reduction_of


class SplitOptimizer(Struct, frozen=True):
    """The places of an optimizer whose state ranks share.

    Attributes:
        updates: updates of parameters by blocks.
        states: places of the optimizer's state, by name.
    """

    updates: BlockUpdates
    states: Mapping[str, Place]


def split_optimizer(graph: Graph, ranks: int, excluded: frozenset[str]) -> SplitOptimizer:
    """Return the places of an optimizer's tensors if each rank updates its rows.

    Args:
        graph: the whole step.
        ranks: number of ranks.
        excluded: tensors that are not split.

    A parameter whose rows the number of ranks does not divide, and one whose update reads across
    rows, is updated completely by every rank.

    Raises:
        RefusedError: there is not exactly one step of an optimizer, or none of its parameters can
            be split.
    """
    scopes = [op for op in graph.ops if op.name.startswith(STEP)]
    if len(scopes) != 1:
        count = len(scopes)
        raise RefusedError(f"the optimizer is to be split, and the model has {count} steps of one")
    (scope,) = scopes
    families = list(_splittable_families(graph, scope, ranks, excluded))
    if not families:
        raise op_refusal(scope, f"updates no parameter whose rows {ranks} ranks can share")
    updated = {family.parameter.name: split(0) for family in families}
    declared = {d.tensor.name for d in graph.tensors}
    leaves = list(scope.leaves())
    inside = {tensor.name for leaf in leaves for tensor in leaf.outputs}
    written = {tensor.name for leaf in leaves for tensor in written_by(leaf)}
    states: dict[str, Place] = {}
    gradients: dict[str, Place] = {}
    for family in families:
        for name in family.axes.keys() - inside - updated.keys():
            place = split(family.axes[name])
            if name not in declared:
                gradients[name] = place
            elif _is_private(graph, leaves, name):
                states[name] = place
            elif name in written:
                updated[name] = place
    return SplitOptimizer(BlockUpdates(scope, updated, gradients), states)


def _is_private(graph: Graph, leaves: Collection[Op], name: str) -> bool:
    """Return whether only some leaves access the memory of a tensor."""
    users = graph.touching[graph.by_name[name].buffer]
    return {leaf for _, leaf in users}.issubset(leaves)


def _splittable_families(
    graph: Graph, scope: Op, ranks: int, excluded: frozenset[str]
) -> Iterable[Family]:
    """Yield the families of the parameters whose rows can be updated separately."""
    leaves = [leaf for leaf in scope.leaves() if not is_label(leaf)]
    written = {t.name for leaf in leaves for t in written_by(leaf)}
    names_by_buffer: dict[str, set[str]] = {}
    for leaf in leaves:
        for tensor in (*leaf.inputs, *leaf.outputs):
            names_by_buffer.setdefault(tensor.buffer, set()).add(tensor.name)
    parameters = [
        d.tensor
        for d in graph.tensors
        if d.role == "param" and d.tensor.name in written and d.tensor.name not in excluded
        if d.tensor.shape and d.tensor.shape[0] % ranks == 0 and d.tensor.contiguous
    ]
    for family in find_families(leaves, [(tensor, 0) for tensor in parameters]):
        # other views of a parameter would see rows that other ranks update
        is_alone = names_by_buffer[family.parameter.buffer] == {family.parameter.name}
        if is_alone and not family.refused_op:
            yield family


def begin_updates(updates: BlockUpdates, graph: Graph, tensors: LocalTensors) -> None:
    """Scatter gradients, and record the rank's rows of parameters, for an optimizer's step."""
    terms = [
        graph.by_name[name]
        for name in sorted(updates.gradients)
        if tensors.places[name].kind == "partial" and tensors.places[name].factor <= 1
    ]

    def key(tensor: Tensor) -> tuple[str, int]:
        return tensor.dtype, tensors.places[tensor.name].factor

    for (_, factor), group in groupby(sorted(terms, key=key), key):
        gradients = list(group)
        local = [tensors.local[gradient.name] for gradient in gradients]
        blocks = _scattered(tensors.write, local, reduction_of(factor))
        for gradient, block in zip(gradients, blocks, strict=True):
            tensors.record(gradient, block, updates.gradients[gradient.name])
        tensors.counts["scattering"] += 1
    for name, place in updates.parameters.items():
        tensors.settle(graph.by_name[name], place)


def end_updates(
    updates: BlockUpdates, graph: Graph, tensors: LocalTensors, complete: Mapping[str, Tensor]
) -> None:
    """Gather the rows of parameters that other ranks updated.

    Args:
        updates: the updates.
        graph: the whole step.
        tensors: the rank's tensors after the optimizer's step.
        complete: the rank's complete parameters, by name.
    """
    for _, group in groupby(
        sorted(updates.parameters, key=lambda n: complete[n].dtype), lambda n: complete[n].dtype
    ):
        names = list(group)
        _gather(tensors.write, [(complete[n], tensors.local[n]) for n in names])
        for name in names:
            tensors.record(graph.by_name[name], complete[name], SAME)
        tensors.counts["gathering"] += 1


def _scattered(write: Collectives, terms: list[Tensor], reduction: str) -> list[Tensor]:
    """Return the rank's rows of sums over ranks, by one collective.

    As [ranks, elements of a rank], the blocks of all tensors for one rank are adjacent.
    """
    sources = [_by_rank(write, write.contiguous(term)) for term in terms]
    block = write.reduce_scatter(write.cat(sources, 1), write.ranks, 1, reduction)
    blocks, start = [], 0
    for term in terms:
        size = term.numel // write.ranks
        part = write.cut(block, 1, start, size)
        blocks.append(write.view(part, term.shape[0] // write.ranks, *term.shape[1:]))
        start += size
    return blocks


def _gather(write: Collectives, rows: list[tuple[Tensor, Tensor]]) -> None:
    """Copy the rows of all ranks into complete tensors, by one collective."""
    parts = [write.flat(local) for _, local in rows]
    total = sum(int(part.numel) for part in parts)
    gathered = write.all_gather(write.cat(parts, 0), write.ranks)
    matrix, start = write.view(gathered, write.ranks, total), 0
    for complete, _ in rows:
        size = complete.numel // write.ranks
        part, start = write.cut(matrix, 1, start, size), start + size
        target = _by_rank(write, complete)
        write.ops.append(Op("aten.copy_", (target, part), (), {}, frozenset([target.name])))


def _by_rank(write: Collectives, tensor: Tensor) -> Tensor:
    """Return a tensor's elements as [ranks, elements of a rank]."""
    return write.view(tensor, write.ranks, tensor.numel // write.ranks)
