"""A graph under other dimensions: every size that depends on one is recomputed."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

from irgraph.ir.dim import Dim, rebind
from irgraph.ir.edit import map_value
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op, Result, Value
from irgraph.ir.tensor import Tensor, negative, oversized

FIXED = "fixed"
"""Prefix of the setting that lists, for a dimension, the numbers that do not follow it."""

BETWEEN = "; "


FIXED_AT = "fixed_at"
"""Prefix of the setting that says at which size of a dimension those numbers hold."""


def fixed_sizes(dim: str, notes: Sequence[str], size: int) -> dict[str, Value]:
    """Return the settings by which a model keeps what does not follow from a dimension.

    ``size`` is that of the dimension at which the numbers hold.
    """
    if not notes:
        return {}
    return {f"{FIXED}_{dim}": BETWEEN.join(notes), f"{FIXED_AT}_{dim}": int(size)}


def kept_sizes(graph: Graph, dim: str) -> tuple[str, ...]:
    """Return the numbers that depend on a dimension in a way that no expression covers."""
    notes = graph.settings.get(f"{FIXED}_{dim}")
    return tuple(notes.split(BETWEEN)) if isinstance(notes, str) else ()


def held_at(graph: Graph) -> dict[str, int]:
    """Return the dimensions that some numbers do not follow, with the size at which those hold."""
    found = {}
    for name in graph.dims:
        size = graph.settings.get(f"{FIXED_AT}_{name}")
        if type(size) is int and kept_sizes(graph, name):
            found[name] = size
    return found


def unresized(graph: Graph, *sizes: Mapping[str, int]) -> list[str]:
    """Return a sentence for each dimension with a size that some of the step's numbers ignore.

    ``sizes`` are those that dimensions are to have; without any, they are the graph's own.
    """
    lines = []
    for name, at in held_at(graph).items():
        now = graph.dims[name]
        others = sorted({point.get(name, now) for point in sizes or ({},)} - {at})
        if others:
            first, *more = kept_sizes(graph, name)
            lines.append(
                f"{name} = {others[0]}, but some numbers hold at {name} = {at} alone and are as "
                f"they were there, with the work that follows from them: {first}"
                f"{f', and {len(more)} more' if more else ''}. Capture the step at that size"
            )
    return lines


def with_dims(graph: Graph, dims: Mapping[str, int]) -> Graph:
    """Return the graph with these dimensions set to new values; the others keep theirs.

    Shapes, strides and attributes that are expressions over the dimensions follow; plain numbers
    stay. Raises ``KeyError`` for a dimension that the graph lacks, ``ValueError`` for a size that
    is no whole number of at least 1, or one by which an axis gets negative or a tensor larger than
    any device.
    """
    lacking = dims.keys() - graph.dims.keys()
    if lacking:
        raise KeyError(min(lacking))
    change = Rebinding({**graph.dims, **{name: _whole(name, size) for name, size in dims.items()}})
    return replace(
        graph,
        dims=change.dims,
        tensors=tuple(replace(d, tensor=change.tensor(d.tensor)) for d in graph.tensors),
        ops=tuple(map(change.op, graph.ops)),
        returned=map_value(graph.returned, change.tensor),
    )


def _whole(name: str, size: object) -> int:
    """Return a size as a plain number; raise ``ValueError`` where it is no whole number above 0."""
    try:
        number = 0 if isinstance(size, bool) else operator.index(size)  # type: ignore[arg-type]
    except TypeError:
        number = 0
    if number < 1:
        message = f"the dimension {name} must be a whole number of at least 1, not {size!r}"
        raise ValueError(message)
    return number


class Rebinding:
    """Rebinds sizes; what does not change stays the same object, and so shares memory."""

    def __init__(
        self, dims: Mapping[str, int], size: Callable[[int, Mapping[str, int]], int] = rebind
    ) -> None:
        """Give the new sizes of all dimensions; ``size`` returns an expression's new value."""
        self.dims = dims
        self._size = size
        self._seen: dict[int, Tensor] = {}
        self._sizes: dict[object, int] = {}

    def op(self, op: Op) -> Op:
        """Return an op under the new dimensions, without its notes."""
        operands = tuple(map(self.value, op.operands))
        results = tuple(map(self.result, op.results))
        attributes = {name: self.value(v) for name, v in op.attributes.items()}
        body = tuple(map(self.op, op.body))
        pairs = (
            *zip(operands, op.operands, strict=True),
            *zip(results, op.results, strict=True),
            *zip(attributes.values(), op.attributes.values(), strict=True),
            *zip(body, op.body, strict=True),
        )
        if not op.notes and all(a is b for a, b in pairs):
            return op
        return replace(
            op, operands=operands, results=results, attributes=attributes, body=body, notes={}
        )

    def value(self, value: Value) -> Value:
        """Return an operand or attribute; the same object where nothing changes."""
        if isinstance(value, Tensor):
            return self.tensor(value)
        if isinstance(value, tuple):
            items = tuple(map(self.value, value))
            return value if all(a is b for a, b in zip(items, value, strict=True)) else items
        return self.size(value) if type(value) is Dim else value

    def size(self, size: int) -> int:
        """Return a size under the new dimensions; the same object for the same expression."""
        if type(size) is not Dim or self._size is not rebind:
            return self._size(size, self.dims)
        found = self._sizes.get(size.terms)
        if found is None:
            found = self._sizes[size.terms] = rebind(size, self.dims)
        return found

    def result(self, result: Result) -> Result:
        """Return a result; the same object where nothing changes."""
        if isinstance(result, tuple):
            tensors = tuple(map(self.tensor, result))
            return result if all(a is b for a, b in zip(tensors, result, strict=True)) else tensors
        return None if result is None else self.tensor(result)

    def tensor(self, tensor: Tensor) -> Tensor:
        """Return a tensor under the new dimensions; each is looked at once."""
        found = self._seen.get(id(tensor))
        if found is None:
            found = self._seen[id(tensor)] = self._tensor(tensor)
            problem = self._problem(found) if found is not tensor else ""
            if problem:
                raise ValueError(problem)
        return found

    def _problem(self, tensor: Tensor) -> str:
        """Return why a tensor cannot be; negative sizes are looked for where they are numbers."""
        below = self._size is rebind and min(tensor.shape, default=0) < 0
        return negative(tensor) if below else oversized(tensor)

    def _tensor(self, tensor: Tensor) -> Tensor:
        strides = tensor.strides
        sizes = (*tensor.shape, *(strides or ()), tensor.offset)
        if Dim not in map(type, sizes):
            return tensor
        return replace(
            tensor,
            shape=tuple(map(self.size, tensor.shape)),
            strides=None if strides is None else tuple(map(self.size, strides)),
            offset=self.size(tensor.offset),
        )
