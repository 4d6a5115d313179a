"""``cast`` lets ops compute in another type."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial

from irgraph.diagnostics import fail
from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor
from irgraph.language.checking.checker import Checker
from irgraph.language.expressions.kinds import unbound_name_problem
from irgraph.language.expressions.nodes import Expression
from irgraph.language.expressions.values import format_count, spell
from irgraph.language.patterns.nodes import Selection
from irgraph.language.running.report import Entry
from irgraph.language.running.state import Frame, Refusals, call_of
from irgraph.language.statement import Statement
from irgraph.verbs.cast import TYPES, cast, cast_operand, check_cast, check_operand
from irgraph.verbs.refusal import RefusedError

LEGAL = "each op computes in that type; other ops see unchanged types"
OPERAND = "each op takes that operand in the type, and its results keep their types"
ROUNDED = "each rounds its f32 operands as it reads them; no tensor changes its type"


@dataclass(frozen=True)
class Cast(Statement):
    """``cast selection to type``, or one operand: ``cast %w of aten.mul(%x, %w) to bf16``."""

    operand: str = field(default="", kw_only=True)
    selection: Selection
    to: Expression

    def __str__(self) -> str:
        operand = f"%{self.operand} of " if self.operand else ""
        return f"cast {operand}{self.selection} to {self.to}"

    def check(self, check: Checker) -> None:
        """Check the selection and the type."""
        kinds = check.selection(self.selection)
        if self.operand and self.operand not in kinds.variables:
            check.note(*unbound_name_problem(self.operand, kinds.variables, self.place))
        check.kinds.require("dtype", self.to, "a dtype")

    def run(self, frame: Frame) -> Entry:
        """Cast what matches."""
        state, to = frame.state, frame.value(self.to)
        if to not in TYPES:
            known = f"ops can be cast to {', '.join(TYPES)}"
            raise fail(f"{known}, not to {spell(to)}", self.to.place)
        if self.operand:
            return self._operands(frame, str(to))
        selected = frame.select_whole(self.selection)
        refusals = Refusals(frame, self.place, self.selection.many)
        check = partial(check_cast, state.graph, dtype=str(to))
        chosen = refusals.passing(selected.ops, check, "is not cast")
        done = cast(state.graph, chosen, str(to))
        for view in done.unread:
            why = f"it is a view, and no op reads it in {to}"
            refusals.add(RefusedError(why, [(view, "")]), f"{call_of(view)} is not cast")
        state.graph = done.graph if done.ops else state.graph
        around = "no casts" if to == "tf32" else f"{format_count(done.casts, 'cast')} added"
        met = f", {done.unneeded_casts} not needed" if done.unneeded_casts else ""
        return replace(
            frame.entry_of(self, selected, self.selection),
            done=f"{format_count(len(done.ops), 'op')} in {to}, {around}{met}",
            moved=len(done.ops),
            legal=(ROUNDED if to == "tf32" else LEGAL,) if done.ops else (),
            refused=tuple(refusals.found),
        )

    def _operands(self, frame: Frame, to: str) -> Entry:
        """Cast one operand of what matches."""
        state = frame.state
        selected = frame.select_whole(self.selection)
        refusals = Refusals(frame, self.place, self.selection.many)
        chosen: list[tuple[Op, Tensor]] = []
        for match, op in ((m, op) for m in selected.matches for op in selected.members(m)):
            bound = match.values.get(self.operand)
            taken = [t for t in op.inputs if isinstance(bound, Tensor) and t.name == bound.name]
            with refusals.attempt(f"%{self.operand} of {call_of(op)} is not cast"):
                if not taken:
                    raise RefusedError(f"it takes no %{self.operand}", [(op, "")])
                if taken[0].dtype != to:
                    check_operand(state.graph, op, taken[0], to)
                    chosen.append((op, taken[0]))
        done = cast_operand(state.graph, chosen, to)
        state.graph = done.graph if chosen else state.graph
        around = f"{format_count(done.casts, 'cast')} added"
        met = f", {done.unneeded_casts} not needed" if done.unneeded_casts else ""
        return replace(
            frame.entry_of(self, selected, self.selection),
            done=f"{format_count(len(chosen), 'operand')} in {to}, {around}{met}",
            moved=len(chosen),
            legal=(OPERAND,) if chosen else (),
            refused=tuple(refusals.found),
        )
