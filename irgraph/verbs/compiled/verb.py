"""Builds the calls of compiled code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from irgraph.ir.dependence import dependences
from irgraph.ir.effects import is_view, returns_operand, written_by
from irgraph.ir.graph import Graph, cached_per_graph
from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor
from irgraph.ops.live_out import live_out
from irgraph.verbs.compiled.inductor import Kernel, partition
from irgraph.verbs.compiled.names import CALL, KERNEL
from irgraph.verbs.compiled.order import Group, groups_of, order_groups
from irgraph.verbs.compiled.regions import Region, RegionSearch
from irgraph.verbs.launch_order import declared
from irgraph.verbs.refusal import RefusedError

MIN_KERNEL_LAUNCHES = 2
"""Minimum number of launches of a single op for which it becomes a generated kernel."""
SCATTERING = frozenset({
    "embedding_dense_backward", "index_put", "index_put_", "_index_put_impl_", "index_add",
    "index_add_", "scatter_add", "scatter_add_", "scatter", "sort", "topk", "cumsum",
})  # fmt: skip
"""Ops whose time is not the time of a pass over memory."""


class Compiling(Struct, frozen=True):
    """Result of a compilation.

    Attributes:
        graph: the new graph.
        calls: the calls in it.
        excluded: requested ops that are in none of them, each with the reason.
    """

    graph: Graph
    calls: tuple[Op, ...]
    excluded: tuple[tuple[Op, RefusedError], ...]

    @property
    def fused(self) -> tuple[int, int]:
        """The number of ops in generated kernels, and the number of these kernels."""
        kernels = [op for call in self.calls for op in call.body if op.name == KERNEL]
        return sum(len(op.body) for op in kernels), len(kernels)


def compile_regions(graph: Graph, ops: Collection[Op] | None = None) -> Compiling:
    """Compile ops, or all of forward and backward, as ``torch.compile`` would.

    Each run of consecutive ops becomes one call. Inside of it Inductor's own scheduler decides
    which ops share a kernel; products, convolutions and attention remain library calls. The ops
    themselves are preserved, as the bodies of their kernels. Excluded are ops that torch cannot
    compile, ops that communicate, and a run of ops at one of which Inductor fails. Unlike
    ``torch.compile`` on a module, it saves for backward the same tensors as eager torch.

    Args:
        graph: the step.
        ops: the requested ops; ``None`` for all but the optimizer's.
    """
    search = RegionSearch(graph, None if ops is None else set(ops))
    replacements: dict[Op, list[Op]] = {}
    removed_ops: set[Op] = set()
    calls = []
    for region in list(search.regions(graph.ops)):
        try:
            calls.append(_call(graph, region))
        except RefusedError as error:
            search.excluded.update((leaf, (leaf, error)) for leaf in region.leaves)
            continue
        replacements[region.units[0]] = [calls[-1], *_between(region, graph)]
        removed_ops.update((*region.units, *_between(region, graph)))
    result = replace(graph, ops=tuple(_replaced_ops(graph.ops, replacements, removed_ops)))
    places = graph.places
    excluded = sorted(search.excluded.values(), key=lambda entry: places[entry[0]])
    return Compiling(result, tuple(calls), tuple(excluded))


def _between(region: Region, graph: Graph) -> list[Op]:
    """Return the ops between a region's ops that now follow them."""
    places = graph.places
    last = places[next(region.units[-1].leaves())]
    first = places[next(region.units[0].leaves())]
    return [op for op in region.later if first < places[next(op.leaves())] < last]


def _replaced_ops(
    ops: Sequence[Op], replacements: Mapping[Op, list[Op]], removed_ops: Collection[Op]
) -> Iterator[Op]:
    for op in ops:
        if op in replacements:
            yield from replacements[op]
        elif op not in removed_ops:
            body = (
                tuple(_replaced_ops(op.body, replacements, removed_ops))
                if op.is_annotation
                else op.body
            )
            yield op if body == op.body else replace(op, body=body)


def _call(graph: Graph, region: Region) -> Op:
    """Return the call that replaces a region."""
    leaves = region.leaves
    results = _used_results(leaves, graph)
    kernels = partition(graph, leaves, results)
    groups = groups_of(kernels, _outside_flags(leaves, kernels), _views(leaves))
    ties = dependences(leaves, declared(graph))
    body = []
    for group in order_groups(groups, ties):
        members = [leaves[i] for i in group.members]
        is_unchanged = len(members) == 1 and group.launches < MIN_KERNEL_LAUNCHES
        body.append(members[0] if is_unchanged else _kernel(members, group, graph))
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
    """Return for each op whether it is outside of fused kernels: views, scatters, library ops."""
    library = {i for kernel in kernels if kernel.library for i in kernel.members}
    return [
        i in library or is_view(leaf) or leaf.base in SCATTERING for i, leaf in enumerate(leaves)
    ]


def _views(leaves: Sequence[Op]) -> dict[int, int]:
    """Return the op that made the memory of each view, if it is among the leaves."""
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
    """Return a call of members: its operands and writes are those not made by members."""
    defined: set[str] = set()
    inputs: dict[str, Tensor] = {}
    written_names: set[str] = set()
    for op in members:
        inputs.update((t.name, t) for t in op.inputs if t.name not in defined)
        written_names.update(t.name for t in written_by(op) if t.name not in defined)
        defined.update(t.name for t in op.outputs)
    return Op(name, tuple(inputs.values()), tuple(results), written=frozenset(written_names))


def _used_results(members: Sequence[Op], graph: Graph) -> list[Tensor]:
    """Return the results of ops that others use, or that outlast the step."""
    inner_uses = Counter(t.name for op in members for t in op.inputs)
    use_counts, lasting = _uses(graph), live_out(graph)
    results = {t.name: t for op in members for t in op.outputs}
    return [
        t for name, t in results.items() if use_counts[name] > inner_uses[name] or name in lasting
    ]


@cached_per_graph
def _uses(graph: Graph) -> Counter[str]:
    """Return the number of uses of each tensor as an operand, by name."""
    leaves = (leaf for leaf in graph.leaves() if not returns_operand(leaf))
    return Counter(t.name for leaf in leaves for t in leaf.inputs)
