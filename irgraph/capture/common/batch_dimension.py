"""Finds the batch dimension by comparing captures of a step at several batch sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

from msgspec.structs import replace

from irgraph.capture.common.calls import Item
from irgraph.ir.dim import BATCH, make
from irgraph.ir.graph import Declared, Graph
from irgraph.ir.op import Op
from irgraph.ir.resize import fixed_settings
from irgraph.ir.tensor import Tensor

COUNTERS = "numbers of {}{} change from step to step: they stay as captured"

NOT_LINEAR = "is not linear in the batch size"
NO_MULTIPLE = "no whole multiple of the batch size: kept"
NOT_CONSTANT = "depends on the batch size"
DROPPED = "depends on the batch size: it is not kept"
REASONS = (NOT_LINEAR, NO_MULTIPLE, DROPPED, NOT_CONSTANT)
"""Reasons why a number, or another value, stays as captured."""


class DifferentStructureError(ValueError):
    """Raised for captures that do not make the same calls; the message has the first difference."""


def with_batch(
    graphs: Mapping[int, Graph], batch: int, name: str = BATCH, repeat: Graph | None = None
) -> tuple[Graph, list[str]]:
    """Return the graph captured at ``batch`` with every size that follows from it as a ``Dim``.

    ``graphs`` holds captures of one step by batch size, two or more. A number becomes an
    expression ``a*B+c`` if one fits all captures; other numbers stay plain and are listed.

    ``repeat`` is a later step at ``batch``: numbers that it changes are counters, such as offsets
    in a queue and Adam's bias corrections, and do not follow from the batch size.

    Raises:
        DifferentStructureError: the captures make different calls.
    """
    merge = _Merge(graphs, batch, name, repeats=repeat is not None)
    other_graphs = [graphs[size] for size in merge.sizes[1 : len(graphs)]]
    other_graphs += [repeat] if repeat is not None else []
    base = graphs[batch]
    for other in other_graphs:
        _require_same_length(base.ops, other.ops, "the step")
    ops = tuple(
        merge.op(parts) for parts in zip(base.ops, *(g.ops for g in other_graphs), strict=True)
    )
    declared = [g.tensors for g in (base, *other_graphs)]
    if len({len(tensors) for tensors in declared}) > 1:
        raise DifferentStructureError("they use different tensors from before the step")
    tensors = tuple(merge.declared(parts) for parts in zip(*declared, strict=True))
    returned = merge.returned([graph.returned for graph in (base, *other_graphs)])
    settings = {**base.settings, **fixed_settings(name, sorted(merge.misfits), batch)}
    dims = {**base.dims, name: batch}
    symbolic = replace(
        base, dims=dims, settings=settings, ops=ops, tensors=tensors, returned=returned
    )
    notes = _misfit_notes(sorted(merge.misfits)) + _counter_notes(merge.counters)
    return (symbolic if merge.is_symbolic else base), notes


def _misfit_notes(misfits: Sequence[str]) -> list[str]:
    """Return one note for each reason, with the first number that it holds for."""
    by_reason: dict[str, list[str]] = {}
    for misfit in misfits:
        reason = next((reason for reason in REASONS if reason in misfit), misfit)
        by_reason.setdefault(reason, []).append(misfit)
    notes = []
    for first, *others in by_reason.values():
        end = f" (and {len(others)} more)" if others else ""
        notes.append(first + end)
    return notes


def _counter_notes(locations: Sequence[str]) -> list[str]:
    """Return one note on the numbers that change from step to step, named by their locations."""
    if not locations:
        return []
    others = f" and {len(locations) - 1} more" if len(locations) > 1 else ""
    return [COUNTERS.format(locations[0], others)]


def _require_same_length(a: Sequence[Item], b: Sequence[Item], caller: str) -> None:
    if len(a) != len(b):
        raise DifferentStructureError(
            f"{caller} makes {len(a)} calls at one size, {len(b)} at another"
        )


def _is_same(a: Item, b: Item) -> bool:
    """Return whether two plain values, or tuples of them, are equal; nan equals nan."""
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(_is_same, a, b))
    return bool(a == b) or (a != a and b != b)


class _Merge:
    def __init__(
        self, graphs: Mapping[int, Graph], batch: int, name: str, *, repeats: bool
    ) -> None:
        self.name = name
        self.sizes = [batch, *(size for size in graphs if size != batch)]
        self.sizes += [batch] if repeats else []
        self.repeats = repeats
        self.counters: list[str] = []
        self._drifts: list[list[int]] = []
        self.misfits: set[str] = set()
        self.is_symbolic = False
        self._tensors: dict[str, Tensor] = {}
        self._location = ""

    def op(self, parts: Sequence[Op]) -> Op:
        first = parts[0]
        for part in parts[1:]:
            if part.name != first.name:
                raise DifferentStructureError(f"{first.origin} is {first.name}, then {part.name}")
            _require_same_length(first.body, part.body, first.name)
            if list(part.attributes) != list(first.attributes):
                raise DifferentStructureError(
                    f"{first.name} has different arguments ({first.origin})"
                )
        self._location = f"{first.name} ({first.origin})"
        self._drifts = []
        operands = self.value([part.operands for part in parts])
        results = self.value([part.results for part in parts])
        attributes = {
            key: self.value([part.attributes[key] for part in parts]) for key in first.attributes
        }
        body = tuple(self.op(children) for children in zip(*(p.body for p in parts), strict=True))
        return replace(first, operands=operands, results=results, attributes=attributes, body=body)

    def value(self, parts: Sequence[Item]) -> Item:
        first = parts[0]
        if len({type(part) for part in parts}) > 1:
            raise DifferentStructureError(f"{self._location} has arguments of different kinds")
        if isinstance(first, Tensor):
            return self.tensor(parts)
        if isinstance(first, tuple):
            if len({len(part) for part in parts}) > 1:
                raise DifferentStructureError(f"{self._location} has lists of different lengths")
            return tuple(self.value(items) for items in zip(*parts, strict=True))
        if type(first) is int:
            return self.number(parts)
        is_counter = self.repeats and not _is_same(parts[-1], first)
        if not is_counter and not all(_is_same(part, first) for part in parts):
            self.misfits.add(f"{self._location}: {first!r} {NOT_CONSTANT}")
        return first

    def tensor(self, parts: Sequence[Tensor]) -> Tensor:
        first = parts[0]
        if first.name in self._tensors:
            return self._tensors[first.name]
        for part in parts[1:]:
            if (part.name, part.rank, part.buffer) != (first.name, first.rank, first.buffer):
                raise DifferentStructureError(f"%{first.name} is %{part.name} at another size")
        strides = [part.strides for part in parts]
        tensor = replace(
            first,
            shape=tuple(map(self.number, zip(*(part.shape for part in parts), strict=True))),
            strides=None if any(s is None for s in strides) else self.strides(strides),
            offset=self.number([part.offset for part in parts]),
        )
        self._tensors[first.name] = tensor
        return tensor

    def declared(self, parts: Sequence[Declared]) -> Declared:
        """Return a tensor from before the step, without its value if that depends on the size."""
        first = parts[0]
        tensor = self.tensor([part.tensor for part in parts])
        if all(_is_same(part.value, first.value) for part in parts):
            return replace(first, tensor=tensor)
        self.misfits.add(f"the value of %{tensor.name} {DROPPED}")
        return replace(first, tensor=tensor, value=None)

    def returned(self, parts: Sequence[tuple[Tensor, ...] | None]) -> tuple[Tensor, ...] | None:
        """Return the results of the step, ``None`` if they are unknown at any batch size."""
        results = [part for part in parts if part is not None]
        if len(results) < len(parts):
            return None
        if len({len(part) for part in results}) > 1:
            raise DifferentStructureError("it returns another number of tensors")
        return tuple(map(self.tensor, zip(*results, strict=True)))

    def strides(self, parts: Sequence[Item]) -> tuple[int, ...]:
        return tuple(map(self.number, zip(*parts, strict=True)))

    def _misfit_reason(self, parts: Sequence[int]) -> str:
        """Return the reason, for a note, why no ``a*B+c`` fits a number."""
        share = Fraction(parts[0], self.sizes[0])
        if all(share * size == part for size, part in zip(self.sizes, parts, strict=True)):
            name = f"{self.name}*{share.numerator}" if share.numerator > 1 else self.name
            return f"is {name}/{share.denominator}, {NO_MULTIPLE}"
        return NOT_LINEAR

    def number(self, parts: Sequence[int]) -> int:
        """Return a number given at every batch size: plain, or ``a*B+c`` if that fits them all."""
        first = parts[0]
        if all(part == first for part in parts):
            return first
        if self.repeats and parts[-1] != first:
            return self._counter(parts)
        line = self._line(parts)
        if line is None:
            self.misfits.add(f"{self._location}: {first} {self._misfit_reason(parts)}")
            return first
        return self._expression(*line)

    def _counter(self, parts: Sequence[int]) -> int:
        """Return a number that changes from step to step.

        The end of a slice moves with its start: without the start's drift it may follow from the
        batch size.
        """
        for drift in self._drifts:
            remaining = [part - change for part, change in zip(parts, drift, strict=True)]
            line = self._line(remaining)
            if line is not None:
                return self._expression(*line) if line[0] else parts[0]
        self._drifts.append([part - parts[0] for part in parts])
        if self._location not in self.counters:
            self.counters.append(self._location)
        return parts[0]

    def _line(self, parts: Sequence[int]) -> tuple[int, int] | None:
        """Return ``a`` and ``c`` of the line ``a*B+c`` through all sizes, ``None`` without one."""
        slope, rest = divmod(parts[1] - parts[0], self.sizes[1] - self.sizes[0])
        constant = parts[0] - slope * self.sizes[0]
        pairs = zip(self.sizes, parts, strict=True)
        is_line = not rest and all(slope * size + constant == part for size, part in pairs)
        return (slope, constant) if is_line else None

    def _expression(self, slope: int, constant: int) -> int:
        self.is_symbolic = True
        terms = (((self.name,), slope), ((), constant))
        return make(terms, {self.name: self.sizes[0]})
