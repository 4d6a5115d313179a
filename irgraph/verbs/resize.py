"""``resize``: a dimension, or one axis of a tensor, has another size, with all dependent sizes."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from irgraph.axes.algebra import terms_of
from irgraph.axes.derived_numbers import derived_numbers
from irgraph.axes.growth import growth_of
from irgraph.axes.sizes import FixedSizeError
from irgraph.diagnostics import suggestion
from irgraph.ir.dim import Dim
from irgraph.ir.graph import Graph
from irgraph.ir.resize import fixed_numbers, with_dims
from irgraph.verbs.refusal import RefusedError
from irgraph.verbs.torch_check import check_sizes

MAX_CACHED_OPS = 8192
"""Maximum number of ops of a step whose resized ops are cached; larger steps need the memory."""


class Axis(Struct, frozen=True):
    """One axis of a tensor, by the tensor's name; indices count from 0, or back from -1."""

    tensor: str
    index: int

    def __str__(self) -> str:
        """Return the axis as scripts spell it."""
        return f"%{self.tensor}.shape[{self.index}]"


class Resizing(Struct, frozen=True):
    """A resized graph, and the names of the tensors that changed.

    ``fixed_sizes`` describes numbers that the capture found to depend on the dimension, in a way
    that no expression over it has, or that seem to be computed from an axis: they are unchanged.
    """

    graph: Graph
    changed: tuple[str, ...]
    fixed_sizes: tuple[str, ...] = ()


def resize(graph: Graph, target: str | Axis | Sequence[Axis], size: int) -> Resizing:
    """Return the graph with a dimension, or with axes of one size, at another size.

    If an axis grows, every axis grows that some op requires to be equal: the gradient of a weight,
    its optimizer state, operands of neighbouring ops. Sizes among arguments follow. Three
    conventions decide ambiguous sizes: the number of indices a bag of a lookup is unchanged if the
    number of bags grows; an axis that is split into equal parts gives its growth to the last of
    them; equal parts that were concatenated and are split again equally grow together.

    Args:
        graph: is not changed.
        target: the name of a dimension, or one axis, or several of one size that become one size.
        size: at least 1; for an axis that follows from dimensions a multiple of them. An axis
            that is a dimension resizes that.

    Raises:
        RefusedError: there is no such dimension or axis, or an op fixes a size that would have to
            follow; ``notes`` names that op.
    """
    if size < 1:
        raise RefusedError(f"a size must be at least 1, not {size}")
    if isinstance(target, str):
        return _dimension(graph, target, size)
    axes = [target] if isinstance(target, Axis) else list(target)
    current_size = _size_of(graph, axes)
    if current_size == size:
        return Resizing(graph, ())
    if (
        isinstance(current_size, Dim)
        and len(terms_of(current_size)) == 1
        and terms_of(current_size)[0][1] == 1
    ):
        names = terms_of(current_size)[0][0]
        if len(names) == 1:
            return _dimension(graph, names[0], size)
    return _axes(graph, axes, current_size, size)


def _size_of(graph: Graph, axes: Sequence[Axis]) -> int:
    """Return the size that axes share, or refuse if they differ."""
    sizes = []
    for axis in axes:
        tensor = graph.by_name.get(axis.tensor)
        if tensor is None:
            hint = suggestion(axis.tensor, graph.by_name)
            raise RefusedError(f"the model has no tensor %{axis.tensor}{hint}")
        if not -tensor.rank <= axis.index < tensor.rank:
            raise RefusedError(f"%{axis.tensor} has {tensor.rank} axes, so none {axis.index}")
        sizes.append(tensor.shape[axis.index])
    if len({terms_of(size) for size in sizes}) != 1:
        raise RefusedError("the axes have different sizes: resize axes of equal size together")
    return sizes[0]


def _dimension(graph: Graph, name: str, size: int) -> Resizing:
    if name not in graph.dims:
        raise RefusedError(f"the model has no dimension {name!r}{suggestion(name, graph.dims)}")
    if graph.dims[name] == size:
        return Resizing(graph, ())
    try:
        is_small = sum(1 for _ in graph.walk()) <= MAX_CACHED_OPS
        resized = with_dims(graph, {name: size}, keep=is_small)
    except ValueError as error:
        raise RefusedError(str(error)) from None
    check_sizes(graph, resized)
    resized_by_name = resized.by_name
    changed_names = (
        old.name for old in graph.by_name.values() if resized_by_name[old.name] is not old
    )
    return Resizing(resized, tuple(changed_names), fixed_numbers(graph, name))


def _axes(graph: Graph, axes: Sequence[Axis], current_size: int, size: int) -> Resizing:
    seeds = sorted({(a.tensor, a.index % graph.by_name[a.tensor].rank) for a in axes})
    try:
        growth = growth_of(graph, seeds)
        multiple = growth.multiple
        if size % multiple:
            raise RefusedError(
                f"its size is {current_size}: "
                f"the new size must be a multiple of {_size_text(multiple)}"
            )
        resized = growth.graph_at(size)
        return Resizing(resized, tuple(growth.tensors), derived_numbers(graph, resized))
    except FixedSizeError as error:
        notes = [(error.op, "")] if error.op is not None else []
        raise RefusedError(error.message, notes) from None


def _size_text(size: int) -> str:
    return f"{size} = {int(size)}" if isinstance(size, Dim) else str(size)
