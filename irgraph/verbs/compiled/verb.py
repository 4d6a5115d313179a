"""Makes the calls of compiled code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from irgraph.ir.dependence import dependences
from irgraph.ir.effects import is_view, written_by
from irgraph.ir.graph import Graph, cached_per_graph
from irgraph.ir.live_out import live_out
from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor
from irgraph.verbs.compiled.inductor import Kernel, partition
from irgraph.verbs.compiled.names import CALL, KERNEL
from irgraph.verbs.compiled.order import Group, groups_of, order_groups
from irgraph.verbs.compiled.regions import Region, RegionSearch
from irgraph.verbs.launch_order import declared
from irgraph.verbs.refusal import RefusedError

MIN_KERNEL_LAUNCHES = 2
"""Of a single op, from which on it is no longer what it is outside of compiled code."""
SCATTERING = frozenset({
    "embedding_dense_backward", "index_put", "index_put_", "_index_put_impl_", "index_add",
    "index_add_", "scatter_add", "scatter_add_", "scatter", "sort", "topk", "cumsum",
})  # fmt: skip
"""Ops whose time is not that of a pass over memory."""


class Compiling(Struct, frozen=True):
    """What became calls of compiled code.

    Attributes:
        graph: the new graph.
        calls: the calls in it.
        left: the ops that are in none of them although they were asked for, with why.
    """

    graph: Graph
    calls: tuple[Op, ...]
    excluded: tuple[tuple[Op, RefusedError], ...]

    @property
    def fused(self) -> tuple[int, int]:
        """How many ops lie in generated kernels, and in how many of these."""
        inside = [op for call in self.calls for op in call.body if op.name == KERNEL]
        return sum(len(op.body) for op in inside), len(inside)


def compile_regions(graph: Graph, ops: Collection[Op] | None = None) -> Compiling:
    """Let ops, or all of forward and backward, run as what ``torch.compile`` makes of them.

    Each run of ops that follow one another becomes one call. Inside of it Inductor's own scheduler
    says which ops share a kernel; products, convolutions and attention stay a library's. The ops
    themselves stay, as the bodies of their kernels. Left out is what torch cannot compile, what
    communicates, and a run of ops at one of which Inductor fails. Unlike ``torch.compile`` on a
    module it saves for backward what eager torch saves.

    Args:
        graph: the step.
        ops: those that are asked for; ``None`` for all but the optimizer's.
    """
    search = RegionSearch(graph, None if ops is None else {id(op) for op in ops})
    replacements: dict[int, list[Op]] = {}
    removed_ids: set[int] = set()
    calls = []
    for region in list(search.regions(graph.ops)):
        try:
            calls.append(_call(graph, region))
        except RefusedError as error:
            search.excluded.update((id(leaf), (leaf, error)) for leaf in region.leaves)
            continue
        replacements[id(region.units[0])] = [calls[-1], *_between(region, graph)]
        removed_ids.update(id(op) for op in (*region.units, *_between(region, graph)))
    result = replace(graph, ops=tuple(_replaced_ops(graph.ops, replacements, removed_ids)))
    places = graph.places
    excluded = sorted(search.excluded.values(), key=lambda entry: places[id(entry[0])])
    return Compiling(result, tuple(calls), tuple(excluded))


def _between(region: Region, graph: Graph) -> list[Op]:
    """Return what stands between a region's ops and now follows them."""
    places = graph.places
    last = places[id(next(region.units[-1].leaves()))]
    first = places[id(next(region.units[0].leaves()))]
    return [op for op in region.later if first < places[id(next(op.leaves()))] < last]


def _replaced_ops(
    ops: Sequence[Op], replacements: Mapping[int, list[Op]], removed_ids: Collection[int]
) -> Iterator[Op]:
    for op in ops:
        if id(op) in replacements:
            yield from replacements[id(op)]
        elif id(op) not in removed_ids:
            body = (
                tuple(_replaced_ops(op.body, replacements, removed_ids))
                if op.is_annotation
                else op.body
            )
            yield op if body == op.body else replace(op, body=body)


def _call(graph: Graph, region: Region) -> Op:
    """Return the call that a region becomes."""
    leaves = region.leaves
    results = _used_results(leaves, graph)
    kernels = partition(graph, leaves, results)
    groups = groups_of(kernels, _outside_flags(leaves, kernels), _views(leaves))
    ties = dependences(leaves, declared(graph))
    body = []
    for group in order_groups(groups, ties):
        members = [leaves[i] for i in group.members]
        plain = len(members) == 1 and group.launches < MIN_KERNEL_LAUNCHES
        body.append(members[0] if plain else _kernel(members, group, graph))
    first = next(leaf for leaf in leaves if leaf.stream or not is_view(leaf))
    return replace(
        _enclosing_op(CALL, leaves, results),
        body=tuple(body),
        thread=first.thread,
        stream=first.stream,
        phase=first.phase,
        origin=f"compile: {len(leaves)} ops",
    )


def _outside_flags(leaves: Sequence[Op], kernels: Sequence[Kernel]) -> list[bool]:
    """Return which ops stay outside of fused kernels: views, scatters, what a library computes."""
    library = {i for kernel in kernels if kernel.library for i in kernel.members}
    return [
        i in library or is_view(leaf) or leaf.base in SCATTERING for i, leaf in enumerate(leaves)
    ]


def _views(leaves: Sequence[Op]) -> dict[int, int]:
    """Return for each view the op that made its memory, where one of them did."""
    maker_by_buffer: dict[str, int] = {}
    maker_by_view: dict[int, int] = {}
    for i, leaf in enumerate(leaves):
        if is_view(leaf):
            maker_by_view.update(
                (i, maker_by_buffer[t.buffer]) for t in leaf.outputs if t.buffer in maker_by_buffer
            )
        else:
            maker_by_buffer.update((t.buffer, i) for t in leaf.outputs)
    return maker_by_view


def _kernel(members: Sequence[Op], group: Group, graph: Graph) -> Op:
    counts = Counter(member.name for member in members)
    first = members[0]
    return replace(
        _enclosing_op(KERNEL, members, _used_results(members, graph)),
        attributes={"launches": group.launches} if group.launches > 1 else {},
        body=tuple(members),
        thread=first.thread,
        stream=first.stream,
        phase=first.phase,
        module=first.module,
        origin="compile: " + ", ".join(f"{n} x {name}" for name, n in counts.items()),
    )


def _enclosing_op(name: str, members: Sequence[Op], results: Sequence[Tensor]) -> Op:
    """Return a call of members: what it takes and writes that they did not make."""
    defined: set[str] = set()
    inputs: dict[str, Tensor] = {}
    written: set[str] = set()
    for op in members:
        inputs.update((t.name, t) for t in op.inputs if t.name not in defined)
        written.update(t.name for t in written_by(op) if t.name not in defined)
        defined.update(t.name for t in op.outputs)
    return Op(name, tuple(inputs.values()), tuple(results), written=frozenset(written))


def _used_results(members: Sequence[Op], graph: Graph) -> list[Tensor]:
    """Return what ops make that others use, or that outlasts the step."""
    inside = Counter(t.name for op in members for t in op.inputs)
    use_counts, lasting = _uses(graph), live_out(graph)
    results = {t.name: t for op in members for t in op.outputs}
    return [t for name, t in results.items() if use_counts[name] > inside[name] or name in lasting]


@cached_per_graph
def _uses(graph: Graph) -> Counter[str]:
    """Return how many operands each tensor is, by name."""
    return Counter(t.name for leaf in graph.leaves() for t in leaf.inputs)
