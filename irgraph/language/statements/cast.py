"""``cast`` lets ops compute in another type."""

from __future__ import annotations

from dataclasses import dataclass, replace

from irgraph.diagnostics import fail
from irgraph.ir.op import Op
from irgraph.language.checking.checker import Checker
from irgraph.language.expressions.nodes import Expression
from irgraph.language.expressions.values import counted, spell
from irgraph.language.patterns.nodes import Selection
from irgraph.language.running.report import Entry
from irgraph.language.running.state import Frame, Refusals, call_of
from irgraph.language.statement import Statement
from irgraph.verbs.cast import TYPES, cast, check_cast
from irgraph.verbs.refusal import RefusedError

LEGAL = "each op computes in that type; other ops see the types that they saw before"
ROUNDED = "each multiplies f32 and rounds it as it reads; no tensor changes its type"


@dataclass(frozen=True)
class Cast(Statement):
    """``cast selection to type``."""

    selection: Selection
    to: Expression

    def __str__(self) -> str:
        return f"cast {self.selection} to {self.to}"

    def check(self, check: Checker) -> None:
        """Check the selection and the type."""
        check.selection(self.selection)
        check.kinds.need("dtype", self.to, "a dtype")

    def run(self, frame: Frame) -> Entry:
        """Cast what matches."""
        state, to = frame.state, frame.value(self.to)
        if to not in TYPES:
            known = f"ops can be cast to {', '.join(TYPES)}"
            raise fail(f"{known}, not to {spell(to)}", self.to.place)
        selected = frame.select_whole(self.selection)
        refusals = Refusals(frame, self.place, self.selection.many)
        chosen: list[Op] = []
        for op in (op for match in selected.matches for op in selected.members(match)):
            with refusals.attempt(f"{call_of(op)} is not cast"):
                check_cast(state.graph, op, str(to))
                chosen.append(op)
        done = cast(state.graph, chosen, str(to))
        for view in done.unread:
            why = f"it is a view, and no op reads it in {to}"
            refusals.add(RefusedError(why, [(view, "")]), f"{call_of(view)} is not cast")
        state.graph = done.graph if done.ops else state.graph
        around = "no casts" if to == "tf32" else f"{counted(done.casts, 'cast')} added"
        met = f", {done.met} not needed" if done.met else ""
        return replace(
            frame.entry_of(self, selected, self.selection),
            done=f"{counted(len(done.ops), 'op')} in {to}, {around}{met}",
            moved=len(done.ops),
            legal=(ROUNDED if to == "tf32" else LEGAL,) if done.ops else (),
            refused=tuple(refusals.found),
        )
