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
from irgraph.verbs.sharding.rules import spreads_of
from irgraph.verbs.sharding.tables import Table, without


@dataclass
class Bucket:
    """Tensors that are summed over all ranks together.

    Attributes:
        before: the op before which that happens; ``None`` for the end of the step.
        place: the first leaf of it.
        tensors: with what they are: parts of a sum, or of a mean.
    """

    before: Op | None
    place: int
    tensors: list[tuple[Tensor, BatchPlacement]] = field(default_factory=list)


class ShardPropagation:
    """What the tensors of one rank's step are, op by op.

    Attributes:
        known: by name, what a tensor is at the end.
        gradients: what the gradient of each table's bags is.
        buckets: what must be summed over ranks, and before which op.
    """

    def __init__(
        self, graph: Graph, dim: str, tables: Sequence[Table], copied: Sequence[Table] = ()
    ) -> None:
        """Walk a rank's graph: some tables are spread, of others every rank has a copy."""
        self.graph, self.dim = graph, dim
        self.known: dict[str, BatchPlacement] = {}
        self.gradients: dict[str, BatchPlacement] = {}
        self.buckets: list[Bucket] = []
        self._held = {name for table in tables for name in table.held}
        every = (*tables, *copied)
        self._forward = {id(table.forward): table for table in every}
        self._backward = {id(t.backward): t for t in every if t.backward is not None}
        self._copied = {table.name for table in copied}
        self._touched: dict[str, int] = {}
        self._names: dict[str, dict[str, Tensor]] = {}
        self._walk()

    def _walk(self) -> None:
        for declared in self.graph.tensors:
            tensor = declared.tensor
            split = batch_axis(tensor, self.dim) is not None
            self._learn(tensor, SPLIT if split else SAME)
        for place, leaf in enumerate(self.graph.leaves()):
            if not is_label(leaf):
                self._pass(leaf)
            for tensor in (*leaf.inputs, *leaf.outputs):
                self._touched[tensor.buffer] = place
        for declared in self.graph.tensors:
            if self.known[declared.tensor.name].kind == "part":
                self._sum(declared.tensor, None)

    def _pass(self, leaf: Op) -> None:
        if id(leaf) in self._forward:
            for tensor in leaf.outputs:
                self._learn(tensor, SPLIT)
            return
        if id(leaf) in self._backward:
            table = self._backward[id(leaf)]
            found = self.known[leaf.inputs[0].name]
            if table.name in self._copied:
                self._learn(leaf.outputs[0], BatchPlacement("part", found.factor))
            else:
                self.gradients[table.name] = found
            return
        op = without(leaf, self._held)
        if op is not None:
            self._follow(op, leaf)

    def _follow(self, op: Op, leaf: Op) -> None:
        """Find what an op makes; what it needs whole is summed first."""
        if not op.outputs and not written_by(op) and op.name not in HOST_READS:
            return
        call = BatchCall(op, self.known, self.dim)
        try:
            found = spreads_of(call)
        except PartialSumError:
            for tensor in op.inputs:
                if self.known[tensor.name].kind == "part":
                    self._sum(tensor, leaf)
            found = self._again(call)
        each = found if len(found) > 1 else found * len(op.outputs)
        for tensor, spread in zip(op.outputs, each, strict=True):
            self._learn(tensor, self._fitting(op, tensor, spread))
        for tensor in written_by(op):
            for name, view in self._names[tensor.buffer].items():
                self.known[name] = self._fitting(op, view, found[0])

    def _again(self, call: BatchCall) -> tuple[BatchPlacement, ...]:
        try:
            return spreads_of(call)
        except PartialSumError:
            raise call.refuse("needs sums over all samples that are not there yet") from None

    def _fitting(self, op: Op, tensor: Tensor, found: BatchPlacement) -> BatchPlacement:
        """Return what is true of a tensor by its own axes."""
        axis = batch_axis(tensor, self.dim)
        if found.kind == "split" and axis is None:
            raise op_refusal(op, "leaves no axis for the batch")
        return (
            BatchPlacement("split", found.factor)
            if axis is not None and found.kind == "same"
            else found
        )

    def _learn(self, tensor: Tensor, spread: BatchPlacement) -> None:
        self.known[tensor.name] = spread
        self._names.setdefault(tensor.buffer, {})[tensor.name] = tensor

    def _sum(self, tensor: Tensor, needed: Op | None) -> None:
        """Let a tensor be summed over ranks, where it lies, before an op needs it whole."""
        spread = self.known[tensor.name]
        if spread.kind != "part":
            return
        whole = self._whole(tensor)
        if whole is None or spread.factor not in (0, 1):
            last = needed or next(self.graph.leaves())
            raise op_refusal(last, f"needs %{tensor.name} whole, which is a part of no plain sum")
        self._bucket(needed, self._touched.get(tensor.buffer, -1)).tensors.append((whole, spread))
        for name in self._names[tensor.buffer]:
            self.known[name] = SAME

    def _whole(self, tensor: Tensor) -> Tensor | None:
        """Return the contiguous tensor that covers all there is of a buffer's parts."""
        views = self._names[tensor.buffer].values()
        start = min(view.extent[0] for view in views)
        end = max(view.extent[1] for view in views)
        fitting = (view for view in views if view.contiguous and view.extent == (start, end))
        return next(fitting, None)

    def _bucket(self, needed: Op | None, touched: int) -> Bucket:
        """Return the bucket that a tensor joins: the last one, if it comes after its last use."""
        if self.buckets and self.buckets[-1].place > touched:
            return self.buckets[-1]
        self.buckets.append(self._opened(needed, touched))
        return self.buckets[-1]

    def _opened(self, needed: Op | None, touched: int) -> Bucket:
        if needed is None:
            return Bucket(None, len(self.graph.places))
        body, places = self.graph.ops, self.graph.places
        for step in self.graph.paths[id(needed)]:
            outer = body[step]
            first = places[id(next(outer.leaves()))]
            if first > touched:
                return Bucket(outer, first)
            body = outer.body
        return Bucket(needed, places[id(needed)])
