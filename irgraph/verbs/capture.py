"""``capture``: consecutive ops become a CUDA graph, which the host launches as one."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from msgspec import Struct
from msgspec.structs import replace

from irgraph.ir.edit import free_name, map_tensors, names_of
from irgraph.ir.effects import effects, written_by
from irgraph.ir.graph import Declared, Graph, cached_per_graph
from irgraph.ir.op import Op, Value
from irgraph.ir.tensor import Tensor
from irgraph.ir.torch_schemas.custom_ops import custom_ops
from irgraph.ops.live_out import blocks_host, reads_on_host
from irgraph.verbs.launch_order import declared
from irgraph.verbs.refusal import RefusedError
from irgraph.verbs.streams import RECORD, WAIT, works

LAUNCH = "cuda.graph_launch"
MIN_LAUNCHES = 2
"""Minimum number of ops that launch work in a graph."""

SIZED = (
    "nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive", "unique",
    "repeat_interleave", "bincount", "_coalesce", "argwhere",
)  # fmt: skip
"""Ops whose results' sizes the host reads from the device."""

MASKED = ("index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index")
"""Ops that look up the true elements of a mask, if their index is one."""


class Capturing(Struct, frozen=True):
    """Result of a capture into CUDA graphs.

    Attributes:
        graph: the new graph.
        launches: the launches in it.
        copies: number of tensors that are copied to a graph's own memory before it.
        excluded: requested ops that are in none of the graphs, each with the reason.
    """

    graph: Graph
    launches: tuple[Op, ...]
    copies: int
    excluded: tuple[tuple[Op, RefusedError], ...]


def capture(graph: Graph, ops: Collection[Op] | None = None) -> Capturing:
    """Capture ops, or the whole step, in as few CUDA graphs as possible.

    The ops of a graph are consecutive, and it reads fixed addresses: results of ops outside of
    graphs are copied to the graph's own memory first. Excluded are ops in which the host takes
    part, and ops that would write memory that ops outside allocated.
    """
    search = _CaptureSearch(graph, None if ops is None else set(ops))
    search.run()
    return search.commit()


@dataclass
class _CaptureSearch:
    """The search for graphs, and then their construction."""

    graph: Graph
    requested: Collection[Op] | None

    def __post_init__(self) -> None:
        self.declared = declared(self.graph)
        self.excluded: dict[Op, tuple[Op, RefusedError]] = {}
        self.regions: list[list[Op]] = []

    def run(self) -> None:
        """Find runs of ops; if one cannot be launched, search again without the offending ops."""
        self._exclude_after_reads()
        # Removing an op splits a region in two, and ops inside of one graph are then outside
        # of the other: search again until nothing changes. Each round removes at least one op, so
        # it ends.
        for _ in range(len(self.graph.ops) + 1):
            self.regions = list(self._runs(self.graph.ops))
            foreign = self._foreign_ops()
            if not foreign:
                return
            self.excluded.update(foreign)

    def _runs(self, ops: Sequence[Op]) -> Iterator[list[Op]]:
        """Yield runs of consecutive ops that can be launched together, opening labels if needed."""
        # A label (a profiler range, a module) that fits is captured as a whole; one that does
        # not is opened, since its ops may fit. An autograd node or a call is never opened.
        run: list[Op] = []
        for op in ops:
            if self._fits(op):
                run.append(op)
                continue
            yield from self._launchable(run)
            run = []
            if op.is_annotation:
                yield from self._runs(op.body)
        yield from self._launchable(run)

    def _launchable(self, run: list[Op]) -> Iterator[list[Op]]:
        launch_count = sum(works(leaf) for op in run for leaf in op.leaves())
        if launch_count >= MIN_LAUNCHES and any(map(self._is_requested, run)):
            yield run

    def _is_requested(self, op: Op) -> bool:
        ids = self.requested
        return ids is None or any(inner in ids for inner in op.walk())

    def _fits(self, op: Op) -> bool:
        if not self._is_requested(op) and any(map(works, op.leaves())):
            return False
        if any(inner.name == LAUNCH for inner in op.walk()):
            return False
        for leaf in op.leaves():
            if leaf not in self.excluded:
                reason = self._obstacle(leaf)
                if reason:
                    self.excluded[leaf] = (leaf, RefusedError(reason, [(leaf, "")]))
        return not any(leaf in self.excluded for leaf in op.leaves())

    def _obstacle(self, leaf: Op) -> str:
        """Return why an op cannot be part of any graph, ``""`` if it can."""
        tensors = (*leaf.inputs, *leaf.outputs)
        if leaf.name in (RECORD, WAIT) or (leaf.is_scope and not tensors):
            return ""
        if blocks_host(leaf):
            return "the host reads it" if reads_on_host(leaf) else "the host waits for it"
        custom = custom_ops().get(leaf.name)
        if custom is not None and custom.counted:
            return "its numbers differ from step to step, and a graph would repeat them"
        if effects(leaf, self.declared).barrier:
            return "its effects are unknown"
        if sized(leaf) and any(t.device != "cpu" for t in leaf.inputs):
            return "the host reads the sizes of its results from the device"
        # Literals of the program are the same in every replay; other host memory is not
        # part of a CUDA graph, whose copies would read it when it is replayed.
        if any(t.device == "cpu" and t.buffer not in self._numbers for t in tensors):
            copies = any(t.device != "cpu" for t in leaf.outputs)
            return "it copies from the host's memory" if copies else "the host takes part in it"
        return ""

    @property
    def _numbers(self) -> Collection[str]:
        return _literals(self.graph)

    def _exclude_after_reads(self) -> None:
        """Exclude ops that follow, in their phase, a read by the host: numbers may depend on it."""
        read_by_phase: dict[str, Op] = {}
        for leaf in self.graph.leaves():
            # A number that the host read may have become a Python value of any later call, which a
            # graph would repeat for ever. The trace does not show which, so all later calls of the
            # phase stay out.
            if leaf.phase in read_by_phase and works(leaf) and not blocks_host(leaf):
                notes = [(leaf, ""), (read_by_phase[leaf.phase], "the host reads here")]
                error = RefusedError(
                    "its numbers may follow from what the host read before it", notes
                )
                self.excluded[leaf] = (leaf, error)
            elif reads_on_host(leaf):
                read_by_phase[leaf.phase] = leaf

    def _foreign_ops(self) -> dict[Op, tuple[Op, RefusedError]]:
        """Return ops of regions that need events, or write memory, from outside of their graph."""
        excluded: dict[Op, tuple[Op, RefusedError]] = {}
        own_buffers = self._own_buffers()
        graph_buffers = self.graph.lasting.keys() | own_buffers
        users = _event_users(self.graph)
        leaves = (leaf for region in self.regions for op in region for leaf in op.leaves())
        defined_names = {t.name for leaf in leaves for t in leaf.outputs}
        returned_names = {t.name for t in self.graph.returned or ()}
        for region in self.regions:
            leaf_set = {leaf for op in region for leaf in op.leaves()}
            for leaf in (leaf for op in region for leaf in op.leaves()):
                reason = ""
                if any(t.buffer not in graph_buffers for t in written_by(leaf)):
                    reason = "it writes memory that an op outside of the graph allocated"
                elif leaf.name in (RECORD, WAIT) and not users[_event(leaf)] <= leaf_set:
                    reason = "an op outside of the graph takes part in its event"
                elif any(
                    self._is_uncopyable(t, defined_names)
                    for t in _outside_inputs(leaf, own_buffers, self.graph)
                ):
                    reason = "it reads a view, or memory written twice, of ops outside of the graph"
                elif any(
                    t.name in returned_names and t.buffer not in graph_buffers for t in leaf.outputs
                ):
                    reason = "the step returns it, and the next launch overwrites the viewed memory"
                if reason:
                    excluded[leaf] = (leaf, RefusedError(reason, [(leaf, "")]))
        return excluded

    def _is_uncopyable(self, tensor: Tensor, defined_names: Collection[str]) -> bool:
        """Return whether a copy cannot replace a tensor of ops outside of graphs."""
        base = _bases(self.graph)[tensor.buffer]
        accesses = self.graph.touching.get(tensor.buffer, ())
        is_written = any(
            t.buffer == tensor.buffer for _, leaf in accesses for t in written_by(leaf)
        )
        return is_written or (tensor.name not in defined_names and tensor.name != base.name)

    def _own_buffers(self) -> Collection[str]:
        """Return the buffers that graphs allocate, including those of existing graphs."""
        launch_bodies = [op.body for op in self.graph.walk() if op.name == LAUNCH]
        return {
            t.buffer for region in (*self.regions, *launch_bodies) for t in _new_tensors(region)
        }

    def commit(self) -> Capturing:
        """Return the graph with the launches, preceded by copies of results from outside."""
        own_buffers, places = self._own_buffers(), self.graph.places
        used_names = names_of(self.graph)
        names: dict[str, Tensor] = {}
        views: dict[str, Tensor] = {}
        states: list[Declared] = []
        copies: dict[Op, list[Op]] = {}
        for number, region in enumerate(self.regions):
            leaves = [leaf for op in region for leaf in op.leaves()]
            for tensor in (
                t for leaf in leaves for t in _outside_inputs(leaf, own_buffers, self.graph)
            ):
                if tensor.name in names:
                    continue
                base = _bases(self.graph)[tensor.buffer]
                name = free_name(f"{base.name}_held", used_names)
                used_names.add(name)
                # A graph reads fixed addresses. Results that ops outside allocate in each step are
                # copied to a tensor that lasts, as ``torch.cuda.make_graphed_callables`` copies its
                # arguments.
                copy = replace(base, name=name, buffer=name, offset=0)
                states.append(Declared("state", copy))
                reader = self._reader(self.regions[number:], base)
                copies.setdefault(reader[0], []).append(_copy_op(copy, base, reader[0]))
                names[base.name] = copy
                views |= self._views_of_copy(base, copy)
                names |= views
        launches = {region[0]: _launch(region, names) for region in self.regions}
        replacements = {
            first: [*copies.get(first, ()), launch] for first, launch in launches.items()
        }
        region_ops = {op for region in self.regions for op in region}
        ops = tuple(_replaced_ops(self.graph.ops, replacements, region_ops, views))
        result = replace(self.graph, ops=ops, tensors=(*self.graph.tensors, *states))
        excluded = sorted(
            (entry for entry in self.excluded.values() if self._is_leaf_requested(entry[0])),
            key=lambda entry: places[entry[0]],
        )
        return Capturing(result, tuple(launches.values()), len(states), tuple(excluded))

    def _views_of_copy(self, base: Tensor, copy: Tensor) -> dict[str, Tensor]:
        """Return, by original name, the views of a copied tensor that ops in graphs make."""
        return {
            t.name: replace(t, buffer=copy.buffer, offset=t.offset - base.offset)
            for region in self.regions
            for op in region
            for leaf in op.leaves()
            for t in leaf.outputs
            if t.buffer == base.buffer
        }

    def _reader(self, regions: Sequence[Sequence[Op]], base: Tensor) -> Sequence[Op]:
        """Return the region before which a buffer is copied in: the first whose work reads it.

        The first region may only make views of it, which read nothing: the ops that order the copy
        (an event of another stream) may follow them.
        """
        first = self.graph.places[next(regions[0][0].leaves())]
        accesses = self.graph.touching[base.buffer]
        reader = next(
            (leaf for position, leaf in accesses if position >= first and works(leaf)), None
        )
        candidates = (r for r in regions if any(leaf is reader for op in r for leaf in op.leaves()))
        return next(candidates, regions[0])

    def _is_leaf_requested(self, leaf: Op) -> bool:
        return self._is_requested(_outer_by_leaf(self.graph).get(leaf, leaf))


@cached_per_graph
def _literals(graph: Graph) -> Collection[str]:
    """Return the buffers of numbers that are literals of the program."""
    return {d.tensor.buffer for d in graph.tensors if d.value is not None}


@cached_per_graph
def _outer_by_leaf(graph: Graph) -> dict[Op, Op]:
    return {leaf: op for op in graph.top_level() for leaf in op.leaves()}


@cached_per_graph
def _event_users(graph: Graph) -> dict[str, set[Op]]:
    """Return by event the ops that record it or wait for it."""
    users_by_event: dict[str, set[Op]] = {}
    for leaf in graph.leaves():
        if leaf.name.startswith("sync.") and (leaf.inputs or leaf.outputs):
            users_by_event.setdefault(_event(leaf), set()).add(leaf)
    return users_by_event


def _event(leaf: Op) -> str:
    return next(iter((*leaf.outputs, *leaf.inputs))).name


def sized(leaf: Op) -> bool:
    """Return whether the sizes of an op's results follow from values."""
    masked = any(t.dtype == "bool" for t in leaf.inputs[1:])
    return leaf.base in SIZED or (leaf.base in MASKED and masked)


def _new_tensors(region: Sequence[Op]) -> Iterator[Tensor]:
    """Yield results of a region's ops in buffers that they allocate."""
    for leaf in (leaf for op in region for leaf in op.leaves()):
        yield from (t for t in leaf.outputs if t.buffer not in {s.buffer for s in leaf.inputs})


def _outside_inputs(leaf: Op, own_buffers: Collection[str], graph: Graph) -> list[Tensor]:
    """Return the operands of an op that ops outside of all graphs made."""
    return [
        t
        for t in leaf.inputs
        if t.device != "cpu" and t.buffer not in own_buffers and t.buffer not in graph.lasting
    ]


@cached_per_graph
def _bases(graph: Graph) -> Mapping[str, Tensor]:
    """Return by buffer the first tensor in it."""
    base_by_buffer: dict[str, Tensor] = {}
    for leaf in graph.leaves():
        for tensor in leaf.outputs:
            base_by_buffer.setdefault(tensor.buffer, tensor)
    return base_by_buffer


def _copy_op(target: Tensor, source: Tensor, reader: Op) -> Op:
    operands: tuple[Value, ...] = (target, source)
    leaf = next(reader.leaves())
    return Op(
        "aten.copy_",
        operands,
        written=frozenset([target.name]),
        thread="main",
        stream=leaf.stream,
        phase=leaf.phase,
        origin="capture",
    )


def _launch(region: Sequence[Op], names: Mapping[str, Tensor]) -> Op:
    """Return the launch of a region, from the main thread."""
    body = tuple(_with_tensors(op, names) for op in region)
    phases = {leaf.phase for op in region for leaf in op.leaves()}
    work_leaves = [leaf for op in region for leaf in op.leaves() if works(leaf)]
    return Op(
        LAUNCH,
        body=body,
        stream=work_leaves[0].stream,
        origin=f"capture: {len(work_leaves)} ops",
        phase=phases.pop() if len(phases) == 1 else "forward",
    )


def _with_tensors(op: Op, names: Mapping[str, Tensor]) -> Op:
    if not any(t.name in names for leaf in op.walk() for t in (*leaf.inputs, *leaf.outputs)):
        return op
    return map_tensors(op, lambda t: names.get(t.name, t))


def _replaced_ops(
    ops: Sequence[Op],
    replacements: Mapping[Op, list[Op]],
    region_ops: Collection[Op],
    views: Mapping[str, Tensor],
) -> Iterator[Op]:
    """Yield ops with regions replaced by launches; later ops read views that graphs make."""
    for op in ops:
        yield from replacements.get(op, ())
        if op in region_ops:
            continue
        if op.is_annotation and op.body:
            yield replace(op, body=tuple(_replaced_ops(op.body, replacements, region_ops, views)))
        else:
            yield _with_tensors(op, views)
