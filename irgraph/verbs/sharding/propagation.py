"""Propagation of placements through a step on one rank's samples, with the sums that it needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from irgraph.ir.effects import written_by
from irgraph.ir.graph import Graph
from irgraph.ir.live_out import HOST_READS, is_label
from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor
from irgraph.verbs.refusal import op_refusal
from irgraph.verbs.sharding.batch_placement import (
    SAME,
    SPLIT,
    BatchCall,
    BatchPlacement,
    PartialSumError,
    batch_axis,
)
from irgraph.verbs.sharding.rules import result_placements
from irgraph.verbs.sharding.tables import EmbeddingTable, without_tensors


@dataclass
class SumBucket:
    """Tensors that are summed over all ranks together.

    Attributes:
        before: the op before which they are summed; ``None`` for the end of the step.
        position: position of the first leaf of this op.
        tensors: the tensors with their placements: parts of a sum, or of a mean.
    """

    before: Op | None
    position: int
    tensors: list[tuple[Tensor, BatchPlacement]] = field(default_factory=list)


class ShardPropagation:
    """Placements of the tensors of one rank's step, op by op.

    Attributes:
        placements: placement of each tensor at the end of the step, by name.
        gradients: placement of the gradient of each table's bags.
        buckets: tensors that must be summed over ranks, and the op before which they are.
    """

    def __init__(
        self,
        graph: Graph,
        dim: str,
        tables: Sequence[EmbeddingTable],
        copied: Sequence[EmbeddingTable] = (),
    ) -> None:
        """Visit a rank's graph: ``tables`` are sharded, ``copied`` are replicated on all ranks."""
        self.graph, self.dim = graph, dim
        self.placements: dict[str, BatchPlacement] = {}
        self.gradients: dict[str, BatchPlacement] = {}
        self.buckets: list[SumBucket] = []
        self._table_tensors = {name for table in tables for name in table.tensor_names}
        all_tables = (*tables, *copied)
        self._forward = {table.forward: table for table in all_tables}
        self._backward = {t.backward: t for t in all_tables if t.backward is not None}
        self._replicated = {table.name for table in copied}
        self._last_access: dict[str, int] = {}
        self._tensors_by_buffer: dict[str, dict[str, Tensor]] = {}
        self._walk()

    def _walk(self) -> None:
        for declared in self.graph.tensors:
            tensor = declared.tensor
            split = batch_axis(tensor, self.dim) is not None
            self._record(tensor, SPLIT if split else SAME)
        for position, leaf in enumerate(self.graph.leaves()):
            if not is_label(leaf):
                self._visit(leaf)
            for tensor in (*leaf.inputs, *leaf.outputs):
                self._last_access[tensor.buffer] = position
        for declared in self.graph.tensors:
            if self.placements[declared.tensor.name].kind == "part":
                self._sum(declared.tensor, None)

    def _visit(self, leaf: Op) -> None:
        if leaf in self._forward:
            for tensor in leaf.outputs:
                self._record(tensor, SPLIT)
            return
        if leaf in self._backward:
            table = self._backward[leaf]
            gradient = self.placements[leaf.inputs[0].name]
            if table.name in self._replicated:
                self._record(leaf.outputs[0], BatchPlacement("part", gradient.factor))
            else:
                self.gradients[table.name] = gradient
            return
        op = without_tensors(leaf, self._table_tensors)
        if op is not None:
            self._propagate(op, leaf)

    def _propagate(self, op: Op, leaf: Op) -> None:
        """Record the placements of an op's results; sum operands first if it needs full values."""
        if not op.outputs and not written_by(op) and op.name not in HOST_READS:
            return
        call = BatchCall(op, self.placements, self.dim)
        try:
            results = result_placements(call)
        except PartialSumError:
            for tensor in op.inputs:
                if self.placements[tensor.name].kind == "part":
                    self._sum(tensor, leaf)
            results = self._retry(call)
        placements = results if len(results) > 1 else results * len(op.outputs)
        for tensor, placement in zip(op.outputs, placements, strict=True):
            self._record(tensor, self._with_batch_axis(op, tensor, placement))
        for tensor in written_by(op):
            for name, view in self._tensors_by_buffer[tensor.buffer].items():
                self.placements[name] = self._with_batch_axis(op, view, results[0])

    def _retry(self, call: BatchCall) -> tuple[BatchPlacement, ...]:
        try:
            return result_placements(call)
        except PartialSumError:
            raise call.refuse("needs sums over all samples that are not there yet") from None

    def _with_batch_axis(self, op: Op, tensor: Tensor, placement: BatchPlacement) -> BatchPlacement:
        """Return a tensor's placement, split if it has a batch axis."""
        axis = batch_axis(tensor, self.dim)
        if placement.kind == "split" and axis is None:
            raise op_refusal(op, "leaves no axis for the batch")
        return (
            BatchPlacement("split", placement.factor)
            if axis is not None and placement.kind == "same"
            else placement
        )

    def _record(self, tensor: Tensor, placement: BatchPlacement) -> None:
        self.placements[tensor.name] = placement
        self._tensors_by_buffer.setdefault(tensor.buffer, {})[tensor.name] = tensor

    def _sum(self, tensor: Tensor, consumer: Op | None) -> None:
        """Add an in-place sum of a tensor over ranks before the op that needs its full value."""
        placement = self.placements[tensor.name]
        if placement.kind != "part":
            return
        covering = self._covering_tensor(tensor)
        if covering is None or placement.factor not in (0, 1):
            last = consumer or next(self.graph.leaves())
            raise op_refusal(last, f"needs %{tensor.name} whole, which is a part of no plain sum")
        self._bucket(consumer, self._last_access.get(tensor.buffer, -1)).tensors.append(
            (covering, placement)
        )
        for name in self._tensors_by_buffer[tensor.buffer]:
            self.placements[name] = SAME

    def _covering_tensor(self, tensor: Tensor) -> Tensor | None:
        """Return a contiguous tensor that covers all known tensors of a buffer, if any."""
        views = self._tensors_by_buffer[tensor.buffer].values()
        start = min(view.extent[0] for view in views)
        end = max(view.extent[1] for view in views)
        candidates = (view for view in views if view.contiguous and view.extent == (start, end))
        return next(candidates, None)

    def _bucket(self, consumer: Op | None, last_access: int) -> SumBucket:
        """Return the bucket for a tensor: the last bucket if it follows the tensor's last use."""
        if self.buckets and self.buckets[-1].position > last_access:
            return self.buckets[-1]
        self.buckets.append(self._new_bucket(consumer, last_access))
        return self.buckets[-1]

    def _new_bucket(self, consumer: Op | None, last_access: int) -> SumBucket:
        if consumer is None:
            return SumBucket(None, len(self.graph.places))
        body, position_by_id = self.graph.ops, self.graph.places
        for step in self.graph.paths[consumer]:
            outer = body[step]
            first = position_by_id[next(outer.leaves())]
            if first > last_access:
                return SumBucket(outer, first)
            body = outer.body
        return SumBucket(consumer, position_by_id[consumer])
