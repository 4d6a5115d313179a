"""Runs ``cast``."""

from __future__ import annotations

from dataclasses import replace

from irgraph.ir.op import Op
from irgraph.language.moving import whole
from irgraph.language.state import (
    Frame,
    State,
    call_of,
    entry_of,
    illegal,
    members_of,
    refusal,
)
from irgraph.language.tree import Cast
from irgraph.language.values import counted, spell
from irgraph.text.diagnostics import Diagnostic, fail
from irgraph.verbs.cast import FLOATS, cast, check_cast
from irgraph.verbs.refusal import RefusedError

LEGAL = "each computes in that type; others see the types they know"
TF32 = 'tf32 is how a device multiplies f32, without casts: set "tf32": true in its sheet'


def run_cast(statement: Cast, state: State, frame: Frame) -> None:
    """Let what matches compute in another type."""
    to = state.value(statement.to, frame)
    if to not in FLOATS:
        known = f"ops can be cast to {', '.join(FLOATS)}"
        hint = TF32 if to == "tf32" else ""
        raise fail(f"{known}, not to {spell(to)}", statement.to.place, hint=hint)
    selection = statement.subject.selection
    assert selection is not None
    selected = whole(selection, state, frame)
    chosen: list[Op] = []
    refused: list[Diagnostic] = []
    for op in (op for match in selected.matches for op in members_of(selected, match.ops)):
        try:
            check_cast(state.graph, op, str(to))
            chosen.append(op)
        except RefusedError as error:
            told = refusal(error, f"{call_of(op)} is not cast", statement.place, state.graph)
            if not selection.many:
                raise illegal(told) from None
            refused.append(told)
    done = cast(state.graph, chosen, str(to))
    for view in done.unread:
        why = RefusedError(f"it computes nothing, and no op reads its view in {to}", [(view, "")])
        told = refusal(why, f"{call_of(view)} is not cast", statement.place, state.graph)
        if not selection.many:
            raise illegal(told)
        refused.append(told)
    state.graph = done.graph if done.ops else state.graph
    made = f"{counted(len(done.ops), 'op')} in {to}, {counted(done.casts, 'cast')} around them"
    met = f", {done.met} not needed" if done.met else ""
    state.entries.append(
        replace(
            entry_of(statement, frame, selected, selection),
            done=made + met,
            moved=len(done.ops),
            legal=(LEGAL,) if done.ops else (),
            refused=tuple(refused),
        )
    )
