"""Results of executions and comparisons; reading them does not require torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from msgspec import Struct, field

MAX_LISTED = 6
"""Maximum number of names that a line of text lists before it counts the others."""


class Result(Struct, frozen=True):
    """Result of a step.

    Attributes:
        values: every tensor by name, at the end of the step.
        initial: initial values: declared tensors, and memory that no op fills.
        read: reads of the host, in order: the tensor's name, and its value at the time.
    """

    values: Mapping[str, Any]
    initial: Mapping[str, Any]
    read: Sequence[tuple[str, Any]] = ()

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401  (a torch tensor)
        """Return a tensor's value at the end of the step."""
        return self.values[name]

    def reads_of(self, name: str) -> Any:  # noqa: ANN401  (a torch tensor)
        """Return the values of a tensor that the host read, stacked in order."""
        import torch

        values = [value for read, value in self.read if read == name]
        return torch.stack(values) if values else torch.empty(0)


class Compared(Struct, frozen=True):
    """One tensor in both graphs.

    Attributes:
        name: of the tensor, without ``%``.
        kind: ``param``, ``state``, ``input``, ``returned``, ``gradient``, ``host`` (read by the
            host) or ``output`` (used by no op, where it is unknown what the step returns).
        label: the parameter's own name, if it has one.
        type: dtype and shape, as in ``f32[8, 64]``.
        absolute: largest absolute difference.
        relative: the same divided by the largest change that the step makes to the tensor (by the
            largest value if the step creates the tensor).
        allowed: largest absolute difference that counts as equal.
        changed: whether the first graph changes it enough for a mistake to show.
        problem: reason why it differs regardless of the figures, such as other sizes; else empty.
    """

    name: str
    kind: str
    label: str
    type: str
    absolute: float = 0.0
    relative: float = 0.0
    allowed: float = 0.0
    changed: bool = True
    problem: str = ""

    @property
    def same(self) -> bool:
        """Whether the two agree."""
        return not self.problem and self.absolute <= self.allowed

    def __str__(self) -> str:
        """Return one line: the tensor and by how much it differs."""
        label = f' "{self.label}"' if self.label else ""
        return f"{self.kind} %{self.name}{label} : {self.type}: {self.problem or self._figures()}"

    def _figures(self) -> str:
        figures = f"differs by {self.absolute:.3g}, {self.relative:.3g} of its "
        return (
            figures
            + f"{'change' if self.kind in DECLARED else 'size'}; {self.allowed:.3g} is allowed"
        )


DECLARED = ("param", "state", "input")


class Coverage(Struct, frozen=True):
    """Exercised and total numbers of ops, branches and elements in the first graph.

    Attributes:
        ops: ops on which a live-out tensor depends and whose results had nonzero elements on some
            draw; of all ops that compute.
        branches: sides of branches that elements took, of all: below, above and at the bounds of
            clamps, thresholds and comparisons, true and false conditions, ties, nan.
        elements: elements of live-out tensors that the step changed, or created with a nonzero
            value, on the draw with the largest such share.
    """

    ops: tuple[int, int] = (0, 0)
    branches: tuple[int, int] = (0, 0)
    elements: tuple[int, int] = (0, 0)

    def __str__(self) -> str:
        """Return one line, such as ``exercised 31 of 33 ops, 12 of 12 branches, ...``."""
        ops, branches = (f"{count} of {total}" for count, total in (self.ops, self.branches))
        exercised, all_elements = self.elements
        branch_text = f"{branches} branches, " * (self.branches[1] > 0)
        share = exercised / all_elements if all_elements else 1
        return f"exercised {ops} ops, {branch_text}{share:.0%} of elements"


REQUIRED_KINDS = {"host": "the host reads it", "returned": "the step returns it"}
"""Kinds of tensors that a rewrite must preserve, and the reasons."""


class Comparison(Struct, frozen=True):
    """Two graphs, executed on the same values.

    Attributes:
        compared: every tensor that leaves the step in both, in the order of the first graph.
        only_before: kind and name of tensors that leave the step in the first graph only.
        only_after: the same of the second graph.
        exact: whether bitwise equality was required, as no op of the second graph is new.
        precision: the coarsest element type, and the tolerance of an element relative to its value,
            or of a tensor relative to its change if not ``elementwise``, in addition to the effect
            of roundings.
        notes: sizes and other facts about this run.
        coverage: what the values exercised.
        random: names of ops that draw random numbers in one graph more often than in the other.
        elementwise: whether each element was compared by its own rounding, instead of by the
            tensor's change.
        unexercised: sides of branches that no draw reached: the op, its place, and the sides.
    """

    compared: Sequence[Compared]
    only_before: Sequence[tuple[str, str]] = ()
    only_after: Sequence[tuple[str, str]] = ()
    exact: bool = True
    precision: tuple[str, float] = ("f32", 0.0)
    notes: Sequence[str] = field(default_factory=tuple)
    coverage: Coverage = field(default_factory=lambda: Coverage())
    random: Sequence[str] = ()
    unexercised: Sequence[str] = ()
    elementwise: bool = False

    @property
    def different(self) -> list[Compared]:
        """The tensors that differ, the worst first."""
        differing = [tensor for tensor in self.compared if not tensor.same]
        return sorted(differing, key=lambda tensor: (not tensor.problem, -tensor.relative))

    @property
    def where_exercised(self) -> bool:
        """Whether the graphs are the same, except for branches that no draw reached."""
        return self.same and not self.exact and bool(self.unexercised)

    @property
    def lost(self) -> list[str]:
        """Tensors that the host reads or the step returns, but the second graph lacks."""
        return [name for kind, name in self.only_before if kind in REQUIRED_KINDS]

    @property
    def same(self) -> bool:
        """Whether there are common tensors, all of them agree, and no required one is missing."""
        return bool(self.compared) and not self.different and not self.lost

    def lines(self) -> list[str]:
        """Return the verdict, the differences, tensors of one graph only, and the notes as text."""
        return [line for line in self._lines() if line]

    def _lines(self) -> Iterator[str]:
        kinds = ", ".join(f"{count} {kind}" for kind, count in _counts(self.compared))
        count = len(self.compared)
        total = f"{count} tensor{'' if count == 1 else 's'}" + (f" ({kinds})" if kinds else "")
        if not self.compared:
            yield "nothing to compare: no tensor leaves the step in both"
        elif self.same:
            reserve = " where exercised" * self.where_exercised
            yield f"same{reserve}: {total} {self._agreement()}"
        else:
            rule = "" if self.exact else f" by more than {self._bound()}"
            yield f"different: {len(self.different)} of {total}{rule}"
        yield from (f"  {tensor}" for tensor in self.different)
        for kind, name in self.only_before:
            if kind in REQUIRED_KINDS:
                yield f"  {kind} %{name}: no longer made, but {REQUIRED_KINDS[kind]}"
        if self.random and not self.same:
            names = ", ".join(self.random)
            yield f"what follows from {names} has to differ: one model draws fewer random numbers"
        yield from _only("before", self.only_before)
        yield from _only("after", self.only_after)
        unchanged = [tensor.name for tensor in self.compared if not tensor.changed]
        if unchanged:
            yield f"changed too little by these values to reveal a mistake: {_names(unchanged)}"
        yield ", ".join(self.notes)
        yield str(self.coverage) if self.coverage.ops[1] else ""
        if self.unexercised:
            count = len(self.unexercised)
            yield f"no draw reached {count} branch{'es' * (count > 1)}:"
            yield from (f"  {text}" for text in self.unexercised[:MAX_LISTED])
            yield f"  and {count - MAX_LISTED} more" if count > MAX_LISTED else ""

    def _agreement(self) -> str:
        if self.exact:
            return "bitwise equal"
        shares = (tensor.absolute / tensor.allowed for tensor in self.compared if tensor.allowed)
        used = f"the largest difference is {max(shares, default=0.0):.1%} of that"
        return f"within {self._bound()}; {used}"

    def _bound(self) -> str:
        name, tolerance = self.precision
        if self.elementwise:
            return f"the rounding of {name}, by perturbed runs"
        scattered = f", and what roundings to {name} scatter" * (name not in ("f64", "f32"))
        return f"{tolerance:g} of their change and rounding ({name}){scattered}"

    def __str__(self) -> str:
        return "\n".join(self.lines())


def _counts(compared: Sequence[Compared]) -> list[tuple[str, int]]:
    kinds = [tensor.kind for tensor in compared]
    return [(kind, kinds.count(kind)) for kind in dict.fromkeys(kinds)]


def _only(side: str, tensors: Sequence[tuple[str, str]]) -> Iterator[str]:
    for kind, group in groupby(sorted(tensors, key=lambda pair: pair[0]), lambda pair: pair[0]):
        names = [name for _, name in group]
        yield f"only {side}: {len(names)} {kind}: {_names(names)}"


def _names(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
    return ", ".join(f"%{name}" for name in names[:MAX_LISTED]) + more
