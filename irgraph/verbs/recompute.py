"""``recompute``: forward ops are repeated for the backward pass, which then holds less memory."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from irgraph.ir.edit import Edit, free_name, map_tensors, names_of
from irgraph.ir.effects import effects, written_by
from irgraph.ir.graph import Graph, cached_per_graph
from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor, overlap
from irgraph.verbs.launch_order import barriers, declared
from irgraph.verbs.refusal import RefusedError


@dataclass(frozen=True)
class RecomputeResult:
    """Result of ``recompute``: the graph, the copies, and the bytes no longer held for them."""

    graph: Graph
    ops: tuple[Op, ...]
    nbytes: int


class NothingToRecomputeError(RefusedError):
    """A segment contains no op to recompute."""


def recompute(graph: Graph, segment: Sequence[Op], is_own: Callable[[Op], bool]) -> RecomputeResult:
    """Repeat forward ops just before the backward pass first reads their results.

    Copied are the ops whose results are read only by backward leaves of the segment (``is_own``),
    and the ops that those need in turn; the backward pass reads the copies instead. Results that
    others read in the backward pass stay in memory, and so do results of ops that draw random
    numbers or write to memory from outside. Raises ``NothingToRecomputeError`` if no op can be
    repeated, and ``RefusedError`` if tensors that the copies would read are written in between.
    """
    work = Recomputing(graph)
    ops, nbytes = work.add(segment, is_own)
    return RecomputeResult(work.commit(), ops, nbytes)


class Recomputing:
    """A graph, and segments to repeat in it, as ``recompute`` does.

    Segments whose memory no copy reads are judged by the original graph, and rewritten together.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._start()

    def _start(self) -> None:
        self.edit = Edit(self.graph)
        self.taken = names_of(self.graph)
        self.changes: dict[Op, list[_CopyNames]] = {}
        self.read: set[str] = set()

    def add(
        self, segment: Sequence[Op], is_own: Callable[[Op], bool]
    ) -> tuple[tuple[Op, ...], int]:
        """Collect a segment; return the copies, and the bytes that it need no longer hold."""
        plan = _RecomputePlan(self.graph, segment, is_own)
        # An earlier segment's copies read memory that this one would no longer hold: they are made
        # first, so that this segment sees them as readers.
        if not self.read.isdisjoint(plan.owned):
            self.commit()
            plan = _RecomputePlan(self.graph, segment, is_own)
        buffers = [
            buffer for buffer in plan.owned if plan.readers(buffer) and plan.is_repeatable(buffer)
        ]
        if not buffers:
            reason = "the backward pass reads nothing that could be computed once more for it alone"
            raise NothingToRecomputeError(reason, [(op, "") for op in segment[:1]])
        ops = plan.ops(buffers)
        readers = [leaf for buffer in buffers for leaf in plan.readers(buffer)]
        # As late as possible: only memory held from the copies to the backward's last read
        # remains.
        first = min(readers, key=lambda leaf: self.graph.places[leaf])
        _check_unwritten(self.graph, ops, plan.copied, self.graph.places[first])
        copy_names = _CopyNames(
            self.taken, plan.copied, {t.name for op in ops for t in _results([op])}
        )
        outer = _outermost(self.graph)[first]
        copies = tuple(_run_at(map_tensors(op, copy_names.tensor), outer, first) for op in ops)
        for op in copies:
            self.edit.insert(op, before=outer)
            self.read.update(t.buffer for leaf in op.leaves() for t in leaf.inputs)
        for key in set(readers):
            self.changes.setdefault(key, []).append(copy_names)
        by_buffer = self.graph.by_buffer
        return copies, sum(max(t.extent[1] for t in by_buffer[buffer]) for buffer in buffers)

    def commit(self) -> Graph:
        """Commit all collected changes, and return the graph."""
        if self.changes:
            committed = self.edit.commit()
            ops = tuple(_rewire(op, self.changes) for op in committed.ops)
            self.graph = replace(committed, ops=ops)
            self._start()
        return self.graph


@cached_per_graph
def _outermost(graph: Graph) -> Mapping[Op, Op]:
    """Return the outermost op around each leaf."""
    return {leaf: op for op in graph.top_level() for leaf in op.leaves()}


def _results(ops: Iterable[Op]) -> list[Tensor]:
    return [t for op in ops for leaf in op.leaves() for t in leaf.outputs]


@dataclass
class _RecomputePlan:
    """Plan of the buffers of a segment that can be computed again.

    Attributes:
        owned: buffers that its ops allocate.
        copied: buffers that its copies make.
    """

    graph: Graph
    segment: Sequence[Op]
    is_own: Callable[[Op], bool]
    copied: set[str] = field(default_factory=set)
    is_repeatable_by_buffer: dict[str, bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.inside = {leaf for op in self.segment for leaf in op.leaves()}
        opaque = {leaf for _, leaf in barriers(self.graph)}
        self.opaque = {op for op in self.segment if any(o in opaque for o in op.leaves())}
        result_names = {t.name for t in _results(self.segment)}
        self.names = result_names
        input_buffers = {
            t.buffer for op in self.segment for t in op.inputs if t.name not in result_names
        }
        # Memory that comes from outside, or that is read after the step, is resident in any case.
        lasting_buffers = (
            {t.buffer for t in self.graph.returned or ()}
            | self.graph.lasting.keys()
            | input_buffers
        )
        self.owned = [
            b
            for b in dict.fromkeys(t.buffer for t in _results(self.segment))
            if b not in lasting_buffers
        ]

    def outside_leaves(self, buffer: str) -> list[Op]:
        """Return the leaves outside of the segment that access a buffer."""
        accesses = self.graph.touching.get(buffer, ())
        return [leaf for _, leaf in accesses if leaf not in self.inside]

    def readers(self, buffer: str) -> list[Op]:
        """Return the backward leaves that read a buffer, if all are the segment's."""
        backward_leaves = [leaf for leaf in self.outside_leaves(buffer) if leaf.phase == "backward"]
        # Views of the buffer that the backward makes itself follow the copy; a view that forward
        # ops outside of the segment made would still show the old memory.
        own_names = self.names | {t.name for leaf in backward_leaves for t in leaf.outputs}
        are_all_own = all(
            self.is_own(leaf)
            and all(t.name in own_names for t in leaf.inputs if t.buffer == buffer)
            for leaf in backward_leaves
        )
        return backward_leaves if are_all_own else []

    def is_repeatable(self, buffer: str) -> bool:
        """Return whether the segment's ops can compute a buffer again."""
        if buffer not in self.is_repeatable_by_buffer:
            self.is_repeatable_by_buffer[buffer] = (
                False  # a buffer that depends on itself cannot be recomputed
            )
            is_written = any(
                t.buffer == buffer for o in self.outside_leaves(buffer) for t in written_by(o)
            )
            writers = self._writers(buffer)
            self.is_repeatable_by_buffer[buffer] = (
                not is_written
                and all(map(self._is_pure, writers))
                and all(
                    self.is_repeatable(t.buffer) or self._is_constant(t.buffer)
                    for op in writers
                    for t in self._inner(op)
                    if t.buffer != buffer
                )
            )
        return self.is_repeatable_by_buffer[buffer]

    def _writers(self, buffer: str) -> list[Op]:
        """Return the calls that write a buffer, and the ops that make views of it."""
        ops: list[Op] = []
        for op in self.segment:
            writes = effects(op, declared(self.graph)).writes
            if any(t.buffer == buffer for t in (*writes, *written_by(op))):
                ops.append(op)
            else:
                ops += [o for o in op.leaves() if any(t.buffer == buffer for t in o.outputs)]
        return ops

    def _is_pure(self, op: Op) -> bool:
        effect = effects(op, declared(self.graph))
        local = all(t.buffer in self.owned for t in effect.writes)
        return local and not effect.random and not effect.barrier and op not in self.opaque

    def _inner(self, op: Op) -> list[Tensor]:
        """Return the operands of an op in the segment's own memory."""
        return [t for leaf in op.leaves() for t in leaf.inputs if t.buffer in self.owned]

    def _is_constant(self, buffer: str) -> bool:
        """Return whether a buffer is never written in place."""
        accesses = self.graph.touching.get(buffer, ())
        return not any(t.buffer == buffer for _, leaf in accesses for t in written_by(leaf))

    def ops(self, buffers: Sequence[str]) -> list[Op]:
        """Return the ops to copy, in launch order, and record all buffers that they make."""
        ops: set[Op] = set()
        queue = list(buffers)
        while queue:
            buffer = queue.pop()
            if buffer in self.copied:
                continue
            self.copied.add(buffer)
            for op in self._writers(buffer):
                ops.add(op)
                # An op with several results makes all of them again, wanted or not.
                queue += [buffer for buffer in self._written_buffers(op) if buffer in self.owned]
                queue += [t.buffer for t in self._inner(op) if not self._is_resident(t.buffer)]
        places = {op: self.graph.places[next(op.leaves())] for op in ops}
        outer_ops = [op for op in ops if not self._is_within_call(op, ops)]
        return sorted(outer_ops, key=lambda op: places[op])

    def _written_buffers(self, op: Op) -> list[str]:
        """Return the buffers that an op makes or writes, without those that it only views."""
        input_buffers = {t.buffer for t in op.inputs}
        writes = [t.buffer for leaf in op.leaves() for t in written_by(leaf)]
        return [t.buffer for t in _results([op]) if t.buffer not in input_buffers] + writes

    def _is_within_call(self, leaf: Op, ops: Collection[Op]) -> bool:
        """Return whether a view is copied with the call that made it."""
        return any(
            op in ops and op is not leaf and any(o is leaf for o in op.leaves())
            for op in self.segment
        )

    def _is_resident(self, buffer: str) -> bool:
        """Return whether a buffer is, or must be, in memory in any case when the copies run."""
        backward_leaves = [leaf for leaf in self.outside_leaves(buffer) if leaf.phase == "backward"]
        return self._is_constant(buffer) and (
            not self.is_repeatable(buffer) or bool(backward_leaves)
        )


def _check_unwritten(
    graph: Graph, ops: Sequence[Op], copied: Collection[str], position: int
) -> None:
    """Refuse copies if tensors that they read from outside are written before they run."""
    leaves = [leaf for op in ops for leaf in op.leaves()]
    reads = ((leaf, t) for leaf in leaves for t in leaf.inputs if t.buffer not in copied)
    for leaf, tensor in reads:
        later_positions = range(graph.places[leaf] + 1, position)
        accesses = (o for i, o in graph.touching.get(tensor.buffer, ()) if i in later_positions)
        writer = next((o for o in accesses if any(overlap(t, tensor) for t in written_by(o))), None)
        if writer is not None:
            reason = f"%{tensor.name} is written before it would be read once more"
            raise RefusedError(reason, [(writer, f"{writer.name} writes it")])


@dataclass
class _CopyNames:
    """Names and buffers of repeated results.

    Attributes:
        used_names: names of other tensors and buffers.
        copied_buffers: buffers that are made again.
        copied_names: names of the tensors that are made again.
    """

    used_names: set[str]
    copied_buffers: Collection[str]
    copied_names: Collection[str]
    names: dict[str, Tensor] = field(default_factory=dict)
    buffers: dict[str, str] = field(default_factory=dict)

    def tensor(self, tensor: Tensor) -> Tensor:
        """Return the copy of a tensor; views that the backward pass makes are not renamed."""
        if tensor.buffer not in self.copied_buffers and tensor.name not in self.copied_names:
            return tensor
        if tensor.name not in self.names:
            renamed = tensor.name in self.copied_names
            name = self._free(tensor.name) if renamed else tensor.name
            buffer = tensor.buffer
            if buffer in self.copied_buffers and buffer not in self.buffers:
                self.buffers[buffer] = self._free(buffer)
            copy = replace(tensor, name=name, buffer=self.buffers.get(buffer, buffer))
            self.names[tensor.name] = copy
        return self.names[tensor.name]

    def _free(self, name: str) -> str:
        copy_name = free_name(f"{name}_again", self.used_names)
        self.used_names.add(copy_name)
        return copy_name


def _run_at(op: Op, outer: Op, first: Op) -> Op:
    """Return an op in the thread of an outermost op, on the stream of a leaf in it."""
    body = tuple(_run_at(child, outer, first) for child in op.body)
    return replace(
        op,
        body=body,
        thread=outer.thread,
        stream=first.stream,
        phase="backward",
        origin=f"recompute: {op.origin}" if op.origin else "recompute",
        notes={},
        identity=object(),
    )


def _rewire(op: Op, changes: Mapping[Op, Sequence[_CopyNames]]) -> Op:
    """Return an op whose leaves read copies if they must, with its outer ops updated."""

    def replace_tensor(tensor: Tensor, copyings: Sequence[_CopyNames]) -> Tensor:
        for copying in copyings:
            tensor = copying.tensor(tensor)
        return tensor

    if not op.body:
        copy_names = changes.get(op, ())
        return map_tensors(op, lambda t: replace_tensor(t, copy_names)) if copy_names else op
    body = tuple(_rewire(child, changes) for child in op.body)
    if all(a is b for a, b in zip(body, op.body, strict=True)):
        return op
    # A node lists the operands and results of its leaves as its own: they follow the leaves that
    # were changed, unless another leaf in it still reads the old tensor.
    inner_tensors: Mapping[str, Tensor] = {t.name: t for child in body for t in _tensors_of(child)}
    copy_names_by_tensor = {
        t.name: changes[o] for o in op.leaves() if o in changes for t in o.inputs
    }
    updated = map_tensors(
        replace(op, body=()),
        lambda t: (
            t
            if t.name in inner_tensors
            else replace_tensor(t, copy_names_by_tensor.get(t.name, ()))
        ),
    )
    result = map_tensors(updated, lambda t: inner_tensors.get(t.name, t))
    return replace(result, body=body)


def _tensors_of(op: Op) -> tuple[Tensor, ...]:
    return (*op.inputs, *op.outputs)
