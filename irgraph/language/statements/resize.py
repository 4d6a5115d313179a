"""``resize`` gives a dimension, or one axis of the tensors that a pattern binds, another size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from irgraph.diagnostics import Diagnostic, SourceSpan, fail, suggestion
from irgraph.ir.graph import Graph
from irgraph.ir.op import Value
from irgraph.ir.tensor import Tensor
from irgraph.language.checking.checker import Checker
from irgraph.language.expressions.kinds import unbound_name_problem
from irgraph.language.expressions.nodes import Expression
from irgraph.language.expressions.values import format_count, spell
from irgraph.language.patterns.match import Match
from irgraph.language.patterns.nodes import Selection
from irgraph.language.patterns.select import SelectionResult
from irgraph.language.running.report import Entry
from irgraph.language.running.state import Frame, Refusals, call_of, illegal, refusal
from irgraph.language.statement import Statement
from irgraph.verbs.refusal import RefusedError
from irgraph.verbs.resize import Axis, Resizing, resize

EXPRESSIONS = "every size that is an expression over it follows"
AGREE = "all ops agree on the sizes that follow"

SHOWN = 5
"""Sizes that stayed which a warning lists."""


@dataclass(frozen=True)
class Resize(Statement):
    """``resize B = 4096``, or an operand's axis: ``resize %w.shape[0] of aten.mm(...) = 8``."""

    size: Expression
    dimension: str = ""
    operand: str = ""
    axis: int = 0
    selection: Selection | None = None

    @classmethod
    def read(cls, parts: Sequence[Any], place: SourceSpan) -> Self:
        """Return the statement about a dimension's name, or an axis: operand, place, selection."""
        of, size = parts
        if isinstance(of, str):
            return cls(size, of, place=place)
        operand, axis, selection = of
        return cls(size, "", operand, axis, selection, place=place)

    def __str__(self) -> str:
        axis = f"%{self.operand}.shape[{self.axis}] of {self.selection}"
        return f"resize {self.dimension or axis} = {self.size}"

    def check(self, check: Checker) -> None:
        """Check that there is such a dimension or operand, and that the size is a number."""
        kinds = check.kinds
        if self.selection is not None:
            kinds = check.selection(self.selection)
            if self.operand not in kinds.variables:
                check.note(*unbound_name_problem(self.operand, kinds.variables, self.place))
        elif check.dims is not None and self.dimension not in check.dims:
            alike = suggestion(self.dimension, check.dims)
            hint = "" if alike else f"its dimensions: {', '.join(check.dims) or 'none'}"
            message = f"the model has no dimension {self.dimension!r}{alike}"
            check.note(message, self.place, hint)
        kinds.require("number", self.size, "a number")

    def run(self, frame: Frame) -> Entry:
        """Give it the size; every size that must follow does."""
        was = frame.state.graph
        if self.selection is None:
            made = self._dimension(frame)
        else:
            made = self._axes(frame, self.selection)
        _carry(frame, was, frame.state.graph)
        return made

    def _dimension(self, frame: Frame) -> Entry:
        graph, size = frame.state.graph, self._whole(frame.value(self.size))
        try:
            done = resize(graph, self.dimension, size)
        except RefusedError as error:
            what = f"{self.dimension} is not resized to {size}"
            raise illegal(refusal(error, what, self.place, graph)) from None
        frame.state.graph = done.graph
        message = f"{self.dimension} is {size} (was {graph.dims[self.dimension]})"
        made = replace(frame.entry(self), done=message, legal=(EXPRESSIONS,))
        return replace(made, warnings=self._kept(done))

    def _axes(self, frame: Frame, selection: Selection) -> Entry:
        state = frame.state
        selected = frame.select_whole(selection)
        made = frame.entry_of(self, selected, selection)
        refusals = Refusals(frame, self.place, selection.many)
        changes: list[str] = []
        for (was, size), axes in self._wanted(selected, refusals).items():
            first = f"{axes[0]}" if len(axes) == 1 else f"{axes[0]} and {len(axes) - 1} more"
            with refusals.attempt(f"{first} is not resized to {size}"):
                done = resize(state.graph, axes, size)
                state.graph = done.graph
                made = replace(made, warnings=(*made.warnings, *self._kept(done)))
                follow = format_count(len(done.changed), "tensor")
                changes.append(f"{first} is {size} (was {was}), {follow} changed")
        if made.first:
            made = replace(made, warnings=(*made.warnings, *self._others(frame, selection)))
        legal = (AGREE,) if changes else ()
        return replace(made, done="; ".join(changes), legal=legal, refused=tuple(refusals.found))

    def _wanted(
        self, selected: SelectionResult, refusals: Refusals
    ) -> dict[tuple[int, int], list[Axis]]:
        """Return the axes to resize by their size and the new one, which a match may decide."""
        found: dict[tuple[int, int], list[Axis]] = {}
        for match in selected.matches:
            what = f"%{self.operand} of {call_of(selected.op(match.root))} is not resized"
            with refusals.attempt(what):
                tensor = self._tensor(match)
                size = self._whole(refusals.frame.value(self.size, selected, match))
                axes = found.setdefault((int(tensor.shape[self.axis]), size), [])
                if (axis := Axis(tensor.name, self.axis)) not in axes:
                    axes.append(axis)
        return found

    def _tensor(self, match: Match) -> Tensor:
        tensor = match.values[self.operand]
        if not isinstance(tensor, Tensor):
            raise RefusedError(f"it is {spell(tensor)}, not a tensor")
        if self.axis >= tensor.rank:
            what = f"it is %{tensor.name}, of rank {tensor.rank}"
            raise RefusedError(f"{what}: it has no shape[{self.axis}]")
        return tensor

    def _others(self, frame: Frame, selection: Selection) -> tuple[Diagnostic, ...]:
        """Return a warning where further matches, which did not follow, keep another size."""
        all_ = replace(selection, many=True)
        wanted = self._wanted(frame.select_whole(all_), Refusals(frame, self.place, True))
        names = [str(axis) for (was, size), axes in wanted.items() if was != size for axis in axes]
        if not names:
            return ()
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        keep = "keep their sizes" if more else "keeps its size"
        message = f"only the first match is resized: {names[0]}{more} {keep}"
        hint = f"for all of them: of {all_}"
        return (Diagnostic(message, self.place, hint=hint, severity="warning"),)

    def _whole(self, size: Value) -> int:
        if isinstance(size, float) and size.is_integer():
            size = int(size)
        if isinstance(size, int) and not isinstance(size, bool) and size >= 1:
            return int(size)
        what = "a dimension" if self.dimension else "an axis"
        message = f"the size of {what} must be a whole number above 0, not {spell(size)}"
        raise fail(message, self.size.place)

    def _kept(self, done: Resizing) -> tuple[Diagnostic, ...]:
        """Return a warning for sizes that should have followed and did not."""
        if not done.fixed_sizes:
            return ()
        notes = tuple(Diagnostic(size, severity="note") for size in done.fixed_sizes[:SHOWN])
        more = f", of which {SHOWN} are shown" if len(done.fixed_sizes) > SHOWN else ""
        message = f"{format_count(len(done.fixed_sizes), 'captured number')} did not follow{more}"
        hint = "capture the step at this size to be sure"
        return (Diagnostic(message, self.place, notes, hint, "warning"),)


def _carry(frame: Frame, was: Graph, now: Graph) -> None:
    """Let the names of ops stand for what has become of them."""
    if frame.handles and now is not was:
        became = {id(a): b for a, b in zip(was.walk(), now.walk(), strict=True)}
        for name, handle in frame.handles.items():
            ops = tuple(became.get(id(op), op) for op in handle.ops)
            frame.handles[name] = replace(handle, ops=ops)
