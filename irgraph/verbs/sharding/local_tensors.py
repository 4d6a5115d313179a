"""The tensors of one rank: their places, and the ops that convert them from one to another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import NamedTuple

from msgspec.structs import replace

from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor
from irgraph.ops.places import ONCE, PARTIAL, SAME, Place
from irgraph.verbs.refusal import RefusedError
from irgraph.verbs.sharding.collectives import Collectives
from irgraph.verbs.sharding.shares import Shares
from irgraph.verbs.sharding.writer import GROUP


@dataclass
class SumBucket:
    """Tensors that are summed over all ranks together, in place.

    Attributes:
        position: number of leaves before the sum.
        context: the op before which they are summed.
        tensors: the tensors of the rank, by type and by power of the number of ranks by which
            they are too large.
    """

    position: int
    context: Op | None
    tensors: dict[tuple[str, int], list[Tensor]] = field(default_factory=dict)

    def add(self, tensor: Tensor, factor: int) -> None:
        """Add a tensor."""
        self.tensors.setdefault((tensor.dtype, factor), []).append(tensor)


class Copy(NamedTuple):
    """A rank's tensor in another place, and the name of the tensor that was converted."""

    name: str
    tensor: Tensor


def view_key(tensor: Tensor) -> object:
    """Return a key that tensors of one buffer share if they are equal views of it."""
    return tensor.dtype, tensor.shape, tensor.strides, tensor.offset


class LocalTensors:
    """A rank's tensors by the names of the whole step.

    Attributes:
        local: the rank's tensor.
        places: its place.
        zeros: names of tensors that are zero on all ranks: complete and terms of a sum.
        write: writer of the ops before the next op.
        counts: number of conversions by kind.
        owed: sums in place that were required since the last call of ``drain_sums``.
        view_ops: the calls that made views, by their results.
        write_view: writer of a view of a complete tensor.
    """

    def __init__(self, graph: Graph, shares: Shares, rank: int, group: str = GROUP) -> None:
        self.shares, self.rank = shares, rank
        self.local: dict[str, Tensor] = {}
        self.places: dict[str, Place] = {}
        self.zeros: set[str] = set()
        self.write = Collectives(graph, shares, rank, group)
        self.counts: Counter[str] = Counter()
        self.owed: list[tuple[Tensor, str, int]] = []
        self.view_ops: dict[str, Op] = {}
        self.write_view: Callable[[Op, Tensor], Tensor] | None = None
        self._by_buffer: dict[str, dict[str, Tensor]] = {}
        self._copies: dict[str, dict[tuple[object, Place], Copy]] = {}
        self._stale: set[str] = set()

    def record(self, tensor: Tensor, local: Tensor, place: Place) -> None:
        """Record the rank's tensor and its place."""
        self.local[tensor.name], self.places[tensor.name] = local, place
        self._by_buffer.setdefault(tensor.buffer, {})[tensor.name] = tensor
        self._stale.discard(tensor.name)

    def drain_ops(self) -> list[Op]:
        """Return the ops that were written since the last call."""
        ops, self.write.ops = self.write.ops, []
        return ops

    def drain_sums(self) -> list[tuple[Tensor, str, int]]:
        """Return the sums that were required since the last call: tensor, buffer and factor."""
        owed, self.owed = self.owed, []
        return owed

    def check_fresh(self, tensor: Tensor) -> None:
        """Raise ``RefusedError`` if a tensor is a copy of memory that was written later."""
        if tensor.name in self._stale:
            raise RefusedError(f"%{tensor.name} is a view of memory that was written after a copy")

    def is_convertible(self, tensor: Tensor, place: Place) -> bool:
        """Return whether a tensor is in a place already, or has a copy there."""
        current = self.places[tensor.name]
        if current == place or self.is_zero_in(tensor.name, current, place):
            return True
        if (view_key(tensor), place) in self._copies.get(tensor.buffer, {}):
            return True
        return self._complete_source(tensor, place) is not None

    def _complete_source(self, tensor: Tensor, place: Place) -> Tensor | None:
        """Return the complete tensor of which another is a view, if it exists on the rank."""
        op = self.view_ops.get(tensor.name)
        if op is None or place != SAME or self.places[tensor.name].kind != "split":
            return None
        source = op.inputs[0]
        if source.name in self._stale or source.buffer != tensor.buffer:
            return None
        return source if self.is_convertible(source, place) else None

    def is_zero_in(self, name: str, current: Place, place: Place) -> bool:
        """Return whether a tensor is zero, and in another place has the same elements."""
        return name in self.zeros and "split" not in (current.kind, place.kind)

    def materialize(self, tensor: Tensor, place: Place) -> Tensor:
        """Return a tensor in a place; write the ops that convert it.

        Raises ``RefusedError`` if the rank's tensor is a copy of memory that was written later.
        """
        self.check_fresh(tensor)
        name = tensor.name
        current = self.places[name]
        if current == place or self.is_zero_in(name, current, place):
            return self.local[name]
        if current.power != 1.0 and place == SAME:
            # small, and perhaps written next: no op needs its parts again
            self.record(tensor, self._converted(self.local[name], current, place), place)
            return self.local[name]
        copies = self._copies.setdefault(tensor.buffer, {})
        key = view_key(tensor), place
        if key not in copies:
            if current.kind == "partial" and place == SAME and current.factor <= 1:
                self._sum(tensor, current)
                return self.local[name]
            copies[key] = Copy(name, self._copied(tensor, current, place))
        return copies[key].tensor

    def _copied(self, tensor: Tensor, current: Place, place: Place) -> Tensor:
        """Return a copy in another place: a view of a copy, or one that is converted."""
        source = self._complete_source(tensor, place)
        if source is not None and self.write_view is not None:
            return self.write_view(self.view_ops[tensor.name], self.materialize(source, place))
        return self._converted(self.local[tensor.name], current, place)

    def _converted(self, local: Tensor, current: Place, place: Place) -> Tensor:
        """Return a copy or a view of a rank's tensor in another place."""
        if current.power != place.power:
            return self._converted_norm(local, current, place)
        reduces = current.kind == "partial" and place.kind != "partial"
        surplus = current.factor - (min(current.factor, 1) if reduces else place.factor)
        if surplus:
            local = self.write.scale(local, float(self.shares.ranks) ** -surplus)
            current = replace(current, factor=current.factor - surplus)
        if current == place:
            return local
        kinds = current.kind, place.kind
        if (current.outer, place.outer) != (ONCE, ONCE):
            return self._converted_runs(local, current, place)
        self.counts[CONVERSIONS[kinds]] += 1
        if kinds == ("partial", "split"):
            return self.write.scattered(local, place.axis, current.factor)
        if kinds == ("partial", "same"):
            total = self.write.contiguous(local)
            self.write.all_reduce([total], reduction_of(current.factor))
            return total
        if kinds == ("split", "same"):
            return self.write.gathered(local, current.axis)
        if kinds == ("split", "split"):
            return self.write.exchanged(local, current.axis, place.axis)
        if kinds == ("same", "split"):
            return self.write.block(local, place.axis)
        if kinds == ("same", "partial"):
            return self.write.term(local)
        return self._converted(self.write.gathered(local, current.axis), SAME, PARTIAL)

    def _converted_norm(self, local: Tensor, current: Place, place: Place) -> Tensor:
        """Return a norm of all ranks, or a rank's part of one: 0 except on rank 0."""
        if current.power != 1.0:
            self.counts["sum"] += 1
            return self._converted(self.write.norm(local, current.power), SAME, place)
        complete = self._converted(local, current, SAME)
        self.counts["term"] += 1
        return self.write.term(complete)

    def _converted_runs(self, local: Tensor, current: Place, place: Place) -> Tensor:
        """Return a tensor whose axis is split in runs, or is to be: each run gets its own axis."""
        if current.kind == place.kind == "split" and current.axis != place.axis:
            return self._exchanged_runs(local, current, place)
        if current.kind == place.kind == "split":
            complete = self._converted(local, current, Place("same", factor=current.factor))
            return self._converted(complete, Place("same", factor=current.factor), place)
        axis, outer = max((current.axis, current.outer), (place.axis, place.outer))
        runs = self.write.unmerged(local, axis, self.shares.algebra.make(outer))
        before, after = (
            Place("split", axis + 1, p.factor) if p.kind == "split" else p for p in (current, place)
        )
        return self.write.merged(self._converted(runs, before, after), axis, 2)

    def _exchanged_runs(self, local: Tensor, current: Place, place: Place) -> Tensor:
        """Return blocks along another axis, with the runs of each axis as an axis."""
        counts = {
            p.axis: self.shares.algebra.make(p.outer) for p in (current, place) if p.outer != ONCE
        }
        for axis in sorted(counts, reverse=True):
            local = self.write.unmerged(local, axis, counts[axis])

        def position(axis: int) -> int:
            return axis + sum(other <= axis for other in counts)

        self.counts["exchange"] += 1
        local = self.write.exchanged(local, position(current.axis), position(place.axis))
        for axis in sorted(counts):
            local = self.write.merged(local, axis, 2)
        return local

    def drop_copies(self, names: Collection[str]) -> None:
        """Free the complete copies of split tensors."""
        for copies in self._copies.values():
            for key, copy in list(copies.items()):
                if copy.name in names and key[1] == SAME:
                    del copies[key]

    def settle(self, tensor: Tensor, place: Place) -> None:
        """Convert a tensor to the place in which all later ops find it."""
        current = self.places[tensor.name]
        if current.kind == "partial" and place == SAME and current.power == 1.0:
            self.write.all_reduce([self.local[tensor.name]], reduction_of(current.factor))
            self._change_views(tensor, SAME)
            self.counts["sum"] += 1
            return
        self.record(tensor, self.materialize(tensor, place), place)

    def covering(self, tensor: Tensor) -> Tensor | None:
        """Return the name of a contiguous tensor that covers all tensors of a rank's buffer."""
        buffer = self.local[tensor.name].buffer
        names = self._by_buffer[tensor.buffer]
        views = [self.local[name] for name in names if self.local[name].buffer == buffer]
        ends = min(v.extent[0] for v in views), max(v.extent[1] for v in views)
        candidates = (v for v in views if v.contiguous and v.extent == ends)
        return next(candidates, None)

    def _sum(self, tensor: Tensor, place: Place) -> None:
        """Require the sum of a tensor in place, or else sum a copy."""
        total = self.covering(tensor)
        self.counts["sum"] += 1
        if total is None:
            total = self.write.contiguous(self.local[tensor.name])
            self.write.all_reduce([total], reduction_of(place.factor))
            self.record(tensor, total, SAME)
            return
        self.owed.append((total, tensor.buffer, place.factor))
        self._change_views(tensor, SAME)

    def _change_views(self, tensor: Tensor, place: Place) -> None:
        """Record a place for all views of a rank's memory."""
        buffer = self.local[tensor.name].buffer
        for name in self._by_buffer[tensor.buffer]:
            if self.local[name].buffer == buffer:
                self.places[name] = place

    def record_write(self, tensor: Tensor, place: Place, *, is_zero: bool = False) -> None:
        """Record that memory was written: other copies of it are no longer valid."""
        self._copies.pop(tensor.buffer, None)
        buffer = self.local[tensor.name].buffer
        for name in self._by_buffer[tensor.buffer]:
            if self.local[name].buffer != buffer:
                self._stale.add(name)
            elif is_zero:
                self.zeros.add(name)
            else:
                self.zeros.discard(name)
        if self.places[tensor.name] != place:
            self._change_views(tensor, place)


CONVERSIONS = {
    ("partial", "same"): "sum",
    ("partial", "split"): "scattering",
    ("split", "same"): "gathering",
    ("split", "split"): "exchange",
    ("same", "split"): "cut",
    ("same", "partial"): "term",
    ("split", "partial"): "gathering",
}
"""Names of conversions, by the kinds of places before and after."""


def reduction_of(factor: int) -> str:
    """Return the reduction of terms that are too large by a power of the number of ranks."""
    return "avg" if factor else "sum"
