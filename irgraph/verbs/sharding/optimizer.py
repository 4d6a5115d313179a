"""ZeRO-1: each rank updates its rows of every parameter, and stores the state of these rows only.

The ops of an optimizer's step on a parameter, its gradient and its state are collected: if all of
them treat rows separately, the rank runs them on its block of rows. Gradients that no other op
reads after their sum are reduced and scattered, others are sliced; parameters are gathered at the
end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from msgspec.structs import replace

from irgraph.ir.edit import Edit, map_tensors, without_times
from irgraph.ir.effects import written_by
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor, row_major
from irgraph.ops.live_out import is_label, live_out
from irgraph.plans.layout import TensorLayout
from irgraph.verbs.refusal import RefusedError, op_refusal
from irgraph.verbs.sharding.families import STEP, Family, find_families
from irgraph.verbs.sharding.writer import Writer

REDUCED = "_c10d_functional.all_reduce"


def split_optimizer(
    graph: Graph, rank: int, ranks: int, excluded: frozenset[str]
) -> tuple[Graph, list[TensorLayout], int]:
    """Return a rank's model that updates its rows of parameters, and the new layouts.

    Args:
        graph: a rank's model, with gradients summed over ranks before the optimizer.
        rank: index of the rank.
        ranks: number of ranks.
        excluded: tensors that other ranks do not have, which are not split.

    The third result is the number of split parameters; a parameter whose rows the number of ranks
    does not divide, and one whose update reads across rows, is updated completely by every rank.

    Raises:
        RefusedError: there is not exactly one step of an optimizer, or none of its parameters can
            be split.
    """
    scopes = [op for op in graph.ops if op.name.startswith(STEP)]
    if len(scopes) != 1:
        count = len(scopes)
        raise RefusedError(f"the optimizer is to be split, and the model has {count} steps of one")
    families = _splittable_families(graph, scopes[0], ranks, excluded)
    if not families:
        raise op_refusal(scopes[0], f"updates no parameter whose rows {ranks} ranks can share")
    splitter = _OptimizerSplitter(graph, scopes[0], rank, ranks, families)
    return splitter.graph(), splitter.layouts, len(families)


def _splittable_families(
    graph: Graph, scope: Op, ranks: int, excluded: frozenset[str]
) -> list[Family]:
    """Return the families of the parameters whose rows can be updated separately."""
    leaves = [leaf for leaf in scope.leaves() if not is_label(leaf)]
    written = {t.name for leaf in leaves for t in written_by(leaf)}
    parameters = [
        d.tensor
        for d in graph.tensors
        if d.role == "param" and d.tensor.name in written and d.tensor.name not in excluded
        if d.tensor.shape and d.tensor.shape[0] % ranks == 0 and d.tensor.contiguous
    ]
    axes = [(tensor, 0) for tensor in parameters]
    return [family for family in find_families(leaves, axes) if not family.refused_op]


class _OptimizerSplitter:
    """Rewriting of an optimizer's step for one rank's rows."""

    def __init__(
        self, graph: Graph, scope: Op, rank: int, ranks: int, families: Sequence[Family]
    ) -> None:
        self.original, self.scope, self.rank, self.ranks = graph, scope, rank, ranks
        self.inside = set(scope.leaves())
        self.edit = Edit(graph)
        self.start, self.end = Writer(graph, graph.device), Writer(graph, graph.device)
        self.end.used_names = self.start.used_names
        self.names: dict[str, Tensor] = {}
        self.states: dict[str, Tensor] = {}
        self.layouts: list[TensorLayout] = []
        self.written = {t.name for leaf in scope.leaves() for t in written_by(leaf)}
        self.gradients_by_sum: dict[Op, list[Tensor]] = {}
        self.rows_to_gather: list[tuple[Tensor, Tensor]] = []
        for family in families:
            for name in sorted(family.axes):
                self._split_tensor(graph.by_name[name])

    def _split_tensor(self, tensor: Tensor) -> None:
        """Choose the tensor that replaces a tensor in the optimizer's step."""
        shape = (tensor.shape[0] // self.ranks, *tensor.shape[1:])
        users = [leaf for _, leaf in self.original.touching[tensor.buffer]]
        outside = [leaf for leaf in users if leaf not in self.inside]
        # Only the optimizer accesses it: only the rank's rows need to exist.
        if not outside:
            self.names[tensor.name] = local = replace(tensor, shape=shape, strides=None)
            if tensor.buffer in self.original.lasting:
                self.states[tensor.name] = local
                self.layouts.append(TensorLayout(tensor.name, "split", (0, 1)))
            return
        is_defined_inside = any(
            tensor in leaf.outputs and tensor.name not in leaf.written
            for leaf in users
            if leaf in self.inside
        )
        # The optimizer's step creates a view of outside memory: the rank's view starts at its
        # rows.
        offset = tensor.offset + self.rank * shape[0] * row_major(tensor.shape)[0] * tensor.itemsize
        if is_defined_inside:
            self.names[tensor.name] = replace(tensor, shape=shape, strides=None, offset=offset)
            return
        reduction = self._reduction(tensor, outside)
        if reduction is not None and not self._has_aliases(tensor):
            self.gradients_by_sum.setdefault(reduction, []).append(tensor)
            return
        first = self.rank * shape[0]
        self.names[tensor.name] = local_rows = self.start.cut(tensor, 0, first, shape[0])
        if tensor.name in self.written:
            self.rows_to_gather.append((tensor, local_rows))

    def _has_aliases(self, tensor: Tensor) -> bool:
        """Return whether the optimizer's step uses a tensor's memory under other names as well."""
        names = {
            t.name
            for leaf in self.scope.leaves()
            for t in (*leaf.inputs, *leaf.outputs)
            if t.buffer == tensor.buffer
        }
        return names != {tensor.name} or tensor.name in self.written

    def _reduction(self, tensor: Tensor, outside: Sequence[Op]) -> Op | None:
        """Return the sum over ranks after which only the optimizer reads a gradient, if any."""
        places = self.original.places
        sums = [leaf for leaf in outside if leaf.name.startswith(REDUCED) and tensor in leaf.inputs]
        # Written: an in-place sum, so that the gradient contains it. A sum that returns a new
        # tensor does not change the gradient, and one without average would need another scale.
        if len(sums) != 1 or sums[0].attributes.get("reduce_op") != "avg" or not sums[0].written:
            return None
        later = [
            leaf
            for leaf in outside
            if places.get(leaf, len(places)) > places[sums[0]] and not _is_wait(leaf)
        ]
        return None if later else sums[0]

    def graph(self) -> Graph:
        """Return the rank's model."""
        for leaf in list(self.original.leaves()):
            if leaf in self.gradients_by_sum:
                self._scatter(leaf, self.gradients_by_sum[leaf])
        self._gather()
        for op in self.start.ops:
            self.edit.insert(self._as_optimizer_op(op), before=self.scope)
        for op in self.end.ops:
            self.edit.insert(self._as_optimizer_op(op), after=self.scope)
        for leaf in self.scope.leaves():
            if any(t.name in self.names for t in (*leaf.inputs, *leaf.outputs)):
                self.edit.insert(self._on_local_rows(leaf), before=leaf)
                self.edit.remove(leaf)
        committed = self.edit.commit()
        declared = tuple(
            replace(d, tensor=self.states.get(d.tensor.name, d.tensor)) for d in committed.tensors
        )
        return replace(committed, tensors=declared)

    def _as_optimizer_op(self, op: Op) -> Op:
        return replace(op, phase="optimizer", thread=self.scope.thread, origin="shard")

    def _on_local_rows(self, leaf: Op) -> Op:
        """Return a call on a rank's rows; such ops have no argument for the number of rows."""
        local = map_tensors(leaf, lambda t: self.names.get(t.name, t))
        return replace(local, notes=without_times(local.notes))

    def _scatter(self, reduction: Op, tensors: Sequence[Tensor]) -> None:
        """Replace a sum of gradients over ranks with a reduce-scatter of their rows."""
        names = {tensor.name for tensor in tensors}
        remaining = tuple(tensor for tensor in reduction.inputs if tensor.name not in names)
        write = Writer(self.original, self.original.device)
        write.used_names = self.start.used_names
        if remaining:
            write.all_reduce(remaining, "avg")
        for group in _by_type(tensors):
            # reduce_scatter returns the r-th block of its input on rank r: as [ranks, elements],
            # the parameters' blocks are adjacent, and one call serves all tensors of a type.
            blocks = write.cat([self._block(write, tensor) for tensor in group], 1)
            block = write.reduce_scatter(blocks, self.ranks, 1, "avg")
            start = 0
            for tensor in group:
                size = tensor.numel // self.ranks
                cut, start = write.cut(block, 1, start, size), start + size
                shape = (tensor.shape[0] // self.ranks, *tensor.shape[1:])
                self.names[tensor.name] = write.view(cut, *shape)
                buffers = {tensor.buffer}
                self.layouts += [
                    TensorLayout(name, "mean")
                    for name in live_out(self.original)
                    if self.original.by_name[name].buffer in buffers
                ]
        for op in write.ops:
            placed_op = replace(
                op,
                thread=reduction.thread,
                stream=reduction.stream,
                phase=reduction.phase,
                origin="shard",
            )
            self.edit.insert(placed_op, before=reduction)
        self.edit.remove(reduction)
        for leaf in self.original.leaves():
            if _is_wait(leaf) and {t.name for t in leaf.inputs} & {
                t.name for t in reduction.inputs
            }:
                self.edit.remove(leaf)

    def _block(self, write: Writer, tensor: Tensor) -> Tensor:
        """Return a tensor's elements as [ranks, elements of a rank]."""
        return write.view(tensor, self.ranks, tensor.numel // self.ranks)

    def _gather(self) -> None:
        """Gather the updated rows of parameters from all ranks."""
        pairs = {tensor.name: (tensor, cut) for tensor, cut in self.rows_to_gather}
        for group in _by_type([tensor for tensor, _ in self.rows_to_gather]):
            parts = [self.end.flat(pairs[tensor.name][1]) for tensor in group]
            gathered = self.end.all_gather(self.end.cat(parts, 0), self.ranks)
            total = sum(int(part.numel) for part in parts)
            matrix, start = self.end.view(gathered, self.ranks, total), 0
            for tensor in group:
                size = tensor.numel // self.ranks
                cut, start = self.end.cut(matrix, 1, start, size), start + size
                target = self._block(self.end, tensor)
                written = frozenset([target.name])
                self.end.ops.append(Op("aten.copy_", (target, cut), (), {}, written))


def _by_type(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    groups: dict[str, list[Tensor]] = {}
    for tensor in tensors:
        groups.setdefault(tensor.dtype, []).append(tensor)
    return list(groups.values())


def _is_wait(leaf: Op) -> bool:
    return leaf.base == "wait_tensor"


def merge_layouts(
    layouts: Sequence[TensorLayout],
    new_layouts: Sequence[TensorLayout],
    replaced: Set[str] = frozenset(),
) -> list[TensorLayout]:
    """Return layouts, except of some names, and with new layouts."""
    layout_by_name: Mapping[str, TensorLayout] = {layout.name: layout for layout in new_layouts}
    names = {*layout_by_name, *replaced}
    remaining = (layout for layout in layouts if layout.name not in names)
    return [*remaining, *layout_by_name.values()]
