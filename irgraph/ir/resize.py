"""A graph under other dimensions: every size that depends on one is recomputed."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from operator import is_
from typing import TypeVar

from msgspec.structs import replace

from irgraph.facts import FactTable, fact, facts_of, share_lasting_facts
from irgraph.ir.dim import Dim, rebind
from irgraph.ir.edit import map_value
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op, Value, convert_names
from irgraph.ir.rarer_steps import without_rarer
from irgraph.ir.tensor import Tensor, negative_size_error, size_error

V = TypeVar("V")

FIXED = "fixed"
"""Prefix of the setting that lists, for a dimension, the numbers that do not scale with it."""

BETWEEN = "; "


FIXED_AT = "fixed_at"
"""Prefix of the setting with the size of the dimension at which those numbers hold."""


def fixed_settings(dim: str, notes: Sequence[str], size: int) -> dict[str, Value]:
    """Return the settings that list a model's numbers that do not scale with a dimension.

    ``size`` is the size of the dimension at which the numbers hold.
    """
    if not notes:
        return {}
    return {f"{FIXED}_{dim}": BETWEEN.join(notes), f"{FIXED_AT}_{dim}": int(size)}


def fixed_numbers(graph: Graph, dim: str) -> tuple[str, ...]:
    """Return the numbers that depend on a dimension but not by an expression over it."""
    notes = graph.settings.get(f"{FIXED}_{dim}")
    return tuple(notes.split(BETWEEN)) if isinstance(notes, str) else ()


def fixed_dims(graph: Graph) -> dict[str, int]:
    """Return the dimensions with fixed numbers, and the size at which these numbers hold."""
    size_by_dim = {}
    for name in graph.dims:
        size = graph.settings.get(f"{FIXED_AT}_{name}")
        if type(size) is int and fixed_numbers(graph, name):
            size_by_dim[name] = size
    return size_by_dim


def unresized_warnings(graph: Graph, *sizes: Mapping[str, int]) -> list[str]:
    """Return a warning for each dimension whose new size some of the step's numbers ignore.

    ``sizes`` are the new sizes of dimensions; by default, the graph's own sizes.
    """
    lines = []
    for name, fixed_size in fixed_dims(graph).items():
        current = graph.dims[name]
        other_sizes = sorted({point.get(name, current) for point in sizes or ({},)} - {fixed_size})
        if other_sizes:
            first, *further = fixed_numbers(graph, name)
            lines.append(
                f"{name} = {other_sizes[0]}, but some numbers hold at {name} = {fixed_size} alone "
                f"and are as they were there, with the work that follows from them: {first}"
                f"{f', and {len(further)} more' if further else ''}. Capture the step at that size"
            )
    return lines


def with_dims(graph: Graph, dims: Mapping[str, int], *, keep: bool = False) -> Graph:
    """Return the graph with these dimensions set to new values; other dimensions are unchanged.

    Shapes, strides and attributes that are expressions over the dimensions are recomputed; plain
    numbers are unchanged. Rarer steps are resized as well; if one lacks a dimension, all of them
    are dropped, with a note. ``keep`` makes ops cache their resized ops at the last sizes, with all
    facts cached on those later, for this graph and other graphs that share the ops.

    Raises ``KeyError`` for a dimension that the graph lacks, and ``ValueError`` for a size that is
    not a whole number of at least 1, or that makes an axis negative or a tensor larger than any
    device.
    """
    missing = dims.keys() - graph.dims.keys()
    if missing:
        raise KeyError(min(missing))
    sizes = {**graph.dims, **{name: _validate_size(name, size) for name, size in dims.items()}}
    change = (CachedSubstitution if keep else DimSubstitution)(sizes)
    if any(dims.keys() - rarer.dims.keys() for rarer in graph.rarer):
        graph = without_rarer(graph)  # nothing states how those steps depend on the dimension
    return replace(
        graph,
        dims=change.dims,
        tensors=tuple(replace(d, tensor=change.tensor(d.tensor)) for d in graph.tensors),
        ops=tuple(map(change.op, graph.ops)),
        returned=map_value(graph.returned, change.tensor),
        rarer=tuple(with_dims(rarer, dims, keep=keep) for rarer in graph.rarer),
    )


def _validate_size(name: str, size: object) -> int:
    """Return a size as a plain number; raise ``ValueError`` if it is no whole number above 0."""
    try:
        number = 0 if isinstance(size, bool) else operator.index(size)  # type: ignore[arg-type]
    except TypeError:
        number = 0
    if number < 1:
        message = f"the dimension {name} must be a whole number of at least 1, not {size!r}"
        raise ValueError(message)
    return number


class DimSubstitution:
    """Substitution of new dimensions; unchanged ops and tensors stay the same objects."""

    def __init__(
        self, dims: Mapping[str, int], size: Callable[[int, Mapping[str, int]], int] = rebind
    ) -> None:
        """Store the new sizes of all dimensions; ``size`` returns an expression's new value."""
        self.dims = dims
        self._size = size
        self._seen: dict[int, Tensor] = {}
        self._sizes: dict[object, int] = {}

    def op(self, op: Op) -> Op:
        """Return an op under the new dimensions, without its notes."""
        if self._size is rebind and _is_fixed(op):
            return op
        operands, results = self.values(op.operands), self.values(op.results)
        attributes = op.attributes
        if attributes and not fact(op, FIXED_ATTRIBUTES_SLOT, _has_fixed_attributes):
            attributes = {name: self.value(value) for name, value in attributes.items()}
        body = tuple([self.op(child) for child in op.body]) if op.body else op.body
        if (
            operands is op.operands
            and results is op.results
            and not op.notes
            and attributes is op.attributes
            and all(map(is_, body, op.body))
        ):
            return op
        resized = replace(
            op, operands=operands, results=results, attributes=attributes, body=body, notes={}
        )
        share_lasting_facts(op, resized)
        return resized

    def values(self, values: tuple[V, ...]) -> tuple[V, ...]:
        """Return operands or results under the new dimensions; the same object if unchanged."""
        seen = self._seen
        resized = [
            (seen.get(id(value)) if type(value) is Tensor else None) or self.value(value)  # type: ignore[arg-type]
            for value in values
        ]
        return values if all(map(is_, resized, values)) else tuple(resized)  # type: ignore[arg-type]

    def value(self, value: Value) -> Value:
        """Return a value under the new dimensions; the same object if unchanged."""
        if isinstance(value, Tensor):
            return self.tensor(value)
        if isinstance(value, tuple):
            return self.values(value)
        return self.size(value) if type(value) is Dim else value

    def size(self, size: int) -> int:
        """Return a size under the new dimensions; the same object for the same expression."""
        if type(size) is not Dim or self._size is not rebind:
            return self._size(size, self.dims)
        rebound = self._sizes.get(size.terms)
        if rebound is None:
            rebound = self._sizes[size.terms] = rebind(size, self.dims)
        return rebound

    def tensor(self, tensor: Tensor) -> Tensor:
        """Return a tensor under the new dimensions; each tensor is computed once."""
        resized = self._seen.get(id(tensor))
        if resized is None:
            resized = self._seen[id(tensor)] = self._tensor(tensor)
            problem = self._problem(resized) if resized is not tensor else ""
            if problem:
                raise ValueError(problem)
        return resized

    def _problem(self, tensor: Tensor) -> str:
        """Return the reason why a tensor is invalid, ``""`` if valid."""
        is_negative = self._size is rebind and min(tensor.shape, default=0) < 0
        return negative_size_error(tensor) if is_negative else size_error(tensor)

    def _tensor(self, tensor: Tensor) -> Tensor:
        shape, strides, offset = tensor.shape, tensor.strides, tensor.offset
        if Dim not in map(type, (*shape, *(strides or ()), offset)):
            return tensor
        new_strides = None if strides is None else tuple(map(self.size, strides))
        sizes, start = tuple(map(self.size, shape)), self.size(offset)
        return Tensor(
            tensor.name, tensor.dtype, sizes, tensor.buffer, new_strides, start, tensor.device
        )


RESIZED_SLOT = "irgraph.ir.resize.sizes"
"""Slot of an op that caches its resized ops, by their sizes."""

MAX_CACHED_SIZES = 4
"""Maximum number of sizes for which an op caches its resized op."""


class CachedSubstitution(DimSubstitution):
    """Substitution of new dimensions that caches resized ops on the original ops.

    A resized op caches no resized ops itself: otherwise a step that is resized repeatedly would
    retain all its earlier versions.
    """

    def __init__(self, dims: Mapping[str, int]) -> None:
        super().__init__(dims)
        self._key = tuple(dims.items())

    def op(self, op: Op) -> Op:
        """Return an op under the new dimensions, without its notes, from the cache if possible."""
        if _is_fixed(op):
            return op
        resized_by_sizes: dict[object, Op] | None = facts_of(op).setdefault(
            RESIZED_SLOT, FactTable(MAX_CACHED_SIZES)
        )
        if resized_by_sizes is None:
            return super().op(op)
        resized = resized_by_sizes.get(self._key)
        if resized is None:
            resized = super().op(op)
            facts_of(resized)[RESIZED_SLOT] = None
            if op.body:
                convert_names(op, resized, self.tensor)
            resized_by_sizes[self._key] = resized
        return resized


FIXED_SLOT = "irgraph.ir.resize"
"""Slot of an op that caches whether it is independent of all dimensions."""


def _is_fixed(op: Op) -> bool:
    """Return whether an op and all ops below it are without notes and independent of dimensions."""
    return fact(op, FIXED_SLOT, _compute_is_fixed)


def _compute_is_fixed(op: Op) -> bool:
    values = (*op.operands, *op.results, *op.attributes.values())
    return not op.notes and not any(map(_depends_on_dims, values)) and all(map(_is_fixed, op.body))


FIXED_ATTRIBUTES_SLOT = "irgraph.ir.resize.attributes"
"""Slot of an op that caches whether its attributes are independent of all dimensions."""


def _has_fixed_attributes(op: Op) -> bool:
    return not any(map(_depends_on_dims, op.attributes.values()))


def _depends_on_dims(value: object) -> bool:
    """Return whether a size in a value is an expression over the dimensions."""
    if type(value) is Tensor:
        return Dim in map(type, (*value.shape, *(value.strides or ()), value.offset))
    return any(map(_depends_on_dims, value)) if isinstance(value, tuple) else type(value) is Dim
