"""Dead code: the properties ``op.idle``, ``op.unread`` and ``op.dead``."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

from irgraph.ir.effects import MAX_CACHED_OPS, effects, is_view, written_by
from irgraph.ir.live_out import HOST_READS, UNFILLED, WAITS, is_label
from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor
from irgraph.language.patterns.index import Index

STAYS = ("param", "state", "input", "returned", "gradient", "host")
"""Kinds of tensors that leave a step even if nothing reads them."""


@dataclass
class Liveness:
    """What of a graph is used, as if some of its ops had gone already.

    Attributes:
        gone: positions of ops that do not count any more.
    """

    index: Index
    gone: set[int] = field(default_factory=set)
    _last: dict[str, int] = field(default_factory=dict)
    _left: dict[int, int] = field(default_factory=dict)

    def drop(self, here: int) -> None:
        """Let an op go, and what is around it once all in there has gone."""
        index = self.index
        self.gone.update(range(here, index.end[here]))
        around = index.parent[here]
        if around >= 0:
            self._left[around] = self._left.get(around, len(index.ops[around].body)) - 1
            if not self._left[around]:
                self.drop(around)

    def idle(self, op: Op) -> bool:
        """Return whether an op only returned an operand, or allocated memory that nobody uses."""
        if not all(map(_is_harmless, op.leaves())) or any(map(written_by, op.leaves())):
            return False
        made = [leaf for leaf in op.leaves() if leaf.outputs]
        return all(leaf.base in UNFILLED for leaf in made) and not self._is_used(op)

    def unread(self, op: Op) -> bool:
        """Return whether no op reads what an op makes and writes, nor anybody after the step.

        Where it is unknown what the step returns, it may be just that.
        """
        if not all(map(_is_harmless, op.leaves())) or self._is_used(op):
            return False
        leaves = list(op.leaves())
        end = self.index.end[self.index.position[id(op)]]
        return any(map(_made, leaves)) and not any(self._stays(leaf, end) for leaf in leaves)

    def dead(self, op: Op) -> bool:
        """Return whether an op is unread, and known not to make what the step returns."""
        return self.index.graph.returned is not None and self.unread(op)

    def _is_used(self, op: Op) -> bool:
        """Return whether ops outside use what an op makes."""
        end = self.index.end[self.index.position[id(op)]]
        names = {t.name for inner in op.walk() for t in inner.outputs}
        return any(i not in self.gone for name in names for i in self.index.users_of(name, end))

    def _stays(self, leaf: Op, end: int) -> bool:
        """Return whether a result leaves the step, or its bytes are used after a position."""
        made = _made(leaf)
        if any(self.index.leaving.get(tensor.name) in STAYS for tensor in made):
            return True
        if is_view(leaf):
            return False
        lasting = self.index.lasting
        return any(t.buffer in lasting or self._last_touch(t.buffer) >= end for t in made)

    def _last_touch(self, buffer: str) -> int:
        """Return the position of the last op that touches a buffer."""
        near = self.index.touches.get(buffer, ())
        last = self._last.get(buffer, len(near) - 1)
        while last >= 0 and near[last] in self.gone:
            last -= 1
        self._last[buffer] = last
        return near[last] if last >= 0 else -1


def _made(leaf: Op) -> list[Tensor]:
    return [*leaf.outputs, *written_by(leaf)]


@lru_cache(maxsize=MAX_CACHED_OPS)
def _is_harmless(leaf: Op) -> bool:
    """Return whether an op does no more than its results and writes say."""
    if is_label(leaf) or leaf.name in (*HOST_READS, *WAITS) or leaf.base.startswith("_assert"):
        return False
    effect = effects(leaf)
    fetched = any(t.device != "cpu" for t in leaf.inputs)
    given = fetched and any(t.device == "cpu" for t in leaf.outputs)
    return not (effect.random or effect.barrier or given)
