"""``remove``: ops go; who used their result may use another tensor instead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from irgraph.ir.edit import Edit
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor, overlap
from irgraph.verbs.refusal import RefusedError


@dataclass(frozen=True)
class Removal:
    """Ops to take out together; users of ``old`` use ``new`` from then on."""

    ops: tuple[Op, ...]
    old: Tensor | None = None
    new: Tensor | None = None


def remove(graph: Graph, removals: Sequence[Removal]) -> Graph:
    """Take ops out and let the users of their results use others.

    Results without a substitute may still be in use: a script decides at its end. Check each
    removal with ``check_removal`` first.
    """
    edit = Edit(graph)
    for removal in removals:
        for op in removal.ops:
            edit.remove(op)
        if removal.old is not None and removal.new is not None:
            _rename(edit, removal.old, removal.new)
    return edit.commit()


def _rename(edit: Edit, old: Tensor, new: Tensor) -> None:
    edit.rename(old, new)
    if old.buffer == new.buffer:
        return
    shift = new.offset - old.offset
    for tensor in edit.graph.by_name.values():
        if tensor.buffer == old.buffer and tensor.name != old.name:
            moved = replace(tensor, buffer=new.buffer, offset=tensor.offset + shift)
            edit.rename(tensor, moved)


def check_removal(graph: Graph, removal: Removal) -> None:
    """Refuse a rewiring that would change what users see.

    The substitute must have the same type; where it is not the very same bytes, nobody may write
    it while the removed result is in use, and nobody may write the removed result in place.
    """
    old, new = removal.old, removal.new
    if old is None or new is None:
        return
    for what in ("dtype", "shape", "device", "strides"):
        before, after = getattr(old, what), getattr(new, what)
        if before != after:
            raise RefusedError(
                f"%{new.name} cannot stand for %{old.name}: its {what} is {after}, not {before}",
                [(removal.ops[0], "to be removed")],
            )
    if (old.buffer, old.offset) == (new.buffer, new.offset):
        return
    inside = {t.buffer for op in removal.ops for t in op.inputs}
    if old.buffer in inside:
        raise RefusedError(
            f"%{old.name} lies in bytes that other tensors hold; %{new.name} does not",
            [(removal.ops[0], "to be removed")],
        )
    _check_writes(graph, removal, old, new)


def _check_writes(graph: Graph, removal: Removal, old: Tensor, new: Tensor) -> None:
    gone = {id(inner) for op in removal.ops for inner in op.walk()}
    leaves = list(graph.leaves())
    start = max(i for i, leaf in enumerate(leaves) if id(leaf) in gone)
    later = leaves[start + 1 :]
    uses = [i for i, leaf in enumerate(later) if _touches(leaf, old.buffer)]
    others = [i for i, leaf in enumerate(later) if _touches(leaf, new.buffer)]
    lasting = any(declared.tensor.buffer == new.buffer for declared in graph.tensors)
    for i, leaf in enumerate(later[: uses[-1] + 1] if uses else ()):
        for tensor in (t for t in leaf.inputs if t.name in leaf.written):
            told = [(leaf, f"{leaf.name} writes %{tensor.name}")]
            if overlap(tensor, new):
                told.append((later[uses[-1]], f"{later[uses[-1]].name} still uses it"))
                reason = f"%{new.name} is written while %{old.name} is still in use"
                raise RefusedError(reason, told, of_order=True)
            if tensor.buffer == old.buffer and (lasting or any(j >= i for j in others)):
                reason = f"%{old.name} is written in place; that would write %{new.name}"
                raise RefusedError(reason, told, of_order=True)


def _touches(leaf: Op, buffer: str) -> bool:
    return any(t.buffer == buffer for t in leaf.inputs)
