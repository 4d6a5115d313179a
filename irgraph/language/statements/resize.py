"""``resize`` changes the size of a dimension, or of one axis of the tensors of a pattern."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from irgraph.diagnostics import Diagnostic, SourceSpan, fail, suggestion
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

MAX_SHOWN_SIZES = 5
"""Maximum number of unchanged sizes that a warning lists."""


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
        """Return the statement of a dimension's name, or of an operand, axis and selection."""
        target, size = parts
        if isinstance(target, str):
            return cls(size, target, place=place)
        operand, axis, selection = target
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
            similar = suggestion(self.dimension, check.dims)
            hint = "" if similar else f"its dimensions: {', '.join(check.dims) or 'none'}"
            message = f"the model has no dimension {self.dimension!r}{similar}"
            check.note(message, self.place, hint)
        kinds.require("number", self.size, "a number")

    def run(self, frame: Frame) -> Entry:
        """Resize the dimension or the axes, and every size that must follow."""
        if self.selection is None:
            return self._resize_dimension(frame)
        return self._resize_axes(frame, self.selection)

    def _resize_dimension(self, frame: Frame) -> Entry:
        graph, size = frame.state.graph, self._integer_size(frame.value(self.size))
        try:
            done = resize(graph, self.dimension, size)
        except RefusedError as error:
            consequence = f"{self.dimension} is not resized to {size}"
            raise illegal(refusal(error, consequence, self.place, graph)) from None
        frame.state.graph = done.graph
        message = f"{self.dimension} is {size} (was {graph.dims[self.dimension]})"
        entry = replace(frame.entry(self), done=message, legal=(EXPRESSIONS,))
        return replace(entry, warnings=self._unresized_warning(done))

    def _resize_axes(self, frame: Frame, selection: Selection) -> Entry:
        state = frame.state
        selected = frame.select_whole(selection)
        entry = frame.entry_of(self, selected, selection)
        refusals = Refusals(frame, self.place, selection.many)
        changes: list[str] = []
        for (old_size, size), axes in self._axes_by_sizes(selected, refusals).items():
            first = f"{axes[0]}" if len(axes) == 1 else f"{axes[0]} and {len(axes) - 1} more"
            with refusals.attempt(f"{first} is not resized to {size}"):
                done = resize(state.graph, axes, size)
                state.graph = done.graph
                entry = replace(entry, warnings=(*entry.warnings, *self._unresized_warning(done)))
                follow = format_count(len(done.changed), "tensor")
                changes.append(f"{first} is {size} (was {old_size}), {follow} changed")
        if entry.first:
            entry = replace(
                entry, warnings=(*entry.warnings, *self._other_matches_warning(frame, selection))
            )
        legal = (AGREE,) if changes else ()
        return replace(
            entry, done="; ".join(changes), legal=legal, refused=tuple(refusals.diagnostics)
        )

    def _axes_by_sizes(
        self, selected: SelectionResult, refusals: Refusals
    ) -> dict[tuple[int, int], list[Axis]]:
        """Return the axes to resize by their old and new sizes; the new size may vary by match."""
        axes_by_sizes: dict[tuple[int, int], list[Axis]] = {}
        for match in selected.matches:
            consequence = f"%{self.operand} of {call_of(selected.op(match.root))} is not resized"
            with refusals.attempt(consequence):
                tensor = self._tensor(match)
                size = self._integer_size(refusals.frame.value(self.size, selected, match))
                axes = axes_by_sizes.setdefault((int(tensor.shape[self.axis]), size), [])
                if (axis := Axis(tensor.name, self.axis)) not in axes:
                    axes.append(axis)
        return axes_by_sizes

    def _tensor(self, match: Match) -> Tensor:
        tensor = match.values[self.operand]
        if not isinstance(tensor, Tensor):
            raise RefusedError(f"it is {spell(tensor)}, not a tensor")
        if self.axis >= tensor.rank:
            description = f"it is %{tensor.name}, of rank {tensor.rank}"
            raise RefusedError(f"{description}: it has no shape[{self.axis}]")
        return tensor

    def _other_matches_warning(self, frame: Frame, selection: Selection) -> tuple[Diagnostic, ...]:
        """Return a warning if further matches, which are not resized, keep another size."""
        all_ = replace(selection, many=True)
        axes_by_sizes = self._axes_by_sizes(
            frame.select_whole(all_), Refusals(frame, self.place, True)
        )
        names = [
            str(axis)
            for (old_size, size), axes in axes_by_sizes.items()
            if old_size != size
            for axis in axes
        ]
        if not names:
            return ()
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        keep = "keep their sizes" if more else "keeps its size"
        message = f"only the first match is resized: {names[0]}{more} {keep}"
        hint = f"for all of them: of {all_}"
        return (Diagnostic(message, self.place, hint=hint, severity="warning"),)

    def _integer_size(self, size: Value) -> int:
        if isinstance(size, float) and size.is_integer():
            size = int(size)
        if isinstance(size, int) and not isinstance(size, bool) and size >= 1:
            return int(size)
        noun = "a dimension" if self.dimension else "an axis"
        message = f"the size of {noun} must be a whole number above 0, not {spell(size)}"
        raise fail(message, self.size.place)

    def _unresized_warning(self, done: Resizing) -> tuple[Diagnostic, ...]:
        """Return a warning for captured sizes that did not follow."""
        if not done.fixed_sizes:
            return ()
        notes = tuple(
            Diagnostic(size, severity="note") for size in done.fixed_sizes[:MAX_SHOWN_SIZES]
        )
        more = (
            f", of which {MAX_SHOWN_SIZES} are shown"
            if len(done.fixed_sizes) > MAX_SHOWN_SIZES
            else ""
        )
        message = f"{format_count(len(done.fixed_sizes), 'captured number')} did not follow{more}"
        hint = "capture the step at this size to be sure"
        return (Diagnostic(message, self.place, notes, hint, "warning"),)
