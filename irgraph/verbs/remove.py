"""``remove``: ops are removed; users of their results may use other tensors instead."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from msgspec import Struct
from msgspec.structs import replace

from irgraph.ir.edit import Edit
from irgraph.ir.effects import written_by
from irgraph.ir.graph import END, Graph, cached_per_graph
from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor, overlap
from irgraph.ops.live_out import waits
from irgraph.verbs.launch_order import barriers
from irgraph.verbs.refusal import RefusedError


class Removal(Struct, frozen=True):
    """Ops to remove together.

    Attributes:
        ops: the ops.
        swaps: pairs of tensors: users of the first use the second.
        zeroed: gradients of parameters that zeros replace, each with its parameter.
    """

    ops: tuple[Op, ...]
    swaps: tuple[tuple[Tensor, Tensor], ...] = ()
    zeroed: tuple[tuple[Tensor, Tensor], ...] = ()


def remove(graph: Graph, removals: Sequence[Removal]) -> Graph:
    """Remove ops and make the users of their results use others.

    Results without a substitute may still be in use: a script decides at its end. Check each
    removal with ``check_removal`` first.
    """
    edit = Edit(graph)
    for removal in removals:
        for op in removal.ops:
            edit.remove(op)
        for old, new in removal.swaps:
            _rename(edit, old, new)
        for gradient, parameter in removal.zeroed:
            _, maker = _makers(graph)[gradient.name][-1]
            # The optimizer still reads the gradient. Without the op, the loss does not depend on
            # the parameter, so that its true gradient is zero.
            zeros = replace(maker, name="aten.zeros_like", operands=(parameter,), attributes={})
            zeros = replace(
                zeros, results=(gradient,), written=frozenset(), notes={}, identity=object()
            )
            edit.insert(zeros, before=maker)
    return edit.commit()


def _rename(edit: Edit, old: Tensor, new: Tensor) -> None:
    """Replace uses of ``old`` by uses of ``new``, and its views by views of ``new``."""
    edit.rename(old, new)
    if old.buffer == new.buffer:
        return
    # A view keeps its distance from the tensor that it is a view of.
    shift = new.offset - old.offset
    for tensor in edit.graph.by_buffer.get(old.buffer, ()):
        if tensor.name != old.name:
            view = replace(tensor, buffer=new.buffer, offset=tensor.offset + shift)
            edit.rename(tensor, view)


@dataclass
class RemainingOps:
    """Leaves of a graph that remain after removals.

    Attributes:
        removed: the removed ops.
    """

    graph: Graph
    removed: set[Op] = field(default_factory=set)
    _accesses: dict[str, list[tuple[int, Op]]] = field(default_factory=dict)

    def drop(self, ops: Iterable[Op]) -> None:
        """Mark ops as removed."""
        self.removed.update(inner for op in ops for inner in op.walk())

    def leaves_after(self, position: int, buffer: str) -> Iterator[Op]:
        """Yield the leaves after a position that access a buffer, or whose effects are unknown."""
        accesses = self._accesses.setdefault(buffer, [*self.graph.touching.get(buffer, ())])
        # Only the end is cut, where chains of dead ops are removed; those in the middle are skipped
        # below. Such a shrinking list makes the removal of a chain linear in its length.
        while accesses and accesses[-1][1] in self.removed:
            accesses.pop()
        for candidates in (accesses, barriers(self.graph)):
            later_accesses = islice(
                candidates, bisect_right(candidates, position, key=_position), None
            )
            yield from (leaf for _, leaf in later_accesses if leaf not in self.removed)


def check_removal(graph: Graph, removal: Removal, remaining: RemainingOps | None = None) -> None:
    """Refuse removals that change the results of other ops; ``remaining`` lists those ops.

    Bytes that the ops write in place must not be read later, nor outlive the step. A substitute
    must have the same type; unless it is the very same bytes, no op may write it while the removed
    result is in use, nor write the removed result in place if others still read the substitute.
    """
    _check_known(graph, removal)
    _check_lost_writes(remaining or RemainingOps(graph), removal)
    result_names = {t.name for op in removal.ops for inner in op.walk() for t in inner.outputs}
    for old, new in removal.swaps:
        notes = [(removal.ops[0], "to be removed")]
        if old.name not in result_names or new.name in result_names:
            is_made = f"%{new.name} is one of its results"
            reason = (
                is_made if old.name in result_names else f"%{old.name} is not one of its results"
            )
            raise RefusedError(reason, notes)
        check_type(old, new, notes)
        _check_order(graph, removal, old, new)
        if (old.buffer, old.offset) == (new.buffer, new.offset):
            continue
        input_buffers = {
            t.buffer for op in removal.ops for t in op.inputs if t.name not in result_names
        }
        # The removed op's result is a view of, or was written into, memory that it was given:
        # others may use that memory by another name, and would not see the substitute.
        if old.buffer in input_buffers:
            reason = f"%{old.name} shares bytes with other tensors; %{new.name} does not"
            raise RefusedError(reason, notes)
        _check_writes(graph, removal, old, new)


def _check_known(graph: Graph, removal: Removal) -> None:
    """Refuse to remove waits, and ops with unknown effects."""
    opaque = _opaque_leaves(graph)
    for leaf in (leaf for op in removal.ops for leaf in op.leaves()):
        if waits(leaf):
            reason = "later ops may read what it waits for"
            raise RefusedError(reason, [(leaf, f"{leaf.name} waits")], of_order=True)
        if leaf in opaque:
            reason = f"{leaf.name} may have other effects than its results"
            raise RefusedError(reason, [(leaf, _opaque(leaf))], of_order=True)


@cached_per_graph
def _opaque_leaves(graph: Graph) -> frozenset[Op]:
    return frozenset(leaf for _, leaf in barriers(graph))


@cached_per_graph
def _makers(graph: Graph) -> Mapping[str, list[tuple[int, Op]]]:
    """Return the leaves that make a tensor, by its name, with their positions in launch order."""
    makers_by_name: dict[str, list[tuple[int, Op]]] = {}
    for i, leaf in enumerate(graph.leaves()):
        for tensor in leaf.outputs:
            makers_by_name.setdefault(tensor.name, []).append((i, leaf))
    return makers_by_name


@cached_per_graph
def _changing_buffers(graph: Graph) -> frozenset[str]:
    """Return the buffers that leaves write or may write in place, or that the step returns."""
    buffers = {tensor.buffer for tensor in graph.returned or ()}
    for leaf in graph.leaves():
        buffers.update(t.buffer for t in written_by(leaf))
    return frozenset(buffers.union(*({t.buffer for t in o.inputs} for _, o in barriers(graph))))


def is_order_independent(graph: Graph, removal: Removal) -> bool:
    """Return whether the legality of a removal is independent of the order of reads and writes.

    Such removals may be made together even if they give users the same tensor.
    """
    buffers = {tensor.buffer for swap in removal.swaps for tensor in swap}
    return buffers.isdisjoint(_changing_buffers(graph))


def _opaque(leaf: Op) -> str:
    return f"{leaf.name} has no body" if leaf.is_autograd else f"{leaf.name} has no schema"


def _check_order(graph: Graph, removal: Removal, old: Tensor, new: Tensor) -> None:
    """Refuse a substitute that is defined after the first user of the tensor that it replaces."""
    removed_ops = {inner for op in removal.ops for inner in op.walk()}
    accesses = graph.touching.get(old.buffer, ())
    uses = ((i, o) for i, o in accesses if o not in removed_ops and old in o.inputs)
    first, user = next(uses, (0, None))
    definitions = _makers(graph).get(new.name, ())
    makers = (o for i, o in definitions if i >= first and new in o.outputs)
    if user is not None and (maker := next(makers, None)) is not None:
        notes = [(user, f"{user.name} uses %{old.name}"), (maker, f"{maker.name} defines it")]
        raise RefusedError(f"%{new.name} is not defined yet where %{old.name} is used", notes)


def _sorted_accesses(graph: Graph, *tensors: Tensor) -> list[tuple[int, Op]]:
    """Return the leaves that access the buffers of some tensors, in order."""
    buffers = dict.fromkeys(tensor.buffer for tensor in tensors)
    return sorted({i: o for b in buffers for i, o in graph.touching.get(b, ())}.items())


def check_type(old: Tensor, new: Tensor, notes: Sequence[tuple[Op, str]]) -> None:
    """Refuse to replace a tensor by one of another type; ``notes`` are shown."""
    for attribute in ("dtype", "shape", "device", "strides"):
        before, after = getattr(old, attribute), getattr(new, attribute)
        if before != after:
            is_ = f"its {attribute} is {_as_text(after)}, not {_as_text(before)}"
            reason = f"%{new.name} cannot replace %{old.name}: {is_}"
            raise RefusedError(reason, notes)


def _as_text(value: object) -> str:
    return f"[{', '.join(map(str, value))}]" if isinstance(value, tuple) else str(value)


def _check_writes(graph: Graph, removal: Removal, old: Tensor, new: Tensor) -> None:
    if is_order_independent(graph, Removal((), ((old, new),))):
        return
    removed_ops = {inner for op in removal.ops for inner in op.walk()}
    accesses = _sorted_accesses(graph, old, new)
    # The last op that makes it: an op inside of another one (a call within an autograd node) makes
    # the same tensor twice.
    start = max(i for i, leaf in accesses if old in leaf.outputs)
    later_leaves = [leaf for i, leaf in accesses if i > start and leaf not in removed_ops]
    uses = [i for i, leaf in enumerate(later_leaves) if _touches(leaf, old.buffer)]
    other_uses = [i for i, leaf in enumerate(later_leaves) if _touches(leaf, new.buffer)]
    lasting = new.buffer in graph.lasting
    _check_streams(later_leaves, [later_leaves[i] for i in uses], old, new)
    _check_returned(graph, old, new)
    opaque = _opaque_leaves(graph)
    for i, leaf in enumerate(later_leaves[: uses[-1] + 1] if uses else ()):
        # An op with unknown effects may write all its operands.
        for tensor in leaf.inputs if leaf in opaque else written_by(leaf):
            notes = [(leaf, f"{leaf.name} writes %{tensor.name}")]
            if overlap(tensor, new):
                user = later_leaves[uses[-1]]
                notes += [] if user is graph.end else [(user, f"{user.name} still uses it")]
                reason = f"%{new.name} is written while %{old.name} is still in use"
                raise RefusedError(reason, notes, of_order=True)
            if tensor.buffer == old.buffer and (lasting or any(j >= i for j in other_uses)):
                reason = f"%{old.name} is written in place; that would write %{new.name}"
                raise RefusedError(reason, notes, of_order=True)


def _check_returned(graph: Graph, old: Tensor, new: Tensor) -> None:
    """Refuse to let a returned tensor share its bytes with another one that outlives the step."""
    returned = graph.returned or ()
    first = next((t for t in returned if t.buffer == old.buffer), None)
    if first is None:
        return
    if new.buffer in graph.lasting:
        role = graph.lasting[new.buffer]
        raise RefusedError(f"%{first.name} is returned, and would be the {role} %{new.name} itself")
    other = next((t for t in returned if t.buffer == new.buffer), None)
    if other is not None:
        raise RefusedError(f"%{first.name} and %{other.name} are returned, and would be one tensor")


def _check_streams(
    later_leaves: Sequence[Op], users: Sequence[Op], old: Tensor, new: Tensor
) -> None:
    """Refuse writes of the substitute on another stream that wait for none of its new users."""
    for leaf in later_leaves:
        writes = [t for t in written_by(leaf) if overlap(t, new)]
        user = next((u for u in users if u.name != END and u.stream != leaf.stream), None)
        if writes and user is not None:
            notes = [
                (leaf, f"{leaf.name} writes %{writes[0].name}"),
                (user, f"{user.name} uses it"),
            ]
            reason = f"%{new.name} is written on a different stream than %{old.name} is used on"
            raise RefusedError(reason, notes, of_order=True)


def _check_lost_writes(remaining: RemainingOps, removal: Removal) -> None:
    """Refuse to lose writes in place that other ops could observe."""
    graph = remaining.graph
    removed_ops = {inner for op in removal.ops for inner in op.walk()}
    swapped = {old.buffer for old, _ in removal.swaps}
    opaque = _opaque_leaves(graph)
    for leaf in (leaf for op in removal.ops for leaf in op.leaves()):
        for tensor in written_by(leaf):
            notes = [(leaf, f"{leaf.name} writes %{tensor.name}")]
            if tensor.buffer in graph.lasting:
                reason = f"%{tensor.name} outlives the step and would miss this write"
                raise RefusedError(reason, notes, of_order=True)
            readers = (
                o
                for o in remaining.leaves_after(graph.places[leaf], tensor.buffer)
                if o not in removed_ops and (o in opaque or _reads(o, tensor))
            )
            reader = next(readers, None)
            if reader is not None and tensor.buffer not in swapped:
                ends = reader is graph.end
                reads = "reads" if _reads(reader, tensor) else "may read"
                notes += [] if ends else [(reader, f"{reader.name} {reads} it")]
                verb = "returned" if ends else "still read"
                reason = f"what is written to %{tensor.name} is {verb}"
                raise RefusedError(reason, notes, of_order=True)


def _position(access: tuple[int, Op]) -> int:
    return access[0]


def _reads(leaf: Op, tensor: Tensor) -> bool:
    return any(overlap(tensor, t) for t in leaf.inputs)


def _touches(leaf: Op, buffer: str) -> bool:
    return any(t.buffer == buffer for t in leaf.inputs)
