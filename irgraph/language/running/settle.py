"""Runs blocks of statements, again if one removed results that another still uses."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence, Set
from dataclasses import replace

from irgraph.diagnostics import Diagnostic, IrgraphError, fail
from irgraph.ir.graph import END, Graph, outermost
from irgraph.ir.op import Op, external_operands
from irgraph.language.defects import blame
from irgraph.language.running.report import op_place
from irgraph.language.running.state import (
    ILLEGAL,
    Frame,
    RemovingStatement,
    Running,
    State,
    call_of,
)

MOST_USERS = 5


def run_block(statements: Sequence[Running], frame: Frame) -> None:
    """Run statements in order, and record what each did and how long it took."""
    state = frame.state
    for statement in statements:
        state.count(statement)
        start = time.perf_counter()
        with blame(type(statement).__module__, "cannot be run"):
            done = statement.run(frame)
            if done is not None:
                state.entries.append(replace(done, seconds=time.perf_counter() - start))


def settle(body: Sequence[Running], frame: Frame) -> State:
    """Return the state after a block, leaving out changes that would make a use dangle.

    The frame's own state stays. Raises ``IrgraphError`` where that cannot be left alone.
    """
    start = frame.state
    kept: set[str] = set(start.kept)
    before = start.spent.statements
    while True:
        start.spent.statements = before
        state = replace(start, kept=frozenset(kept), dropped={}, entries=[])
        run_block(body, replace(frame.inner(), state=state))
        missing = _missing(state.graph) if state.graph is not start.graph else []
        if not missing:
            return state
        _give_up(missing, state, kept)
        kept.update(name for name, _ in missing)


def _missing(graph: Graph) -> list[tuple[str, Op]]:
    """Return the names that are used and nowhere defined, each with its first user."""
    defined = graph.by_name
    found: dict[str, Op] = {}
    ends = () if graph.end is None else (graph.end,)
    calls = (call for op in (*graph.ops, *ends) for call in outermost(op))
    if all(_is_defined(call, defined.keys()) for call in calls):
        return []
    for op in (*graph.walk(), *ends):
        for tensor in op.inputs:
            if tensor.name not in defined:
                found.setdefault(tensor.name, op)
    return list(found.items())


def _is_defined(call: Op, defined: Set[str]) -> bool:
    """Return whether all that a call uses is known to be defined."""
    if not call.body:
        return all(tensor.name in defined for tensor in call.inputs)
    taken = external_operands(call)
    return taken is not None and taken.keys() <= defined


def _give_up(missing: Sequence[tuple[str, Op]], state: State, kept: Collection[str]) -> None:
    """Raise where a result that is still used cannot be kept by leaving a match alone."""
    for statement, users in _by_statement(missing, state):
        lost = {name for name, _ in users}
        if statement is not None and statement.selection.many and not lost & set(kept):
            continue
        notes = tuple(
            Diagnostic(_use(op, name), op_place(op, state.graph), severity="note")
            for name, op in users[:MOST_USERS]
        )
        if statement is None:
            raise fail("the model uses tensors that nothing defines", notes=notes)
        message = "a result that this removes is still in use"
        hint = statement.instead(users[0][0])
        raise IrgraphError((Diagnostic(message, statement.place, notes, hint),), ILLEGAL)


def _use(op: Op, name: str) -> str:
    return f"the step returns %{name}" if op.name == END else f"{call_of(op)} uses %{name}"


def _by_statement(
    missing: Sequence[tuple[str, Op]], state: State
) -> Iterator[tuple[RemovingStatement | None, list[tuple[str, Op]]]]:
    grouped: dict[int, list[tuple[str, Op]]] = {}
    statements: dict[int, RemovingStatement | None] = {}
    for name, op in missing:
        statement = state.dropped.get(name)
        grouped.setdefault(id(statement), []).append((name, op))
        statements[id(statement)] = statement
    for key, users in grouped.items():
        yield statements[key], users
