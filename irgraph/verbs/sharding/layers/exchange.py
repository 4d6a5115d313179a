"""Conversion between full tensors and a rank's parts, as the rank's ops need them."""

from __future__ import annotations

from collections import Counter

from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor
from irgraph.verbs.refusal import RefusedError
from irgraph.verbs.sharding.layers.placement import PART, SAME, LayerPlacement
from irgraph.verbs.sharding.writer import GROUP, Writer


class LocalTensors:
    """A rank's tensors of the full step, and the ops that convert them.

    Attributes:
        local: the rank's tensor, by the name in the full step.
        placements: placement of the rank's tensor, by the name in the full step.
        write: writer of the ops before the next op.
        count: number of collectives by kind.
    """

    def __init__(self, graph: Graph, rank: int, ranks: int, group: str = GROUP) -> None:
        self.rank, self.ranks = rank, ranks
        self.local: dict[str, Tensor] = {}
        self.placements: dict[str, LayerPlacement] = {}
        self.write = Writer(graph, graph.device, group)
        self.count: Counter[str] = Counter()
        self._names: dict[str, dict[str, Tensor]] = {}
        self._gathered: dict[str, dict[str, Tensor]] = {}
        self._stale: set[str] = set()

    def record(self, tensor: Tensor, local: Tensor, placement: LayerPlacement) -> None:
        """Record the rank's tensor and placement of a tensor of the full step."""
        self.local[tensor.name], self.placements[tensor.name] = local, placement
        self._names.setdefault(tensor.buffer, {})[tensor.name] = tensor
        self._stale.discard(tensor.name)

    def drain_ops(self) -> list[Op]:
        """Return the ops that were written since the last call."""
        ops, self.write.ops = self.write.ops, []
        return ops

    def materialize(self, tensor: Tensor, target: LayerPlacement) -> Tensor:
        """Return a tensor in the target placement; write the ops that convert it.

        Raises ``RefusedError`` if the rank's tensor is a copy of memory that was written later.
        """
        if tensor.name in self._stale:
            raise RefusedError(f"%{tensor.name} is a view of memory that was written after a copy")
        current = self.placements[tensor.name]
        if current == target:
            return self.local[tensor.name]
        if current == PART:
            self._sum_parts(tensor)
            return self.materialize(tensor, target)
        full = self._gather(tensor) if current != SAME else self.local[tensor.name]
        if target == SAME:
            return full
        size = full.shape[target.axis] // self.ranks
        return self.write.cut(full, target.axis, self.rank * size, size)

    def invalidate_copies(self, tensor: Tensor) -> None:
        """Discard copies of a written tensor, and mark stale copies of its buffer."""
        self._gathered.pop(tensor.buffer, None)
        local_buffer = self.local[tensor.name].buffer
        names = self._names[tensor.buffer]
        self._stale.update(name for name in names if self.local[name].buffer != local_buffer)

    def _gather(self, tensor: Tensor) -> Tensor:
        """Return the concatenated blocks of all ranks."""
        gathered = self._gathered.setdefault(tensor.buffer, {})
        if tensor.name in gathered:
            return gathered[tensor.name]
        local, axis = self.local[tensor.name], self.placements[tensor.name].axis
        all_blocks = self.write.all_gather(self.write.contiguous(local), self.ranks)
        rows = local.shape[0]
        starts = [self.write.sizes.times(rank, rows) for rank in range(self.ranks)]
        blocks = [self.write.cut(all_blocks, 0, start, rows) for start in starts]
        gathered[tensor.name] = all_blocks if axis == 0 else self.write.cat(blocks, axis)
        self.count["gather"] += 1
        return gathered[tensor.name]

    def _sum_parts(self, tensor: Tensor) -> None:
        """Sum parts over all ranks, in place if one tensor covers all known parts of the buffer."""
        names = self._names[tensor.buffer]
        views = [self.local[name] for name in names if self.placements[name] == PART]
        local = self.local[tensor.name]
        views = [view for view in views if view.buffer == local.buffer]
        ends = min(v.extent[0] for v in views), max(v.extent[1] for v in views)
        covering = (v for v in (local, *views) if v.contiguous and v.extent == ends)
        total = next(covering, None)
        self.count["sum"] += 1
        if total is None:
            total = self.write.contiguous(local)
            self.write.all_reduce([total], "sum")
            self.record(tensor, total, SAME)
            return
        self.write.all_reduce([total], "sum")
        for name in names:
            if self.placements[name] == PART and self.local[name].buffer == local.buffer:
                self.placements[name] = SAME
