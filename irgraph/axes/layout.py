"""Layouts of the tensors of a graph after some of their axes have grown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import product

from irgraph.axes.algebra import Algebra
from irgraph.axes.propagation import Propagation
from irgraph.axes.relations import Argument, ConstrainedOp
from irgraph.axes.sizes import FixedSizeError
from irgraph.axes.slices import AxisSlice
from irgraph.axes.sparse import is_sparse
from irgraph.axes.views import dense_strides, end_argument, is_known_view, view_layouts
from irgraph.ir.tensor import Tensor, row_major
from irgraph.ops.strides import Layout


def arguments(change: Propagation) -> dict[Argument, int]:
    """Return all sizes among arguments that change, including starts and ends of slices."""
    size_by_argument = {key: size for key, size in change.sizes.items() if len(key) == 3}
    for run in change.slices.runs.values():
        if run is not None:
            size_by_argument.update(_bounds(change, run.slices))
    return size_by_argument


def _bounds(change: Propagation, slices: Iterable[AxisSlice]) -> Iterator[tuple[Argument, int]]:
    """Yield the new bounds of the slices of a run, by the arguments that specify them."""
    algebra = change.algebra
    offset = 0
    for axis_slice in slices:
        start = algebra.plus(axis_slice.start, offset)
        length = change.size(axis_slice.part)
        bounds = {"start": start, "end": algebra.plus(start, length), "length": length}
        offset = algebra.plus(offset, change.growth(axis_slice.part))
        for site, name in product(axis_slice.sites, bounds):
            is_bound = name in ("start", end_argument(site.op)) and name in site.op.attributes
            if is_bound and algebra.grows(bounds[name]):
                yield site.argument(name), bounds[name]


def layouts(change: Propagation, argument_sizes: Mapping[Argument, int]) -> dict[str, Layout]:
    """Return the layout of every tensor that changes, as expressions of the growth.

    Raises ``FixedSizeError`` if the layout of a tensor that grows is undetermined.
    """
    return _Layouts(change, argument_sizes).by_name


class _Layouts:
    def __init__(self, change: Propagation, argument_sizes: Mapping[Argument, int]) -> None:
        self.change = change
        self.algebra = change.algebra
        self.by_name: dict[str, Layout] = {}
        self._argument_sizes = argument_sizes
        self._shapes = {key[0] for key in change.sizes if len(key) == 2}
        self._sites = {key[0] for key in argument_sizes}
        self._allocated: dict[str, list[Tensor]] = {}
        for tensor in self._allocations():
            self._allocated.setdefault(tensor.buffer, []).append(tensor)
        for declared in change.uses.graph.tensors:
            if declared.tensor.name in self._shapes:
                self.by_name[declared.tensor.name] = self._new_layout(declared.tensor, None)
        for site in change.uses.sites:
            if not site.op.body:
                self._visit(site)

    def _allocations(self) -> Iterator[Tensor]:
        """Yield the tensors that are not known to be views of others."""
        yield from (declared.tensor for declared in self.change.uses.graph.tensors)
        for site in self.change.uses.sites:
            input_buffers = {tensor.buffer for tensor in site.inputs}
            if not site.op.body:
                yield from (y for y in site.outputs if y.buffer not in input_buffers)

    def _visit(self, site: ConstrainedOp) -> None:
        is_resized = any(t.name in self._shapes for t in site.outputs)
        is_moved = site.number in self._sites or (
            bool(site.inputs) and site.inputs[0].name in self.by_name
        )
        if not (is_moved or is_resized):
            return
        is_view = is_known_view(site)
        if not (is_view or is_resized):
            return
        if is_view and self._matches_rule(site):
            self._add_views(site)
            return
        input_by_buffer = {t.buffer: t for t in site.inputs}
        for tensor in site.outputs:
            base = input_by_buffer.get(tensor.buffer)
            has_other_shape = (
                base is not None and base.name in self.by_name and base.shape != tensor.shape
            )
            if has_other_shape and not is_sparse(site):
                raise FixedSizeError(site.op, f"{site.op.name} returns a view of an unknown kind")
            if tensor.name in self._shapes:
                self.by_name[tensor.name] = self._new_layout(tensor, site)

    def shape(self, tensor: Tensor) -> tuple[int, ...]:
        """Return the expressions of a tensor's sizes."""
        return tuple(self.change.size((tensor.name, i)) for i in range(tensor.rank))

    def _start_of(self, site: ConstrainedOp) -> int | None:
        return self._argument_sizes.get(site.argument("start"))

    def _add_views(self, site: ConstrainedOp) -> None:
        x = site.inputs[0]
        layout = self.by_name.get(x.name) or layout_of(x, self.algebra)
        shapes = [self.shape(y) for y in site.outputs]
        for y, view_layout in zip(
            site.outputs,
            view_layouts(site, layout, shapes, self._start_of(site), self.algebra),
            strict=True,
        ):
            self.by_name[y.name] = view_layout

    def _matches_rule(self, site: ConstrainedOp) -> bool:
        """Return whether the rule of a view reproduces the layout in the graph."""
        x = layout_of(site.inputs[0], self.algebra)
        shapes = [y.shape for y in site.outputs]
        rule_layouts = view_layouts(site, x, shapes, None, self.algebra)
        return all(map(_has_layout, site.outputs, rule_layouts))

    def _new_layout(self, tensor: Tensor, site: ConstrainedOp | None) -> Layout:
        neighbours = [t for t in self._allocated.get(tensor.buffer, ()) if t.offset > tensor.offset]
        if neighbours:
            message = f"%{neighbours[0].name} follows %{tensor.name} in ${tensor.buffer}"
            raise FixedSizeError(site.op if site else None, message)
        shape = self.shape(tensor)
        strides = dense_strides(tensor, shape, self.algebra)
        if strides is None:
            message = f"%{tensor.name} has gaps between its elements"
            raise FixedSizeError(site.op if site else None, message)
        return Layout(shape, tuple(strides), tensor.offset)


def _has_layout(tensor: Tensor, layout: Layout) -> bool:
    """Return whether a tensor has a layout; strides of axes of one element are arbitrary."""
    strides = tensor.strides or row_major(tensor.shape)
    steps = zip(tensor.shape, strides, layout.strides, strict=True)
    return tensor.offset == layout.offset and all(size == 1 or a == b for size, a, b in steps)


def layout_of(tensor: Tensor, algebra: Algebra) -> Layout:
    """Return a tensor's layout, with strides as expressions."""
    strides = tensor.strides
    if strides is None:
        strides = tuple(dense_strides(tensor, tensor.shape, algebra) or ())
    return Layout(tensor.shape, strides, tensor.offset)
