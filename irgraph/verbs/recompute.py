"""``recompute``: forward ops run once more for the backward pass, which then holds less memory."""

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
    """What was made to run twice: the graph, the copies, and the bytes no longer held for them."""

    graph: Graph
    ops: tuple[Op, ...]
    nbytes: int


class NothingToRecomputeError(RefusedError):
    """There is nothing in a segment to run again."""


def recompute(graph: Graph, segment: Sequence[Op], own: Callable[[Op], bool]) -> RecomputeResult:
    """Let forward ops run again right before the backward pass first reads what they made.

    Copied are the ops whose results only leaves of the backward pass read that are the segment's
    ``own``, and what those ops need in turn; the copies are read instead. What others read in the
    backward pass stays in memory, and so do results of ops that draw random numbers or write to
    memory from outside. Raises ``NothingError`` where nothing is left to run again, and
    ``RefusedError`` where what the copies would read is written in between.
    """
    work = Recomputing(graph)
    ops, nbytes = work.add(segment, own)
    return RecomputeResult(work.commit(), ops, nbytes)


class Recomputing:
    """A graph, and segments that are to run once more in it, as ``recompute`` does it.

    Segments whose memory no copy reads are judged by the graph as it was, and made together.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._start()

    def _start(self) -> None:
        self.edit = Edit(self.graph)
        self.taken = names_of(self.graph)
        self.changes: dict[int, list[_Copying]] = {}
        self.read: set[str] = set()

    def add(self, segment: Sequence[Op], own: Callable[[Op], bool]) -> tuple[tuple[Op, ...], int]:
        """Collect a segment; return the copies, and the bytes that are no longer held for it."""
        plan = _Plan(self.graph, segment, own)
        # An earlier segment's copies read memory that this one would no longer hold: they are made
        # first, so that this segment sees them as readers.
        if not self.read.isdisjoint(plan.owned):
            self.commit()
            plan = _Plan(self.graph, segment, own)
        wanted = [buffer for buffer in plan.owned if plan.readers(buffer) and plan.again(buffer)]
        if not wanted:
            reason = "the backward pass reads nothing that could be computed once more for it alone"
            raise NothingToRecomputeError(reason, [(op, "") for op in segment[:1]])
        ops = plan.ops(wanted)
        readers = [leaf for buffer in wanted for leaf in plan.readers(buffer)]
        # As late as may be: what is held from the copies to the backward's last read is all that
        # stays.
        first = min(readers, key=lambda leaf: self.graph.places[id(leaf)])
        _check_unwritten(self.graph, ops, plan.copied, self.graph.places[id(first)])
        copying = _Copying(self.taken, plan.copied, {t.name for op in ops for t in _made([op])})
        outer = _outermost(self.graph)[id(first)]
        copies = tuple(_run_at(map_tensors(op, copying.tensor), outer, first) for op in ops)
        for op in copies:
            self.edit.insert(op, before=outer)
            self.read.update(t.buffer for leaf in op.leaves() for t in leaf.inputs)
        for key in {id(leaf) for leaf in readers}:
            self.changes.setdefault(key, []).append(copying)
        by_buffer = self.graph.by_buffer
        return copies, sum(max(t.extent[1] for t in by_buffer[buffer]) for buffer in wanted)

    def commit(self) -> Graph:
        """Make all that was collected, and return the graph."""
        if self.changes:
            whole = self.edit.commit()
            ops = tuple(_rewired(op, self.changes) for op in whole.ops)
            self.graph = replace(whole, ops=ops)
            self._start()
        return self.graph


@cached_per_graph
def _outermost(graph: Graph) -> Mapping[int, Op]:
    """Return by ``id`` of a leaf the outermost op around it."""
    return {id(leaf): op for op in graph.top_level() for leaf in op.leaves()}


def _made(ops: Iterable[Op]) -> list[Tensor]:
    return [t for op in ops for leaf in op.leaves() for t in leaf.outputs]


@dataclass
class _Plan:
    """Which buffers of a segment can be made once more.

    Attributes:
        owned: buffers that its ops allocate.
        copied: those that its copies make.
    """

    graph: Graph
    segment: Sequence[Op]
    own: Callable[[Op], bool]
    copied: set[str] = field(default_factory=set)
    known: dict[str, bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.inside = {id(leaf) for op in self.segment for leaf in op.leaves()}
        opaque = {id(leaf) for _, leaf in barriers(self.graph)}
        self.opaque = {id(op) for op in self.segment if any(id(o) in opaque for o in op.leaves())}
        made = {t.name for t in _made(self.segment)}
        self.names = made
        taken = {t.buffer for op in self.segment for t in op.inputs if t.name not in made}
        # Memory that comes from outside, or that is looked at after the step, is there anyway.
        kept = {t.buffer for t in self.graph.returned or ()} | self.graph.lasting.keys() | taken
        self.owned = [
            b for b in dict.fromkeys(t.buffer for t in _made(self.segment)) if b not in kept
        ]

    def outside(self, buffer: str) -> list[Op]:
        """Return the other leaves that touch a buffer."""
        near = self.graph.touching.get(buffer, ())
        return [leaf for _, leaf in near if id(leaf) not in self.inside]

    def readers(self, buffer: str) -> list[Op]:
        """Return the leaves of the backward pass that read a buffer, if all are the segment's."""
        late = [leaf for leaf in self.outside(buffer) if leaf.phase == "backward"]
        # Views of the buffer that the backward makes itself follow the copy; a view that forward
        # ops outside of the segment made would still show the old memory.
        makes = self.names | {t.name for leaf in late for t in leaf.outputs}
        mine = all(
            self.own(leaf) and all(t.name in makes for t in leaf.inputs if t.buffer == buffer)
            for leaf in late
        )
        return late if mine else []

    def again(self, buffer: str) -> bool:
        """Return whether the segment's ops can make a buffer once more."""
        if buffer not in self.known:
            self.known[buffer] = False  # what needs itself cannot be made
            written = any(t.buffer == buffer for o in self.outside(buffer) for t in written_by(o))
            makers = self._makers(buffer)
            self.known[buffer] = (
                not written
                and all(map(self._pure, makers))
                and all(
                    self.again(t.buffer) or self._still(t.buffer)
                    for op in makers
                    for t in self._inner(op)
                    if t.buffer != buffer
                )
            )
        return self.known[buffer]

    def _makers(self, buffer: str) -> list[Op]:
        """Return the calls that write a buffer, and the views of it that others make."""
        found: list[Op] = []
        for op in self.segment:
            touched = effects(op, declared(self.graph)).writes
            if any(t.buffer == buffer for t in (*touched, *written_by(op))):
                found.append(op)
            else:
                found += [o for o in op.leaves() if any(t.buffer == buffer for t in o.outputs)]
        return found

    def _pure(self, op: Op) -> bool:
        effect = effects(op, declared(self.graph))
        local = all(t.buffer in self.owned for t in effect.writes)
        return local and not effect.random and not effect.barrier and id(op) not in self.opaque

    def _inner(self, op: Op) -> list[Tensor]:
        """Return what an op takes of the segment's own memory."""
        return [t for leaf in op.leaves() for t in leaf.inputs if t.buffer in self.owned]

    def _still(self, buffer: str) -> bool:
        """Return whether a buffer holds later what it held first."""
        near = self.graph.touching.get(buffer, ())
        return not any(t.buffer == buffer for _, leaf in near for t in written_by(leaf))

    def ops(self, wanted: Sequence[str]) -> list[Op]:
        """Return the ops to copy, in launch order, and note all buffers that they make."""
        chosen: dict[int, Op] = {}
        queue = list(wanted)
        while queue:
            buffer = queue.pop()
            if buffer in self.copied:
                continue
            self.copied.add(buffer)
            for op in self._makers(buffer):
                chosen[id(op)] = op
                # An op with several results makes all of them again, wanted or not.
                queue += [buffer for buffer in self._filled(op) if buffer in self.owned]
                queue += [t.buffer for t in self._inner(op) if not self._held(t.buffer)]
        places = {id(op): self.graph.places[id(next(op.leaves()))] for op in chosen.values()}
        kept = [op for op in chosen.values() if not self._within(op, chosen)]
        return sorted(kept, key=lambda op: places[id(op)])

    def _filled(self, op: Op) -> list[str]:
        """Return the buffers that an op makes or writes; not those that it only has views of."""
        taken = {t.buffer for t in op.inputs}
        written = [t.buffer for leaf in op.leaves() for t in written_by(leaf)]
        return [t.buffer for t in _made([op]) if t.buffer not in taken] + written

    def _within(self, leaf: Op, chosen: Collection[int]) -> bool:
        """Return whether a view is copied with the call that made it."""
        return any(
            id(op) in chosen and op is not leaf and any(o is leaf for o in op.leaves())
            for op in self.segment
        )

    def _held(self, buffer: str) -> bool:
        """Return whether a buffer is in memory anyway when the copies run, or must be."""
        late = [leaf for leaf in self.outside(buffer) if leaf.phase == "backward"]
        return self._still(buffer) and (not self.again(buffer) or bool(late))


def _check_unwritten(graph: Graph, ops: Sequence[Op], copied: Collection[str], at: int) -> None:
    """Refuse where what copies read from outside is written before they run."""
    leaves = [leaf for op in ops for leaf in op.leaves()]
    reads = ((leaf, t) for leaf in leaves for t in leaf.inputs if t.buffer not in copied)
    for leaf, tensor in reads:
        later = range(graph.places[id(leaf)] + 1, at)
        near = (o for i, o in graph.touching.get(tensor.buffer, ()) if i in later)
        writer = next((o for o in near if any(overlap(t, tensor) for t in written_by(o))), None)
        if writer is not None:
            reason = f"%{tensor.name} is written before it would be read once more"
            raise RefusedError(reason, [(writer, f"{writer.name} writes it")])


@dataclass
class _Copying:
    """Names and buffers of what is made once more.

    Attributes:
        taken: names that others bear, of tensors and buffers.
        copied: buffers that are made once more.
        made: names of the tensors that are.
    """

    taken: set[str]
    copied: Collection[str]
    made: Collection[str]
    names: dict[str, Tensor] = field(default_factory=dict)
    buffers: dict[str, str] = field(default_factory=dict)

    def tensor(self, tensor: Tensor) -> Tensor:
        """Return the copy of a tensor; views that the backward pass makes keep their names."""
        if tensor.buffer not in self.copied and tensor.name not in self.made:
            return tensor
        if tensor.name not in self.names:
            renamed = tensor.name in self.made
            name = self._free(tensor.name) if renamed else tensor.name
            buffer = tensor.buffer
            if buffer in self.copied and buffer not in self.buffers:
                self.buffers[buffer] = self._free(buffer)
            made = replace(tensor, name=name, buffer=self.buffers.get(buffer, buffer))
            self.names[tensor.name] = made
        return self.names[tensor.name]

    def _free(self, name: str) -> str:
        found = free_name(f"{name}_again", self.taken)
        self.taken.add(found)
        return found


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
    )


def _rewired(op: Op, changes: Mapping[int, Sequence[_Copying]]) -> Op:
    """Return an op whose leaves read copies where they are to, with what is around them."""

    def copied(tensor: Tensor, copyings: Sequence[_Copying]) -> Tensor:
        for copying in copyings:
            tensor = copying.tensor(tensor)
        return tensor

    if not op.body:
        known = changes.get(id(op), ())
        return map_tensors(op, lambda t: copied(t, known)) if known else op
    body = tuple(_rewired(child, changes) for child in op.body)
    if all(a is b for a, b in zip(body, op.body, strict=True)):
        return op
    # A node names what its leaves take and make as its own: that follows the leaves that were
    # changed, and stays where another leaf in it still takes the old tensor.
    inside: Mapping[str, Tensor] = {t.name: t for child in body for t in _named(child)}
    gone = {t.name: changes[id(o)] for o in op.leaves() if id(o) in changes for t in o.inputs}
    changed = map_tensors(
        replace(op, body=()),
        lambda t: t if t.name in inside else copied(t, gone.get(t.name, ())),
    )
    moved = map_tensors(changed, lambda t: inside.get(t.name, t))
    return replace(moved, body=body)


def _named(op: Op) -> tuple[Tensor, ...]:
    return (*op.inputs, *op.outputs)
