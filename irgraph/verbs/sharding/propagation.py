"""Walks a step on one rank's samples: what each tensor is of the whole, and what must be summed."""

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
class Bucket:
    """Tensors that are summed over all ranks together.

    Attributes:
        before: the op before which that happens; ``None`` for the end of the step.
        place: the first leaf of it.
        tensors: with what they are: parts of a sum, or of a mean.
    """

    before: Op | None
    position: int
    tensors: list[tuple[Tensor, BatchPlacement]] = field(default_factory=list)


class ShardPropagation:
    """What the tensors of one rank's step are, op by op.

    Attributes:
        known: by name, what a tensor is at the end.
        gradients: what the gradient of each table's bags is.
        buckets: what must be summed over ranks, and before which op.
    """

    def __init__(
        self,
        graph: Graph,
        dim: str,
        tables: Sequence[EmbeddingTable],
        copied: Sequence[EmbeddingTable] = (),
    ) -> None:
        """Walk a rank's graph: some tables are spread, of others every rank has a copy."""
        self.graph, self.dim = graph, dim
        self.known: dict[str, BatchPlacement] = {}
        self.gradients: dict[str, BatchPlacement] = {}
        self.buckets: list[Bucket] = []
        self._held = {name for table in tables for name in table.tensor_names}
        all_tables = (*tables, *copied)
        self._forward = {id(table.forward): table for table in all_tables}
        self._backward = {id(t.backward): t for t in all_tables if t.backward is not None}
        self._copied = {table.name for table in copied}
        self._touched: dict[str, int] = {}
        self._names: dict[str, dict[str, Tensor]] = {}
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
                self._touched[tensor.buffer] = position
        for declared in self.graph.tensors:
            if self.known[declared.tensor.name].kind == "part":
                self._sum(declared.tensor, None)

    def _visit(self, leaf: Op) -> None:
        if id(leaf) in self._forward:
            for tensor in leaf.outputs:
                self._record(tensor, SPLIT)
            return
        if id(leaf) in self._backward:
            table = self._backward[id(leaf)]
            gradient = self.known[leaf.inputs[0].name]
            if table.name in self._copied:
                self._record(leaf.outputs[0], BatchPlacement("part", gradient.factor))
            else:
                self.gradients[table.name] = gradient
            return
        op = without_tensors(leaf, self._held)
        if op is not None:
            self._propagate(op, leaf)

    def _propagate(self, op: Op, leaf: Op) -> None:
        """Find what an op makes; what it needs whole is summed first."""
        if not op.outputs and not written_by(op) and op.name not in HOST_READS:
            return
        call = BatchCall(op, self.known, self.dim)
        try:
            results = result_placements(call)
        except PartialSumError:
            for tensor in op.inputs:
                if self.known[tensor.name].kind == "part":
                    self._sum(tensor, leaf)
            results = self._retry(call)
        placements = results if len(results) > 1 else results * len(op.outputs)
        for tensor, placement in zip(op.outputs, placements, strict=True):
            self._record(tensor, self._with_batch_axis(op, tensor, placement))
        for tensor in written_by(op):
            for name, view in self._names[tensor.buffer].items():
                self.known[name] = self._with_batch_axis(op, view, results[0])

    def _retry(self, call: BatchCall) -> tuple[BatchPlacement, ...]:
        try:
            return result_placements(call)
        except PartialSumError:
            raise call.refuse("needs sums over all samples that are not there yet") from None

    def _with_batch_axis(self, op: Op, tensor: Tensor, placement: BatchPlacement) -> BatchPlacement:
        """Return what is true of a tensor by its own axes."""
        axis = batch_axis(tensor, self.dim)
        if placement.kind == "split" and axis is None:
            raise op_refusal(op, "leaves no axis for the batch")
        return (
            BatchPlacement("split", placement.factor)
            if axis is not None and placement.kind == "same"
            else placement
        )

    def _record(self, tensor: Tensor, placement: BatchPlacement) -> None:
        self.known[tensor.name] = placement
        self._names.setdefault(tensor.buffer, {})[tensor.name] = tensor

    def _sum(self, tensor: Tensor, consumer: Op | None) -> None:
        """Let a tensor be summed over ranks, where it lies, before an op needs it whole."""
        placement = self.known[tensor.name]
        if placement.kind != "part":
            return
        covering = self._covering_tensor(tensor)
        if covering is None or placement.factor not in (0, 1):
            last = consumer or next(self.graph.leaves())
            raise op_refusal(last, f"needs %{tensor.name} whole, which is a part of no plain sum")
        self._bucket(consumer, self._touched.get(tensor.buffer, -1)).tensors.append(
            (covering, placement)
        )
        for name in self._names[tensor.buffer]:
            self.known[name] = SAME

    def _covering_tensor(self, tensor: Tensor) -> Tensor | None:
        """Return the contiguous tensor that covers all there is of a buffer's parts."""
        views = self._names[tensor.buffer].values()
        start = min(view.extent[0] for view in views)
        end = max(view.extent[1] for view in views)
        candidates = (view for view in views if view.contiguous and view.extent == (start, end))
        return next(candidates, None)

    def _bucket(self, consumer: Op | None, last_access: int) -> Bucket:
        """Return the bucket that a tensor joins: the last one, if it comes after its last use."""
        if self.buckets and self.buckets[-1].position > last_access:
            return self.buckets[-1]
        self.buckets.append(self._new_bucket(consumer, last_access))
        return self.buckets[-1]

    def _new_bucket(self, consumer: Op | None, last_access: int) -> Bucket:
        if consumer is None:
            return Bucket(None, len(self.graph.places))
        body, position_by_id = self.graph.ops, self.graph.places
        for step in self.graph.paths[id(consumer)]:
            outer = body[step]
            first = position_by_id[id(next(outer.leaves()))]
            if first > last_access:
                return Bucket(outer, first)
            body = outer.body
        return Bucket(consumer, position_by_id[id(consumer)])
