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
    RunnableStatement,
    State,
    call_of,
)

MAX_USERS = 5


def run_block(statements: Sequence[RunnableStatement], frame: Frame) -> None:
    """Run statements in order, and record an entry with the duration of each."""
    state = frame.state
    for statement in statements:
        state.count(statement)
        start, before = time.perf_counter(), state.graph
        with blame(type(statement).__module__, "cannot be run"):
            done = statement.run(frame)
            if done is not None:
                state.entries.append(replace(done, seconds=time.perf_counter() - start))
            if frame.handles and state.graph is not before:
                frame.note_losses(statement)


def settle(body: Sequence[RunnableStatement], frame: Frame) -> State:
    """Return the state after a block, without the changes that would make a use dangle.

    The frame's own state is unchanged. Raises ``IrgraphError`` if such a change cannot be omitted.
    """
    start = frame.state
    required: set[str] = set(start.required_results)
    statement_count = start.counts.statements
    while True:
        start.counts.statements = statement_count
        state = replace(start, required_results=frozenset(required), dropped_results={}, entries=[])
        run_block(body, replace(frame.inner(), state=state))
        missing = _undefined_names(state.graph) if state.graph is not start.graph else []
        if not missing:
            return state
        _check_repairable(missing, state, required)
        required.update(name for name, _ in missing)


def _undefined_names(graph: Graph) -> list[tuple[str, Op]]:
    """Return the names that are used but not defined, each with its first user."""
    defined = graph.by_name
    users_by_name: dict[str, Op] = {}
    ends = () if graph.end is None else (graph.end,)
    calls = (call for op in (*graph.ops, *ends) for call in outermost(op))
    if all(_is_defined(call, defined.keys()) for call in calls):
        return []
    for op in (*graph.walk(), *ends):
        for tensor in op.inputs:
            if tensor.name not in defined:
                users_by_name.setdefault(tensor.name, op)
    return list(users_by_name.items())


def _is_defined(call: Op, defined: Set[str]) -> bool:
    """Return whether everything that a call uses is known to be defined."""
    if not call.body:
        return all(tensor.name in defined for tensor in call.inputs)
    operands = external_operands(call)
    return operands is not None and operands.keys() <= defined


def _check_repairable(
    missing: Sequence[tuple[str, Op]], state: State, required: Collection[str]
) -> None:
    """Raise ``IrgraphError`` if omitting a match does not restore a result that is still used."""
    for statement, users in _users_by_statement(missing, state):
        names = {name for name, _ in users}
        if statement is not None and statement.selection.many and not names & set(required):
            continue
        notes = tuple(
            Diagnostic(_use_text(op, name), op_place(op, state.graph), severity="note")
            for name, op in users[:MAX_USERS]
        )
        if statement is None:
            raise fail("the model uses tensors that nothing defines", notes=notes)
        message = "a result that this removes is still in use"
        hint = statement.remedy(users[0][0])
        raise IrgraphError((Diagnostic(message, statement.place, notes, hint),), ILLEGAL)


def _use_text(op: Op, name: str) -> str:
    return f"the step returns %{name}" if op.name == END else f"{call_of(op)} uses %{name}"


def _users_by_statement(
    missing: Sequence[tuple[str, Op]], state: State
) -> Iterator[tuple[RemovingStatement | None, list[tuple[str, Op]]]]:
    grouped: dict[int, list[tuple[str, Op]]] = {}
    statements: dict[int, RemovingStatement | None] = {}
    for name, op in missing:
        statement = state.dropped_results.get(name)
        grouped.setdefault(id(statement), []).append((name, op))
        statements[id(statement)] = statement
    for key, users in grouped.items():
        yield statements[key], users
