"""Parts of tensors become whole, and whole ones are cut, as the ops of a rank need them."""

from __future__ import annotations

from collections import Counter

from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor
from irgraph.verbs.refusal import RefusedError
from irgraph.verbs.sharding.layers.placement import PART, SAME, LayerPlacement
from irgraph.verbs.sharding.writer import GROUP, Writer


class LocalTensors:
    """What a rank has of the tensors of the whole step, and the ops that bring the rest.

    Attributes:
        local: the rank's tensor, by the name in the whole step.
        places: what it is of the whole.
        write: the ops that stand before the next one.
        count: collectives by kind.
    """

    def __init__(self, graph: Graph, rank: int, ranks: int, group: str = GROUP) -> None:
        self.rank, self.ranks = rank, ranks
        self.local: dict[str, Tensor] = {}
        self.places: dict[str, LayerPlacement] = {}
        self.write = Writer(graph, graph.device, group)
        self.count: Counter[str] = Counter()
        self._names: dict[str, dict[str, Tensor]] = {}
        self._gathered: dict[str, dict[str, Tensor]] = {}
        self._stale: set[str] = set()

    def learn(self, whole: Tensor, local: Tensor, place: LayerPlacement) -> None:
        """Note what the rank has of a tensor."""
        self.local[whole.name], self.places[whole.name] = local, place
        self._names.setdefault(whole.buffer, {})[whole.name] = whole
        self._stale.discard(whole.name)

    def taken(self) -> list[Op]:
        """Return the ops that were written since the last time."""
        found, self.write.ops = self.write.ops, []
        return found

    def given(self, whole: Tensor, want: LayerPlacement) -> Tensor:
        """Return a tensor as an op wants it; writes what that takes.

        Raises ``RefusedError`` where the rank has a copy of what has been written since.
        """
        if whole.name in self._stale:
            raise RefusedError(f"%{whole.name} is a view of memory that was written after a copy")
        have = self.places[whole.name]
        if have == want:
            return self.local[whole.name]
        if have == PART:
            self._add_up(whole)
            return self.given(whole, want)
        full = self._gather(whole) if have != SAME else self.local[whole.name]
        if want == SAME:
            return full
        size = full.shape[want.axis] // self.ranks
        return self.write.cut(full, want.axis, self.rank * size, size)

    def wrote(self, whole: Tensor) -> None:
        """Forget copies of a tensor that was written: they are no longer what it is."""
        self._gathered.pop(whole.buffer, None)
        mine = self.local[whole.name].buffer
        names = self._names[whole.buffer]
        self._stale.update(name for name in names if self.local[name].buffer != mine)

    def _gather(self, whole: Tensor) -> Tensor:
        """Return the blocks of all ranks side by side."""
        known = self._gathered.setdefault(whole.buffer, {})
        if whole.name in known:
            return known[whole.name]
        local, axis = self.local[whole.name], self.places[whole.name].axis
        every = self.write.all_gather(self.write.whole(local), self.ranks)
        rows = local.shape[0]
        starts = [self.write.sizes.times(rank, rows) for rank in range(self.ranks)]
        blocks = [self.write.cut(every, 0, start, rows) for start in starts]
        known[whole.name] = every if axis == 0 else self.write.cat(blocks, axis)
        self.count["gather"] += 1
        return known[whole.name]

    def _add_up(self, whole: Tensor) -> None:
        """Add up parts over all ranks, where they lie if one tensor covers all that is known."""
        names = self._names[whole.buffer]
        views = [self.local[name] for name in names if self.places[name] == PART]
        mine = self.local[whole.name]
        views = [view for view in views if view.buffer == mine.buffer]
        ends = min(v.extent[0] for v in views), max(v.extent[1] for v in views)
        covering = (v for v in (mine, *views) if v.contiguous and v.extent == ends)
        found = next(covering, None)
        self.count["sum"] += 1
        if found is None:
            found = self.write.whole(mine)
            self.write.all_reduce([found], "sum")
            self.learn(whole, found, SAME)
            return
        self.write.all_reduce([found], "sum")
        for name in names:
            if self.places[name] == PART and self.local[name].buffer == mine.buffer:
                self.places[name] = SAME
