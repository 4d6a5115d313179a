"""Forward ops that become others with their backward: gathered one by one, and made together."""

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
from irgraph.verbs.autograd.tensor_mapping import LayoutError
from irgraph.verbs.disjoint_regions import DisjointRegions
from irgraph.verbs.fuse import Fusion, collect
from irgraph.verbs.launch_order import barriers, declared
from irgraph.verbs.refusal import RefusedError
from irgraph.verbs.sequence import Extent, extent

MAX_NEIGHBOURS = 16
"""How often ops beside the members may be drawn in."""

LEGAL = "its backward was matched with autograd's call by call, and regenerated"

V = TypeVar("V")


class Replacements(Struct, frozen=True):
    """What becomes of forward ops and their backward.

    Attributes:
        fusion: the new ops; its graph is the one before.
        again: by ``id``, ops beside the members that are called anew, as they will be.
    """

    fusion: Fusion
    companions: Mapping[int, Op]


class ReplacementBatch:
    """A graph, and replacements of forward ops and their backward that are not made in it yet.

    Each is judged by the graph as it was. That gives what making them one by one gives, as long as
    none asks about a buffer that one before it touches, nor lies where one before it changes ops:
    else those before it are made first.
    """

    def __init__(self, graph: Graph) -> None:
        self._start(graph)

    def _start(self, graph: Graph) -> None:
        self._whole = graph
        self._asked: set[str] = set()
        self.graph = _recording_queries(graph, self._asked)
        self._edit = Edit(self.graph)
        self._places, self._looked = DisjointRegions(), DisjointRegions()
        self._touched: set[str] = set()
        self._swaps: list[Swap] = []
        self._given = frozenset(declaration.tensor.name for declaration in graph.tensors)
        self._taken = set(self.graph.by_name)
        self._held = {tensor.buffer for tensor in self.graph.by_name.values()}

    def commit(self) -> Graph:
        """Make all that was gathered, and return the graph."""
        if not self._edit.empty:
            self._start(with_swaps(self._edit.commit(), self._swaps))
        return self._whole

    def flush_near(self, ops: Sequence[Op]) -> Graph:
        """Return a graph in which nothing is left to be made where some ops stand.

        They may be ops of a graph that is yet to be made, or of none any more.
        """
        paths = self.graph.paths
        if any(id(op) not in paths for op in ops) or self._places.meets(extent(self.graph, ops)):
            self.commit()
        return self.graph

    def replace(
        self, members: Sequence[Op], new: Sequence[Op], *, caller: str, assuming: str = ""
    ) -> Replacements | None:
        """Put ``new`` in the place of forward ops, and its backward in the place of theirs.

        What ``new`` makes bears the names of what it stands for. Both backwards are what torch's
        autograd makes. Where a result or a gradient would be laid out otherwise, the ops that use
        or made that tensor are called anew on it, too. Returns ``None`` where what was gathered had
        to be made first: the ops may be others now.

        Raises ``RefusedError`` where the backward of the members is not found as a whole, where
        others use what only it or they make, where the gradient of an input would be lost or
        another one needed, or where what a backward reads is written before it runs.
        """
        self._asked.clear()
        self._looked = DisjointRegions()
        try:
            replacements = self._collect(self._splice(members, new), caller, assuming)
        except RefusedError:
            if self._is_clear():
                raise
            # It may be refused only because what was gathered is not made yet: make that, and ask
            # again.
            replacements = None
        if replacements is None:
            self.commit()
        return replacements

    def _is_clear(self) -> bool:
        """Return whether nothing that is yet to be made bears on what was asked."""
        return self._asked.isdisjoint(self._touched) and not self._places.overlaps(self._looked)

    def _splice(self, members: Sequence[Op], new: Sequence[Op]) -> Splice:
        """Return what comes of a replacement, with the ops that are drawn in."""
        graph = self.graph
        before: list[Op] = []
        after: list[Op] = []
        # Autograd lays a gradient out like its tensor. Where the new ops lay a result out
        # otherwise, the call beside it is drawn in and made anew, which may change a layout further
        # out in turn.
        for count in range(MAX_NEIGHBOURS):
            old = sorted([*members, *before, *after], key=lambda op: graph.paths[id(op)])
            self._looked.add(extent(graph, old))
            try:
                return splice(graph, old, [*before, *new, *after], self._taken, self._held)
            except LayoutError as error:
                if count == MAX_NEIGHBOURS - 1:
                    raise
                (before if error.gradient else after).extend(companion_calls(graph, old, error))
            later_results = {t.name for op in (*members, *after) for t in op.outputs}
            for op in intermediate_calls(graph, [*members, *before, *after]):
                is_later = any(t.name in later_results for t in op.inputs)
                (after if is_later else before).append(op)
                later_results |= {t.name for t in op.outputs} if is_later else set()
            for side in (before, after):
                side.sort(key=lambda op: graph.paths[id(op)])
        raise AssertionError("the last round returns or raises")

    def _collect(self, spliced: Splice, caller: str, assuming: str) -> Replacements | None:
        """Collect a replacement; return ``None`` where what was gathered must be made first."""
        graph, edit = self.graph, Edit(self.graph)
        first = collect(edit, [spliced.members], spliced.forward, caller=caller, assuming=assuming)
        front, back = extent(graph, spliced.members), surrounding_extent(graph, spliced.leaves)
        # One edit cannot change the same place twice: where the forward and its backward lie
        # together, the forward is made first, and alone.
        is_separate = not DisjointRegions(front).meets(back)
        is_alone = not is_separate or self._is_opaque(spliced)
        self._looked.add(back)
        if not self._is_clear() or (is_alone and not self._edit.empty):
            return None
        edit = edit if is_separate else Edit(edit.commit())
        nodes = exchange_nodes(edit, spliced.leaves, spliced.nodes, caller)
        if is_alone:
            self._start(with_swaps(edit.commit(), spliced.swaps))
        else:
            self._edit.add(edit)
            self._record(spliced, front, back)
        companions = {id(op): first.ops[i] for i, op in spliced.companions}
        legal = f"{first.legal}; {LEGAL}"
        return Replacements(
            Fusion(graph, (*first.ops, *nodes), (), legal, first.assumed), companions
        )

    def _is_opaque(self, spliced: Splice) -> bool:
        """Return whether an op that goes or comes could do anything."""
        schema_names, opaque = declared(self.graph), {id(leaf) for _, leaf in barriers(self.graph)}
        old = (leaf for op in (*spliced.members, *spliced.leaves) for leaf in op.leaves())
        new = (leaf for op in (*spliced.forward, *spliced.nodes) for leaf in op.leaves())
        return any(id(o) in opaque for o in old) or any(
            effects(o, schema_names).barrier for o in new
        )

    def _record(self, spliced: Splice, *extents: Extent) -> None:
        """Note what a replacement touches, and which names it takes and sets free."""
        graph = self.graph
        old, new = (
            _all_ops((*spliced.members, *spliced.leaves)),
            _all_ops((*spliced.forward, *spliced.nodes)),
        )
        # A swapped tensor takes the name and buffer of another one, so that all of its users count
        # as touched, although no op of theirs is replaced.
        swapped = {tensor.buffer for tensor, _ in spliced.swaps}
        moved_leaves = (leaf for buffer in swapped for _, leaf in graph.touching[buffer])
        for occupied in (
            *extents,
            *(extent(graph, [o]) for o in moved_leaves if o is not graph.end),
        ):
            self._places.add(occupied)
        self._swaps += spliced.swaps
        pairs = [tensor for pair in spliced.swaps for tensor in pair]
        tensors = [*pairs, *(t for op in (*old, *new) for t in (*op.inputs, *op.outputs))]
        self._touched.update(tensor.buffer for tensor in tensors)
        removed = {id(op) for op in old}
        removed_tensors = {t for op in old for t in op.outputs if not self._is_defined(t, removed)}
        self._taken -= {tensor.name for tensor in removed_tensors}
        remaining = {
            t.buffer
            for t in tensors
            if any(o.name in self._taken for o in graph.by_buffer.get(t.buffer, ()))
        }
        self._held -= {tensor.buffer for tensor in removed_tensors} - remaining | swapped
        self._taken.update(tensor.name for op in new for tensor in op.outputs)
        self._held.update(tensor.buffer for op in new for tensor in op.outputs)

    def _is_defined(self, tensor: Tensor, removed: Collection[int]) -> bool:
        """Return whether a tensor is there without some ops."""
        graph = self.graph
        leaves = (leaf for _, leaf in graph.touching[tensor.buffer] if id(leaf) not in removed)
        is_result = any(t.name == tensor.name for leaf in leaves for t in leaf.outputs)
        return is_result or tensor.name in self._given


def _all_ops(ops: Sequence[Op]) -> list[Op]:
    return [inner for op in ops for inner in op.walk()]


class _QueriedBuffers(Mapping[str, V]):
    """What is known of buffers, which notes those that it is asked about."""

    def __init__(self, value_by_buffer: Mapping[str, V], queried: set[str]) -> None:
        self.known, self.asked = value_by_buffer, queried

    def __getitem__(self, buffer: str) -> V:
        self.asked.add(buffer)
        return self.known[buffer]

    def __iter__(self) -> Iterator[str]:
        return iter(self.known)

    def __len__(self) -> int:
        return len(self.known)


def _recording_queries(graph: Graph, queried: set[str]) -> Graph:
    """Return the same graph, which notes the buffers whose users are asked for."""
    # What the graph remembers of itself is shared, so that asking it twice costs nothing; only
    # ``touching`` is wrapped, since every question about a buffer goes through it.
    recording = changed(graph)
    recording.__dict__.update(graph.__dict__)
    recording.__dict__["touching"] = _QueriedBuffers(graph.touching, queried)
    return recording
