"""``quantize`` stores tables in narrow rows, and makes linear layers multiply narrow types."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from irgraph.diagnostics import fail
from irgraph.ir.narrow.rows import FORMATS
from irgraph.ir.op import Op
from irgraph.language.checking.checker import Checker
from irgraph.language.clauses import clause, join_words
from irgraph.language.expressions.kinds import KIND_NAMES, UNKNOWN_KINDS
from irgraph.language.expressions.nodes import Expression, Name
from irgraph.language.expressions.values import format_count, spell
from irgraph.language.patterns.nodes import Selection
from irgraph.language.running.report import Entry
from irgraph.language.running.state import Frame, Refusals, call_of
from irgraph.language.statement import Statement
from irgraph.verbs.quantize import check_quantize, quantize
from irgraph.verbs.quantizing.exchanges import is_exchange

LEGAL = "each reads its parameter as rounded to the format; the step never writes it"
CAST = "what ranks exchange is cast before the exchange, and back after it"
MIB = 2**20
FORMAT_NAMES = [name for name in FORMATS if name != "f32"]
MIN_RANGE, MAX_RANGE = 1e-30, 1e30
"""The smallest and the largest range of a layer's rows: its steps are numbers of f32."""


@dataclass(frozen=True)
class Quantize(Statement):
    """``quantize selection to format range 4.5``."""

    selection: Selection
    format: Expression
    range: Expression | None = None

    def __str__(self) -> str:
        """Return the statement's text."""
        return join_words(
            f"quantize {self.selection} to {self.format}", clause("range", self.range)
        )

    def check(self, check: Checker) -> None:
        """Check the selection and the format."""
        check.selection(self.selection)
        kind = "text" if self._word_format else check.kinds.infer(self.format)
        if kind not in ("dtype", "text", *UNKNOWN_KINDS):
            hint = f"as a text: {', '.join(FORMAT_NAMES)}"
            check.kinds.note(f"expected a format, not {KIND_NAMES[kind]}", self.format, hint)
        if self.range is not None:
            check.kinds.require("number", self.range, "a range")

    def run(self, frame: Frame) -> Entry:
        """Quantise the ops that match."""
        state, format_name = frame.state, self._word_format or frame.value(self.format)
        if format_name not in FORMAT_NAMES:
            hint = "layers go to tf32 by cast … to tf32" if format_name == "tf32" else ""
            message = f"formats are {', '.join(FORMAT_NAMES)}, not {spell(format_name)}"
            raise fail(message, self.format.place, hint=hint)
        row_range = self._range(frame)
        selected = frame.select_whole(self.selection)
        refusals = Refusals(frame, self.place, self.selection.many)
        check = partial(check_quantize, state.graph, target=str(format_name), range=row_range)
        quantizable = refusals.accepted_ops(selected.ops, check, "is not quantised")
        done = quantize(state.graph, quantizable, str(format_name), row_range)
        for op, error in done.refused:
            refusals.add(error, f"{call_of(op)} is not quantised")
        state.graph = done.graph
        size = (
            f"parameters take {done.saved_bytes / MIB:.3g} MiB less"
            if done.ops
            else "nothing changed"
        )
        return replace(
            frame.entry_of(self, selected, self.selection),
            done=f"{format_count(len(done.ops), 'op')} in {format_name}, {size}",
            replaced=len(done.ops),
            made=len(done.new_ops),
            legal=_legal(done.ops),
            refused=tuple(refusals.diagnostics),
        )

    @property
    def _word_format(self) -> str:
        """The format if it is a bare word that is no type of tensors: ``i4``; else ``""``."""
        return (
            self.format.name
            if isinstance(self.format, Name) and self.format.name in FORMAT_NAMES
            else ""
        )

    def _range(self, frame: Frame) -> float:
        """Return the largest absolute value assumed for elements of rows; 0 if none is given."""
        if self.range is None:
            return 0.0
        value = frame.value(self.range)
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not MIN_RANGE < value < MAX_RANGE
        ):
            hint = "the largest absolute value of the layers' rows, as in 4.5"
            message = f"a range is above zero (1e-30 to 1e30), not {spell(value)}"
            raise fail(message, self.range.place, hint=hint)
        return float(value)


def _legal(ops: Sequence[Op]) -> tuple[str, ...]:
    """Return the reasons why the quantised ops are legal."""
    exchanged = [is_exchange(op) for op in ops]
    return ((LEGAL,) if False in exchanged else ()) + ((CAST,) if True in exchanged else ())
