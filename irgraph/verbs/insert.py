"""``insert``: new ops next to others; later ops may use their results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from msgspec import Struct
from msgspec.structs import replace

from irgraph.ir.edit import Edit, map_tensors, map_value
from irgraph.ir.effects import written_by
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor
from irgraph.verbs.extra_accesses import ExtraAccesses
from irgraph.verbs.refusal import RefusedError
from irgraph.verbs.remove import check_type

COMMUNICATION = ("c10d", "c10d_functional", "_c10d_functional")
"""Libraries whose ops communicate with other processes."""


def communicates(op: Op) -> bool:
    """Return whether an op communicates with other processes."""
    return op.name.partition(".")[0] in COMMUNICATION


class Insertion(Struct, frozen=True):
    """New ops next to an op of the graph.

    Attributes:
        ops: the new ops, in launch order.
        anchor: the op next to which they are inserted, or else the op that called it.
        after: whether after it.
        swaps: pairs of tensors: later users of the first use the second.
    """

    ops: tuple[Op, ...]
    anchor: Op
    after: bool = True
    swaps: tuple[tuple[Tensor, Tensor], ...] = ()


def insert(graph: Graph, insertions: Sequence[Insertion]) -> tuple[Graph, tuple[Op, ...]]:
    """Insert new ops, and return them as they are in the new graph.

    Check each insertion with ``check_insertion`` first.
    """
    edit = Edit(graph)
    swaps: dict[Op, tuple[tuple[Tensor, Tensor], ...]] = {}
    new: list[Op] = []
    for insertion in insertions:
        anchor = outermost_call(graph, insertion.anchor)
        new_ops = [_with_context_of(op, insertion.anchor) for op in insertion.ops]
        for op in new_ops:
            edit.insert(op, after=anchor) if insertion.after else edit.insert(op, before=anchor)
        swaps[new_ops[-1]] = insertion.swaps
        new += new_ops
    result = edit.commit()
    if not any(swaps.values()):
        return result, tuple(new)
    swapping = _Swapping(swaps, {d.tensor.name for d in result.tensors}, set(new))
    ops = tuple(map(swapping.rebuild, result.ops))
    returned = map_value(result.returned, swapping.tensor)
    return replace(result, ops=ops, returned=returned), tuple(swapping.inserted)


def _with_context_of(new: Op, anchor: Op) -> Op:
    return replace(
        new, thread=anchor.thread, stream=anchor.stream, module=anchor.module, phase=anchor.phase
    )


def outermost_call(graph: Graph, op: Op) -> Op:
    """Return the outermost op that called an op, except labels and autograd nodes, or the op."""
    body = graph.ops
    for position in graph.paths.get(op, ()):
        outer = body[position]
        if not outer.is_annotation and not outer.is_autograd:
            return outer
        body = outer.body
    return op


@dataclass
class _Swapping:
    """Walks a graph in launch order and changes the ops after each insertion."""

    swaps: Mapping[Op, tuple[tuple[Tensor, Tensor], ...]]
    defined: set[str]
    new: set[Op]
    inserted: list[Op] = field(default_factory=list)
    names: dict[str, Tensor] = field(default_factory=dict)
    buffers: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def rebuild(self, op: Op) -> Op:
        body, swaps = op.body, self.swaps.get(op, ())
        inner_ops = tuple(map(self.rebuild, body))
        rewritten = map_tensors(replace(op, body=()), self.tensor) if self.names else op
        self.defined.update(t.name for t in op.outputs)
        for old, new in swaps:
            self.names[old.name] = new
            if old.buffer != new.buffer:
                self.buffers[old.buffer] = (old, new)
        if op in self.new:
            self.inserted.append(rewritten)
        return replace(rewritten, body=inner_ops) if body else rewritten

    def tensor(self, tensor: Tensor) -> Tensor:
        """Return the tensor that replaces a tensor from this position on."""
        if tensor.name in self.names:
            return self.names[tensor.name]
        if tensor.buffer in self.buffers and tensor.name not in self.defined:
            old, new = self.buffers[tensor.buffer]
            offset = tensor.offset + new.offset - old.offset
            self.names[tensor.name] = replace(tensor, buffer=new.buffer, offset=offset)
            return self.names[tensor.name]
        return tensor


def check_insertion(graph: Graph, insertion: Insertion) -> None:
    """Refuse uses of a tensor that is not defined yet, and swaps that would not be valid.

    New ops other than collectives must not write bytes that other ops read: collectives are
    inserted for their writes. A substitute must have the same type; the first of a pair must not be
    read or written through another view that is older than the insertion, nor be written if it
    outlives the step.
    """
    cut = _cut(graph, insertion)
    defined = {d.tensor.name for d in graph.tensors}
    for op in insertion.ops:
        for tensor in op.inputs:
            if tensor.name not in defined and not _is_defined(graph, tensor, cut):
                accesses = graph.touching.get(tensor.buffer, ())
                makers = [leaf for i, leaf in accesses if i >= cut and tensor in leaf.outputs]
                notes = [(leaf, f"{leaf.name} defines it") for leaf in makers[:1]]
                raise RefusedError(f"%{tensor.name} is not defined yet at that point", notes)
        defined |= {t.name for t in op.outputs}
    local = [op for op in insertion.ops if not communicates(op)]
    ExtraAccesses(graph, local).check(cut, cut - 1)
    for old, new in insertion.swaps:
        check_type(old, new, [(insertion.anchor, "")])
        _check_views(old, new, graph, cut, defined)


def _cut(graph: Graph, insertion: Insertion) -> int:
    """Return the number of leaves before an insertion."""
    leaves = list(outermost_call(graph, insertion.anchor).leaves())
    return graph.places[leaves[0]] + (len(leaves) if insertion.after else 0)


def _is_defined(graph: Graph, tensor: Tensor, cut: int) -> bool:
    """Return whether one of the first ``cut`` leaves makes a tensor."""
    accesses = graph.touching.get(tensor.buffer, ())
    return any(i < cut and any(t.name == tensor.name for t in o.outputs) for i, o in accesses)


def _check_views(old: Tensor, new: Tensor, graph: Graph, cut: int, defined: set[str]) -> None:
    if old.buffer == new.buffer:
        return
    lasting = old.buffer in graph.lasting
    for leaf in (leaf for i, leaf in graph.touching.get(old.buffer, ()) if i >= cut):
        for tensor in (t for t in leaf.inputs if t.buffer == old.buffer):
            is_known = tensor.name in defined or _is_defined(graph, tensor, cut)
            if lasting and leaf is graph.end:
                raise RefusedError(f"%{tensor.name} is returned, and would be a copy")
            if tensor.name != old.name and is_known:
                notes = [] if leaf is graph.end else [(leaf, f"{leaf.name} uses %{tensor.name}")]
                reason = f"%{tensor.name} shares bytes with %{old.name} and is still used"
                raise RefusedError(reason, notes)
            if lasting and tensor in written_by(leaf):
                notes = [(leaf, f"{leaf.name} writes %{tensor.name}")]
                reason = f"%{old.name} outlives the step, and %{new.name} would be written instead"
                raise RefusedError(reason, notes)
