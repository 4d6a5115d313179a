"""Dead code: the properties ``op.idle``, ``op.unread`` and ``op.dead``."""

from __future__ import annotations

from dataclasses import dataclass, field

from irgraph.facts import cached_calls
from irgraph.ir.effects import MAX_CACHED_OPS, effects, is_view, written_by
from irgraph.ir.op import Op
from irgraph.ir.ranks import is_collective
from irgraph.ir.tensor import Tensor
from irgraph.language.patterns.index import Index
from irgraph.ops.live_out import UNFILLED, is_label, reads_on_host, waits

LIVE_OUT_KINDS = ("param", "state", "input", "returned", "gradient", "host")
"""Kinds of tensors that are live-out of a step even if nothing reads them."""


@dataclass
class Liveness:
    """Uses of a graph's tensors, as if some of its ops had been removed already.

    Attributes:
        removed: positions of the ops that count as removed.
    """

    index: Index
    removed: set[int] = field(default_factory=set)
    _last_index: dict[str, int] = field(default_factory=dict)
    _remaining: dict[int, int] = field(default_factory=dict)

    def drop(self, position: int) -> None:
        """Count an op as removed, and each op around it whose whole body has been removed."""
        index = self.index
        self.removed.update(range(position, index.end[position]))
        parent = index.parent[position]
        if parent >= 0:
            self._remaining[parent] = self._remaining.get(parent, len(index.ops[parent].body)) - 1
            if not self._remaining[parent]:
                self.drop(parent)

    def idle(self, op: Op) -> bool:
        """Return whether an op only returns an operand, or allocates memory that no op uses."""
        if not all(map(_is_harmless, op.leaves())) or any(map(written_by, op.leaves())):
            return False
        producers = [leaf for leaf in op.leaves() if leaf.outputs]
        return all(leaf.base in UNFILLED for leaf in producers) and not self._is_used(op)

    def unread(self, op: Op) -> bool:
        """Return whether nothing in or after the step reads an op's results and writes.

        If it is unknown what the step returns, it may return these results.
        """
        if not all(map(_is_harmless, op.leaves())) or self._is_used(op):
            return False
        leaves = list(op.leaves())
        end = self.index.end[self.index.position[op]]
        return any(map(_defined_tensors, leaves)) and not any(
            self._is_used_later(leaf, end) for leaf in leaves
        )

    def dead(self, op: Op) -> bool:
        """Return whether an op is unread, and it is known what the step returns."""
        return self.index.graph.returned is not None and self.unread(op)

    def _is_used(self, op: Op) -> bool:
        """Return whether ops outside an op use its results."""
        end = self.index.end[self.index.position[op]]
        names = {t.name for inner in op.walk() for t in inner.outputs}
        return any(i not in self.removed for name in names for i in self.index.users_of(name, end))

    def _is_used_later(self, leaf: Op, end: int) -> bool:
        """Return whether a leaf's result is live-out of the step or used from ``end`` on."""
        tensors = _defined_tensors(leaf)
        if any(self.index.live_out_kinds.get(tensor.name) in LIVE_OUT_KINDS for tensor in tensors):
            return True
        if is_view(leaf):
            return False
        lasting = self.index.lasting_buffers
        return any(t.buffer in lasting or self._last_access(t.buffer) >= end for t in tensors)

    def _last_access(self, buffer: str) -> int:
        """Return the position of the last op that accesses a buffer; -1 if there is none."""
        positions = self.index.accesses.get(buffer, ())
        index = self._last_index.get(buffer, len(positions) - 1)
        while index >= 0 and positions[index] in self.removed:
            index -= 1
        self._last_index[buffer] = index
        return positions[index] if index >= 0 else -1


def _defined_tensors(leaf: Op) -> list[Tensor]:
    return [*leaf.outputs, *written_by(leaf)]


@cached_calls(MAX_CACHED_OPS)
def _is_harmless(leaf: Op) -> bool:
    """Return whether an op has no effects other than its results and writes."""
    has_effect = is_label(leaf) or reads_on_host(leaf) or waits(leaf)
    has_effect = has_effect or (is_collective(leaf) and not leaf.outputs and not leaf.written)
    if has_effect or leaf.base.startswith("_assert"):
        return False
    effect = effects(leaf)
    reads_device = any(t.device != "cpu" for t in leaf.inputs)
    copies_to_host = reads_device and any(t.device == "cpu" for t in leaf.outputs)
    return not (effect.random or effect.barrier or copies_to_host)
