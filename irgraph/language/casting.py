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
from irgraph.verbs.cast import TYPES, cast, check_cast
from irgraph.verbs.refusal import RefusedError

LEGAL = "each computes in that type; others see the types they know"
ROUNDED = "each multiplies f32 alone, which it rounds as it reads; no tensor changes its type"


def run_cast(statement: Cast, state: State, frame: Frame) -> None:
    """Let what matches compute in another type."""
    to = state.value(statement.to, frame)
    if to not in TYPES:
        known = f"ops can be cast to {', '.join(TYPES)}"
        raise fail(f"{known}, not to {spell(to)}", statement.to.place)
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
    around = "no casts" if to == "tf32" else f"{counted(done.casts, 'cast')} around them"
    made = f"{counted(len(done.ops), 'op')} in {to}, {around}"
    met = f", {done.met} not needed" if done.met else ""
    state.entries.append(
        replace(
            entry_of(statement, frame, selected, selection),
            done=made + met,
            moved=len(done.ops),
            legal=(ROUNDED if to == "tf32" else LEGAL,) if done.ops else (),
            refused=tuple(refused),
        )
    )
