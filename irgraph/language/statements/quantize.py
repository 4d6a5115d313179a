"""``quantize`` keeps tables in narrow rows, and lets linear layers multiply narrow types."""

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
KNOWN = [name for name in FORMATS if name != "f32"]
LEAST, MOST = 1e-30, 1e30
"""The smallest and the largest range of a layer's rows: its steps are numbers of f32."""


@dataclass(frozen=True)
class Quantize(Statement):
    """``quantize selection to format range 4.5``."""

    selection: Selection
    to: Expression
    range: Expression | None = None

    def __str__(self) -> str:
        """Return the statement's text."""
        return join_words(f"quantize {self.selection} to {self.to}", clause("range", self.range))

    def check(self, check: Checker) -> None:
        """Check the selection and the format."""
        check.selection(self.selection)
        found = "text" if self._bare else check.kinds.infer(self.to)
        if found not in ("dtype", "text", *UNKNOWN_KINDS):
            hint = f"as a text: {', '.join(KNOWN)}"
            check.kinds.note(f"expected a format, not {KIND_NAMES[found]}", self.to, hint)
        if self.range is not None:
            check.kinds.require("number", self.range, "a range")

    def run(self, frame: Frame) -> Entry:
        """Quantise what matches."""
        state, to = frame.state, self._bare or frame.value(self.to)
        if to not in KNOWN:
            hint = "layers go to tf32 by cast … to tf32" if to == "tf32" else ""
            message = f"formats are {', '.join(KNOWN)}, not {spell(to)}"
            raise fail(message, self.to.place, hint=hint)
        span = self._range(frame)
        selected = frame.select_whole(self.selection)
        refusals = Refusals(frame, self.place, self.selection.many)
        check = partial(check_quantize, state.graph, target=str(to), range=span)
        chosen = refusals.passing(selected.ops, check, "is not quantised")
        done = quantize(state.graph, chosen, str(to), span)
        for op, why in done.refused:
            refusals.add(why, f"{call_of(op)} is not quantised")
        state.graph = done.graph
        size = (
            f"parameters take {done.saved_bytes / MIB:.3g} MiB less"
            if done.ops
            else "nothing changed"
        )
        return replace(
            frame.entry_of(self, selected, self.selection),
            done=f"{format_count(len(done.ops), 'op')} in {to}, {size}",
            replaced=len(done.ops),
            made=len(done.new_ops),
            legal=_legal(done.ops),
            refused=tuple(refusals.found),
        )

    @property
    def _bare(self) -> str:
        """The format, if it is given as a word that is no type of tensors: ``i4``; else nothing."""
        return self.to.name if isinstance(self.to, Name) and self.to.name in KNOWN else ""

    def _range(self, frame: Frame) -> float:
        """Return the largest element that rows are reckoned to have; 0 where none is given."""
        if self.range is None:
            return 0.0
        found = frame.value(self.range)
        if (
            isinstance(found, bool)
            or not isinstance(found, int | float)
            or not LEAST < found < MOST
        ):
            hint = "the largest absolute value of the layers' rows, as in 4.5"
            what = f"a range is above zero (1e-30 to 1e30), not {spell(found)}"
            raise fail(what, self.range.place, hint=hint)
        return float(found)


def _legal(ops: Sequence[Op]) -> tuple[str, ...]:
    """Return why what was done is legal."""
    exchanged = [is_exchange(op) for op in ops]
    return ((LEGAL,) if False in exchanged else ()) + ((CAST,) if True in exchanged else ())
