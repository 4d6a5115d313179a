"""Batches of replacements of forward ops and their backward, applied together."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace as changed

from irgraph.ir.edit import Edit
from irgraph.ir.effects import effects
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor
from irgraph.verbs.autograd.companions import companion_calls, intermediate_calls
from irgraph.verbs.autograd.nodes import Swap, exchange_nodes, surrounding_extent, with_swaps
from irgraph.verbs.autograd.splice import Splice, splice
from irgraph.verbs.autograd.tensor_mapping import AdjacentCallError
from irgraph.verbs.disjoint_regions import DisjointRegions
from irgraph.verbs.fuse import Fusion, collect
from irgraph.verbs.launch_order import barriers, declared
from irgraph.verbs.refusal import RefusedError
from irgraph.verbs.sequence import Extent, extent

MAX_NEIGHBOURS = 16
"""Maximum number of rounds in which companions are added to a replacement."""

LEGAL = "its backward was matched with autograd's call by call, and regenerated"

V = TypeVar("V")


class Replacements(Struct, frozen=True):
    """The result of replacing forward ops and their backward.

    Attributes:
        fusion: the new ops; its graph is the graph before the replacement.
        companions: new versions of the other ops that are called again, by the old op.
    """

    fusion: Fusion
    companions: Mapping[Op, Op]


class ReplacementBatch:
    """A graph, and pending replacements of its forward ops and their backward.

    Each replacement is checked in the graph without the pending ones. The result equals individual
    replacements, provided that none queries a buffer that a pending one accesses, nor overlaps the
    extent of a pending one: otherwise the pending ones are applied first.
    """

    def __init__(self, graph: Graph) -> None:
        self._start(graph)

    def _start(self, graph: Graph) -> None:
        self._original = graph
        self._queried: set[str] = set()
        self.graph = _recording_queries(graph, self._queried)
        self._edit = Edit(self.graph)
        self._occupied, self._examined = DisjointRegions(), DisjointRegions()
        self._touched: set[str] = set()
        self._swaps: list[Swap] = []
        self._declared_names = frozenset(declaration.tensor.name for declaration in graph.tensors)
        self._tensor_names = set(self.graph.by_name)
        self._buffer_names = {tensor.buffer for tensor in self.graph.by_name.values()}

    def commit(self) -> Graph:
        """Apply all pending replacements, and return the graph."""
        if not self._edit.empty:
            self._start(with_swaps(self._edit.commit(), self._swaps))
        return self._original

    def flush_near(self, ops: Sequence[Op]) -> Graph:
        """Return a graph without pending replacements in the extent of some ops.

        The ops may be part of a graph with pending replacements, or removed already.
        """
        paths = self.graph.paths
        if any(op not in paths for op in ops) or self._occupied.meets(extent(self.graph, ops)):
            self.commit()
        return self.graph

    def replace(
        self, members: Sequence[Op], new: Sequence[Op], *, caller: str, assuming: str = ""
    ) -> Replacements | None:
        """Replace forward ops with ``new``, and their backward with the backward of ``new``.

        Results of ``new`` have the names of the results that they replace. torch's autograd derives
        both backwards. If a result or a gradient would have another layout, the ops that use or
        define this tensor are called again on it as well. Returns ``None`` if pending replacements
        had to be applied first: the ops may have changed.

        Raises ``RefusedError`` if the backward of the members is not found completely, if other ops
        use intermediate results of the members or of their backward, if the gradient of an input
        would be lost or another one needed, or if a tensor that a backward reads is written before
        it runs.
        """
        self._queried.clear()
        self._examined = DisjointRegions()
        try:
            replacements = self._collect(self._splice(members, new), caller, assuming)
        except RefusedError:
            if self._is_clear():
                raise
            # It may be refused only because of pending replacements: apply them and try again.
            replacements = None
        if replacements is None:
            self.commit()
        return replacements

    def _is_clear(self) -> bool:
        """Return whether no pending replacement affects the queried buffers and extents."""
        return self._queried.isdisjoint(self._touched) and not self._occupied.overlaps(
            self._examined
        )

    def _splice(self, members: Sequence[Op], new: Sequence[Op]) -> Splice:
        """Return the result of a replacement together with its companions."""
        graph = self.graph
        before: list[Op] = []
        after: list[Op] = []
        # In autograd a gradient has the layout of its tensor. If a result of the new ops has
        # another layout, the adjacent call becomes a companion and is derived again, which may
        # change the layout of further tensors in turn.
        for count in range(MAX_NEIGHBOURS):
            old = sorted([*members, *before, *after], key=lambda op: graph.paths[op])
            self._examined.add(extent(graph, old))
            try:
                return splice(
                    graph, old, [*before, *new, *after], self._tensor_names, self._buffer_names
                )
            except AdjacentCallError as error:
                if count == MAX_NEIGHBOURS - 1:
                    raise
                (before if error.gradient else after).extend(companion_calls(graph, old, error))
            later_results = {t.name for op in (*members, *after) for t in op.outputs}
            for op in intermediate_calls(graph, [*members, *before, *after]):
                is_later = any(t.name in later_results for t in op.inputs)
                (after if is_later else before).append(op)
                later_results |= {t.name for t in op.outputs} if is_later else set()
            for side in (before, after):
                side.sort(key=lambda op: graph.paths[op])
        raise AssertionError("the last round returns or raises")

    def _collect(self, spliced: Splice, caller: str, assuming: str) -> Replacements | None:
        """Collect a replacement; return ``None`` if pending ones must be applied first."""
        graph, edit = self.graph, Edit(self.graph)
        first = collect(edit, [spliced.members], spliced.forward, caller=caller, assuming=assuming)
        front, back = extent(graph, spliced.members), surrounding_extent(graph, spliced.leaves)
        # One edit cannot change the same op twice: if the extents of the forward and of its
        # backward meet, the forward is replaced first, in a separate edit.
        is_separate = not DisjointRegions(front).meets(back)
        is_alone = not is_separate or self._is_opaque(spliced)
        self._examined.add(back)
        if not self._is_clear() or (is_alone and not self._edit.empty):
            return None
        edit = edit if is_separate else Edit(edit.commit())
        nodes = exchange_nodes(edit, spliced.leaves, spliced.nodes, caller)
        if is_alone:
            self._start(with_swaps(edit.commit(), spliced.swaps))
        else:
            self._edit.add(edit)
            self._record(spliced, front, back)
        companions = {op: first.ops[i] for i, op in spliced.companions}
        legal = f"{first.legal}; {LEGAL}"
        return Replacements(
            Fusion(graph, (*first.ops, *nodes), (), legal, first.assumed), companions
        )

    def _is_opaque(self, spliced: Splice) -> bool:
        """Return whether a removed or new op has unknown effects."""
        schema_names, opaque = declared(self.graph), {leaf for _, leaf in barriers(self.graph)}
        old = (leaf for op in (*spliced.members, *spliced.leaves) for leaf in op.leaves())
        new = (leaf for op in (*spliced.forward, *spliced.nodes) for leaf in op.leaves())
        return any(o in opaque for o in old) or any(effects(o, schema_names).barrier for o in new)

    def _record(self, spliced: Splice, *extents: Extent) -> None:
        """Record the buffers and extents of a replacement, and the names it uses and frees."""
        graph = self.graph
        old, new = (
            _all_ops((*spliced.members, *spliced.leaves)),
            _all_ops((*spliced.forward, *spliced.nodes)),
        )
        # A swapped tensor gets the name and buffer of another one: all of its users count as
        # changed, although none of them is replaced.
        swapped = {tensor.buffer for tensor, _ in spliced.swaps}
        moved_leaves = (leaf for buffer in swapped for _, leaf in graph.touching[buffer])
        for occupied in (
            *extents,
            *(extent(graph, [o]) for o in moved_leaves if o is not graph.end),
        ):
            self._occupied.add(occupied)
        self._swaps += spliced.swaps
        pairs = [tensor for pair in spliced.swaps for tensor in pair]
        tensors = [*pairs, *(t for op in (*old, *new) for t in (*op.inputs, *op.outputs))]
        self._touched.update(tensor.buffer for tensor in tensors)
        removed = set(old)
        removed_tensors = {t for op in old for t in op.outputs if not self._is_defined(t, removed)}
        self._tensor_names -= {tensor.name for tensor in removed_tensors}
        remaining = {
            t.buffer
            for t in tensors
            if any(o.name in self._tensor_names for o in graph.by_buffer.get(t.buffer, ()))
        }
        self._buffer_names -= {tensor.buffer for tensor in removed_tensors} - remaining | swapped
        self._tensor_names.update(tensor.name for op in new for tensor in op.outputs)
        self._buffer_names.update(tensor.buffer for op in new for tensor in op.outputs)

    def _is_defined(self, tensor: Tensor, removed: Collection[Op]) -> bool:
        """Return whether a tensor is still defined without the removed ops."""
        graph = self.graph
        leaves = (leaf for _, leaf in graph.touching[tensor.buffer] if leaf not in removed)
        is_result = any(t.name == tensor.name for leaf in leaves for t in leaf.outputs)
        return is_result or tensor.name in self._declared_names


def _all_ops(ops: Sequence[Op]) -> list[Op]:
    return [inner for op in ops for inner in op.walk()]


class _QueriedBuffers(Mapping[str, V]):
    """A mapping from buffers that records the queried buffers."""

    def __init__(self, value_by_buffer: Mapping[str, V], queried: set[str]) -> None:
        self.value_by_buffer, self.queried = value_by_buffer, queried

    def __getitem__(self, buffer: str) -> V:
        self.queried.add(buffer)
        return self.value_by_buffer[buffer]

    def __iter__(self) -> Iterator[str]:
        return iter(self.value_by_buffer)

    def __len__(self) -> int:
        return len(self.value_by_buffer)


def _recording_queries(graph: Graph, queried: set[str]) -> Graph:
    """Return a copy of a graph that records the buffers whose users are queried."""
    # The cached properties of the graph are shared; only ``touching`` is wrapped, because every
    # query about a buffer uses it.
    recording = changed(graph)
    recording.__dict__.update(graph.__dict__)
    recording.__dict__["touching"] = _QueriedBuffers(graph.touching, queried)
    return recording
