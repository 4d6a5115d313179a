"""``cast`` changes the type in which ops compute."""

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
    dtype: Expression

    def __str__(self) -> str:
        operand = f"%{self.operand} of " if self.operand else ""
        return f"cast {operand}{self.selection} to {self.dtype}"

    def check(self, check: Checker) -> None:
        """Check the selection and the type."""
        kinds = check.selection(self.selection)
        if self.operand and self.operand not in kinds.variables:
            check.note(*unbound_name_problem(self.operand, kinds.variables, self.place))
        check.kinds.require("dtype", self.dtype, "a dtype")

    def run(self, frame: Frame) -> Entry:
        """Cast the ops that match."""
        state, dtype = frame.state, frame.value(self.dtype)
        if dtype not in TYPES:
            allowed = f"ops can be cast to {', '.join(TYPES)}"
            raise fail(f"{allowed}, not to {spell(dtype)}", self.dtype.place)
        if self.operand:
            return self._cast_operands(frame, str(dtype))
        selected = frame.select_whole(self.selection)
        refusals = Refusals(frame, self.place, self.selection.many)
        check = partial(check_cast, state.graph, dtype=str(dtype))
        castable = refusals.accepted_ops(selected.ops, check, "is not cast")
        done = cast(state.graph, castable, str(dtype))
        for view in done.unread:
            reason = f"it is a view, and no op reads it in {dtype}"
            refusals.add(RefusedError(reason, [(view, "")]), f"{call_of(view)} is not cast")
        state.graph = done.graph if done.ops else state.graph
        casts_text = "no casts" if dtype == "tf32" else f"{format_count(done.casts, 'cast')} added"
        unneeded = f", {done.unneeded_casts} not needed" if done.unneeded_casts else ""
        return replace(
            frame.entry_of(self, selected, self.selection),
            done=f"{format_count(len(done.ops), 'op')} in {dtype}, {casts_text}{unneeded}",
            moved=len(done.ops),
            legal=(ROUNDED if dtype == "tf32" else LEGAL,) if done.ops else (),
            refused=tuple(refusals.diagnostics),
        )

    def _cast_operands(self, frame: Frame, dtype: str) -> Entry:
        """Cast one operand of each match."""
        state = frame.state
        selected = frame.select_whole(self.selection)
        refusals = Refusals(frame, self.place, self.selection.many)
        castable: list[tuple[Op, Tensor]] = []
        for match, op in ((m, op) for m in selected.matches for op in selected.members(m)):
            bound = match.values.get(self.operand)
            operands = [t for t in op.inputs if isinstance(bound, Tensor) and t.name == bound.name]
            with refusals.attempt(f"%{self.operand} of {call_of(op)} is not cast"):
                if not operands:
                    raise RefusedError(f"it takes no %{self.operand}", [(op, "")])
                if operands[0].dtype != dtype:
                    check_operand(state.graph, op, operands[0], dtype)
                    castable.append((op, operands[0]))
        done = cast_operand(state.graph, castable, dtype)
        state.graph = done.graph if castable else state.graph
        casts_text = f"{format_count(done.casts, 'cast')} added"
        unneeded = f", {done.unneeded_casts} not needed" if done.unneeded_casts else ""
        return replace(
            frame.entry_of(self, selected, self.selection),
            done=f"{format_count(len(castable), 'operand')} in {dtype}, {casts_text}{unneeded}",
            moved=len(castable),
            legal=(OPERAND,) if castable else (),
            refused=tuple(refusals.diagnostics),
        )
