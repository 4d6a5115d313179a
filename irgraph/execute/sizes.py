"""Sizes at which a graph can be run: small dimensions, short tables."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from msgspec.structs import replace

from irgraph.diagnostics import SourceSpan, fail, suggestion
from irgraph.execute.integer_constraints import table_rows
from irgraph.ir.dim import Dim
from irgraph.ir.edit import map_value
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op, Value
from irgraph.ir.resize import with_dims
from irgraph.ir.tensor import Tensor

MAX_SMALL_SIZE = 8
"""Maximum size of dimensions without a specified size."""

TABLE_CUT_LIMIT = 256 << 20
"""Number of bytes of a graph above which its tables are cut, so that it runs in about a second."""

ROW_COUNT_ATTRIBUTES = ("num_weights", "size", "shape")
"""Attributes that contain the number of rows of a table."""


def resize(graph: Graph, dims: Mapping[str, int]) -> Graph:
    """Return a graph at other sizes; raise an error for an unknown dimension or an invalid size."""
    for name in dims:
        if name not in graph.dims:
            names = ", ".join(graph.dims) or "none"
            message = f"the model has no dimension {name!r}{suggestion(name, graph.dims)}"
            raise fail(message, hint=f"its dimensions: {names}", exit_code=2)
    try:
        return with_dims(graph, dims) if dims else graph
    except ValueError as error:
        raise fail(str(error), exit_code=2) from None


def small_sizes(
    graphs: Sequence[Graph],
    dims: Mapping[str, int],
    rows: int,
    limit: int,
    max_size: int = MAX_SMALL_SIZE,
) -> tuple[list[Graph], list[str]]:
    """Return graphs at small sizes, the same in each, and a sentence for each choice.

    Dimensions that are not in ``dims`` are reduced to at most ``max_size``. If a graph would use
    more than 256 MiB (or ``limit``), tables with more than ``rows`` rows are cut to that number,
    with all sizes that are equal to their number of rows.
    """
    names = {name for graph in graphs for name in graph.dims}
    for name in dims:
        if name not in names:
            message = f"no model has a dimension {name!r}{suggestion(name, names)}"
            raise fail(
                message, hint=f"dimensions: {', '.join(sorted(names)) or 'none'}", exit_code=2
            )
    sizes = {
        name: min(max_size, *(g.dims.get(name, max_size) for g in graphs)) for name in sorted(names)
    }
    sizes.update(dims)
    small = [
        resize(graph, {name: size for name, size in sizes.items() if name in graph.dims})
        for graph in graphs
    ]
    notes = ["at " + ", ".join(f"{name} = {size}" for name, size in sizes.items())] if sizes else []
    if max(map(memory, small)) > min(limit, TABLE_CUT_LIMIT):
        long = {n for g in small for n in table_rows(g) if n > rows}
        small = [_cut_tables(graph, long, rows) for graph in small]
        if long:
            lengths = ", ".join(f"{n:,}" for n in sorted(long))
            notes.append(f"tables of {lengths} rows cut to {rows:,}")
    check_memory(small, limit)
    return small, notes


def check_memory(graphs: Sequence[Graph], limit: int) -> None:
    """Raise an error if the tensors of a graph would use more than ``limit`` bytes."""
    for graph in graphs:
        total = memory(graph)
        if total > limit:
            largest = max(graph.by_name.values(), key=lambda tensor: tensor.nbytes)
            sizes = "x".join(str(int(n)) for n in largest.shape)
            raise fail(
                f"executing this model takes {total / 2**30:.3g} GiB, more than the limit of "
                f"{limit / 2**30:.3g} GiB; its largest tensor is %{largest.name}, {sizes}",
                SourceSpan(graph.source or graph.name),
                hint="give smaller sizes (--dim), shorter tables (--rows) or another --limit",
            )


def memory(graph: Graph) -> int:
    """Return the number of bytes of all buffers of a graph together."""
    ends: dict[str, int] = {}
    for tensor in graph.by_name.values():
        ends[tensor.buffer] = max(ends.get(tensor.buffer, 0), tensor.extent[1])
    return sum(ends.values())


def _cut_tables(graph: Graph, long: Collection[int], rows: int) -> Graph:
    """Return a graph with every constant size among ``long`` replaced by ``rows``."""

    def size(number: int) -> int:
        return rows if number in long and not isinstance(number, Dim) else number

    def tensor(old: Tensor) -> Tensor:
        strides = old.strides and tuple(map(size, old.strides))
        return replace(old, shape=tuple(map(size, old.shape)), strides=strides)

    def count(value: Value) -> Value:
        if isinstance(value, tuple):
            return tuple(map(count, value))
        is_number = isinstance(value, int) and not isinstance(value, bool)
        return size(value) if is_number else value  # type: ignore[arg-type]

    def cut(op: Op) -> Op:
        attributes = {
            name: count(value) if name in ROW_COUNT_ATTRIBUTES else map_value(value, tensor)
            for name, value in op.attributes.items()
        }
        return replace(
            op,
            operands=map_value(op.operands, tensor),
            results=map_value(op.results, tensor),
            attributes=attributes,
            body=tuple(map(cut, op.body)),
        )

    declared = tuple(replace(d, tensor=tensor(d.tensor)) for d in graph.tensors)
    returned = map_value(graph.returned, tensor)
    return replace(graph, tensors=declared, ops=tuple(map(cut, graph.ops)), returned=returned)
