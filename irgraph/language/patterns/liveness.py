"""Dead code: the properties ``op.idle``, ``op.unread`` and ``op.dead``."""

from __future__ import annotations

from functools import lru_cache

from irgraph.ir.effects import REMEMBERED, effects, is_view, written_by
from irgraph.ir.leaving import READS, UNFILLED, WAITS, is_label
from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor
from irgraph.language.patterns.index import Index

STAYS = ("param", "state", "input", "returned", "gradient", "host")
"""Kinds of tensors that leave a step even if nothing reads them."""


def is_idle(index: Index, op: Op) -> bool:
    """Return whether an op only returned an operand, or allocated memory that nobody uses."""
    if not all(map(_is_harmless, op.leaves())) or any(map(written_by, op.leaves())):
        return False
    made = [leaf for leaf in op.leaves() if leaf.outputs]
    return all(leaf.base in UNFILLED for leaf in made) and not _is_used(index, op)


def is_unread(index: Index, op: Op) -> bool:
    """Return whether no op reads what an op makes and writes, nor anybody after the step.

    Where it is unknown what the step returns, it may be just that.
    """
    if not all(map(_is_harmless, op.leaves())) or _is_used(index, op):
        return False
    leaves = list(op.leaves())
    end = index.end[index.position[id(op)]]
    return any(map(_made, leaves)) and not any(_stays(index, leaf, end) for leaf in leaves)


def is_dead(index: Index, op: Op) -> bool:
    """Return whether an op is unread, and known not to make what the step returns."""
    return index.graph.returned is not None and is_unread(index, op)


def _made(leaf: Op) -> list[Tensor]:
    return [*leaf.outputs, *written_by(leaf)]


@lru_cache(maxsize=REMEMBERED)
def _is_harmless(leaf: Op) -> bool:
    """Return whether an op does no more than its results and writes say."""
    if is_label(leaf) or leaf.name in (*READS, *WAITS) or leaf.base.startswith("_assert"):
        return False
    effect = effects(leaf)
    fetched = any(t.device != "cpu" for t in leaf.inputs)
    given = fetched and any(t.device == "cpu" for t in leaf.outputs)
    return not (effect.random or effect.barrier or given)


def _is_used(index: Index, op: Op) -> bool:
    """Return whether ops outside use what an op makes."""
    here = index.position[id(op)]
    names = {t.name for inner in op.walk() for t in inner.outputs}
    users = (i for name in names for i in index.users.get(name, ()))
    return any(not index.inside(i, here) for i in users if i >= index.end[here])


def _stays(index: Index, leaf: Op, end: int) -> bool:
    """Return whether a result of an op leaves the step, or its bytes are used after a position."""
    made = _made(leaf)
    if any(index.leaving.get(tensor.name) in STAYS for tensor in made):
        return True
    if is_view(leaf):
        return False
    return any(t.buffer in index.lasting or index.last_touch[t.buffer] >= end for t in made)
