"""Changes to a graph, collected first and committed together."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import TypeVar

from msgspec.structs import replace

from irgraph.facts import fact
from irgraph.ir.graph import Graph
from irgraph.ir.op import Note, Op, Result, Value
from irgraph.ir.rarer_steps import without_rarer
from irgraph.ir.tensor import Tensor

V = TypeVar("V")

NO_NAMES: frozenset[str] = frozenset()

TIMED = ("time", "by", "model", "kernels")
"""Notes about an op's measured or predicted time."""


class Edit:
    """A set of changes to one graph; the graph itself never changes.

    Collect with ``remove``, ``insert`` and ``rename``, then ``commit`` builds the new graph in one
    pass. Scopes that lose all their ops are removed. A composite call that loses the op which
    defines its result is no longer a call: its remaining ops replace it.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._removed: set[Op] = set()
        self._before: dict[Op, list[Op]] = {}
        self._after: dict[Op, list[Op]] = {}
        self._at_end: list[Op] = []
        self._names: dict[str, Tensor] = {}

    def remove(self, op: Op) -> None:
        """Remove an op and all ops below it."""
        self._removed.add(op)

    def insert(self, new: Op, *, before: Op | None = None, after: Op | None = None) -> None:
        """Insert a new op before or after an op, in the same scope, or else at the graph's end."""
        if before is not None:
            self._before.setdefault(before, []).append(new)
        elif after is not None:
            self._after.setdefault(after, []).append(new)
        else:
            self._at_end.append(new)

    def rename(self, old: Tensor, new: Tensor) -> None:
        """Replace every use of ``old`` with ``new``."""
        self._names[old.name] = new

    def add(self, other: Edit) -> None:
        """Add the changes of another edit of the same graph, at different ops."""
        self._removed |= other._removed
        for own_ops, other_ops in ((self._before, other._before), (self._after, other._after)):
            for anchor, new in other_ops.items():
                own_ops.setdefault(anchor, []).extend(new)
        self._at_end.extend(other._at_end)
        self._names.update(other._names)

    @property
    def empty(self) -> bool:
        """Whether nothing would change."""
        insertions = self._before or self._after or self._at_end
        return not (self._removed or insertions or self._names)

    def commit(self) -> Graph:
        """Return the graph with all collected changes applied."""
        if self.empty:
            return self.graph
        touched = {*self._removed, *self._before, *self._after}
        ops = [new for op in self.graph.ops for new in self._rebuild(op, touched)]
        ops.extend(self._at_end)
        returned = self.graph.returned
        if self._names:
            names = _resolve_renames(self._names)
            ops = [map_tensors(op, lambda t: names.get(t.name, t)) for op in ops]
            returned = map_value(returned, lambda t: names.get(t.name, t))
        usual = without_rarer(self.graph)  # which an edit of this step does not change
        return replace(usual, ops=tuple(_tidy(ops, self.graph)), returned=returned)

    def _rebuild(self, op: Op, touched: set[Op]) -> Sequence[Op]:
        if op not in touched and (not op.body or touched.isdisjoint(op.below)):
            return (op,)
        before = self._before.get(op, [])
        after = self._after.get(op, [])
        if op in self._removed:
            return [*before, *after]
        if not op.body:
            return [*before, op, *after]
        body = [new for child in op.body for new in self._rebuild(child, touched)]
        if len(body) == len(op.body) and all(map(_is, body, op.body)):
            return [*before, op, *after]
        rebuilt = [replace(op, body=tuple(body))] if body else []
        return [*before, *rebuilt, *after]


def _is(a: object, b: object) -> bool:
    return a is b


def _resolve_renames(names: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Follow renames of renames to their end."""
    final = {}
    for name, tensor in names.items():
        while tensor.name in names and tensor.name != name:
            tensor = names[tensor.name]
        final[name] = tensor
    return final


def _tidy(ops: Iterable[Op], graph: Graph) -> list[Op]:
    """Update the operands and results of scopes after their bodies changed."""
    defined = {d.tensor.name for d in graph.tensors}
    original_ops = set(graph.ops)
    tidy: list[Op] = []
    for op in ops:
        if op in original_ops and _used_names(op) <= defined:
            defined.update(_defined_names(op))
            tidy.append(op)
        else:
            defined.difference_update(_defined_names(op))
            tidy += _tidy_scope(op, defined)
    return tidy


USED_SLOT, DEFINED_SLOT = "irgraph.ir.edit.takes", "irgraph.ir.edit.gives"
"""Slots of an op that cache the names it uses and defines: an op never changes."""


def _used_names(op: Op) -> frozenset[str]:
    """Return the names that an op's scopes use and that no earlier leaf inside them defines."""
    return fact(op, USED_SLOT, _collect_used_names) if op.body else NO_NAMES


def _collect_used_names(op: Op) -> frozenset[str]:
    names, defined = {t.name for t in op.inputs}, set[str]()
    for child in op.body:
        names |= _used_names(child) - defined
        defined.update(_defined_names(child))
    return frozenset(names)


def _defined_names(op: Op) -> Sequence[str]:
    """Return the names of the results of an op's leaves."""
    return fact(op, DEFINED_SLOT, _collect_defined_names)


def _collect_defined_names(op: Op) -> tuple[str, ...]:
    parts = [_defined_names(child) for child in op.body] or [[t.name for t in op.outputs]]
    return tuple(name for part in parts for name in part)


def _tidy_scope(op: Op, defined: set[str]) -> list[Op]:
    if not op.body:
        defined.update([t.name for t in op.outputs])
        return [op]
    before = {t.name for t in op.inputs if t.name in defined}
    body = tuple(new for child in op.body for new in _tidy_scope(child, defined))
    inside = {t.name for child in body for inner in child.walk() for t in inner.outputs}
    available = inside | {t.name for t in op.inputs}
    lacks_result = any(t.name not in available for t in op.outputs)
    dangling = any(t.name not in before for t in op.inputs)
    if (lacks_result or dangling) and not op.is_autograd and not op.is_annotation:
        return list(body)
    handed_back = any(t.name not in inside for t in op.outputs)  # an operand is no result
    same = len(body) == len(op.body) and all(map(_is, body, op.body))
    if same and not (lacks_result or dangling or handed_back):
        return [op]
    operands = tuple(v for v in op.operands if _is_defined(v, before))
    results = tuple(r for r in op.results if _is_defined(r, inside))
    return [replace(op, body=body, operands=operands, results=results)]


def _is_defined(value: Value, names: set[str]) -> bool:
    if isinstance(value, Tensor):
        return value.name in names
    if isinstance(value, tuple):
        return all(_is_defined(item, names) for item in value)
    return True


def map_value(value: V, change: Callable[[Tensor], Tensor]) -> V:
    """Apply a function to the tensors of an operand or result, inside lists as well."""
    if isinstance(value, Tensor):
        return change(value)  # type: ignore[return-value]
    if isinstance(value, tuple):
        return tuple(map_value(item, change) for item in value)  # type: ignore[return-value]
    return value


def map_tensors(op: Op, change: Callable[[Tensor], Tensor]) -> Op:
    """Return the op and all ops below it with a function applied to each of their tensors.

    An op loses its measured time if the type, size or device of one of its tensors changes.
    """
    operands: tuple[Value, ...] = map_value(op.operands, change)
    results: tuple[Result, ...] = map_value(op.results, change)
    attributes = {name: map_value(value, change) for name, value in op.attributes.items()}
    written = frozenset(change(t).name for t in op.inputs if t.name in op.written)
    body = tuple(map_tensors(child, change) for child in op.body)
    same_work = "by" not in op.notes or all(
        _has_equal_work(t, change(t)) for t in (*op.inputs, *op.outputs)
    )
    return replace(
        op,
        notes=op.notes if same_work else without_times(op.notes),
        operands=operands,
        results=results,
        attributes=attributes,
        written=written,
        body=body,
    )


def _has_equal_work(old: Tensor, new: Tensor) -> bool:
    """Return whether an op has equal work with either of two tensors."""
    before = old.dtype, old.shape, old.device, old.strides
    return new is old or before == (new.dtype, new.shape, new.device, new.strides)


def without_times(notes: Mapping[str, Note]) -> Mapping[str, Note]:
    """Return an op's notes without its time, the source of the time, and its launches."""
    return {name: note for name, note in notes.items() if name not in TIMED}


def free_name(name: str, used: Container[str]) -> str:
    """Return an unused name: the given name, or the name with a number appended."""
    if name not in used:
        return name
    low, high = 0, 1  # binary search: a name may have thousands of numbers
    while f"{name}_{high}" in used:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if f"{name}_{middle}" in used else (low, middle)
    return f"{name}_{high}"


def names_of(graph: Graph) -> set[str]:
    """Return all names of tensors and buffers of a graph."""
    return {tensor.buffer for tensor in graph.by_name.values()} | graph.by_name.keys()
