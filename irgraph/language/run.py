"""Runs scripts: checked as a whole first, committed as a whole last."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from irgraph.ir.graph import Graph
from irgraph.ir.op import Op, Value
from irgraph.ir.verify import verify
from irgraph.language.actions import frame_of, run_expect, run_find, run_let, run_remove
from irgraph.language.casting import run_cast
from irgraph.language.check import Check
from irgraph.language.evaluate import Pricer, Target
from irgraph.language.expressions import Literal
from irgraph.language.fusing import run_fuse
from irgraph.language.library import gather
from irgraph.language.moving import run_parallelize, run_reorder
from irgraph.language.replacing import run_insert, run_replace
from irgraph.language.report import Entry, Outcome, Report, op_place
from irgraph.language.resizing import run_resize
from irgraph.language.state import ILLEGAL, Dropping, Frame, State, call_of
from irgraph.language.sweeping import Row, best_of, combinations, failed, row, table
from irgraph.language.tree import (
    Apply,
    Call,
    Cast,
    Expect,
    Find,
    Fuse,
    Insert,
    Let,
    Parallelize,
    Pass,
    Remove,
    Reorder,
    Repeat,
    Replace,
    Resize,
    Script,
    Statement,
    Sweep,
)
from irgraph.language.tree import Target as Target_
from irgraph.language.unused import unused
from irgraph.language.values import spell
from irgraph.text.diagnostics import Diagnostic, IrgraphError, fail
from irgraph.verbs.ordered import Ordered, told

MOST_USERS = 5


def run(
    script: Script | Pass,
    graph: Graph,
    parameters: Mapping[str, Value] | None = None,
    *,
    pricer: Pricer | None = None,
    targets: Callable[[str], Target] | None = None,
    paths: Sequence[str | Path] = (),
    verified: bool = True,
) -> Outcome:
    """Run a script or a pass over a graph and return the new graph with a report.

    ``parameters`` are those of the pass (or of the only pass of a script without statements);
    ``pricer`` tells ``op.time``, ``targets`` finds the devices that ``target`` names;
    ``paths`` are further folders of passes; ``verified`` tells
    whether the rules of the IR are checked at the end. The graph itself never changes: on an error
    nothing has happened.

    Raises ``IrgraphError``: exit code 4 for a script that is wrong, 1 for a change that is not
    legal or an ``expect`` that fails.
    """
    whole = _with_call(script, parameters or {})
    passes = check_script(whole, graph, paths)
    state = _settled(whole.body, State(graph, passes, pricer, targets), Frame())
    if verified and state.graph is not graph:
        _verify(state.graph)
        _check_streams(graph, state)
    return Outcome(state.graph, Report(tuple(state.entries), tuple(unused(whole))))


def _settled(body: Sequence[Statement], start: State, frame: Frame) -> State:
    """Run statements until no use dangles, leaving alone what would make one dangle."""
    kept: set[str] = set(start.kept)
    before = start.spent.statements
    while True:
        start.spent.statements = before
        state = replace(start, kept=frozenset(kept), dropped={}, entries=[])
        _run_block(body, state, replace(frame, names=dict(frame.names)))
        missing = _missing(state.graph) if state.graph is not start.graph else []
        if not missing:
            return state
        _give_up(missing, state, kept)
        kept.update(name for name, _ in missing)


def _run_sweep(statement: Sweep, state: State, frame: Frame) -> None:
    """Run a block for each combination of values, each time from the same graph."""
    rows: list[Row] = []
    before = state.spent.statements
    for names in combinations(statement, state, frame):
        state.spent.statements = before
        inner = Frame({**frame.names, **names}, dict(frame.handles), frame.caller)
        try:
            done = _settled(statement.body, state, inner)
            rows.append(row(statement, names, done, frame))
        except IrgraphError as error:
            if error.exit_code != ILLEGAL:
                raise
            rows.append(failed(names, state.graph, error))
    best = best_of(statement, rows)
    if best is not None:
        state.graph = best.graph
    told = table(statement, rows, best)
    state.entries.append(Entry(statement, statement.place, frame.caller, done=told))


def _run_target(statement: Target_, state: State, frame: Frame) -> None:
    """Choose the device that costs are for."""
    name = state.value(statement.device, frame)
    if not isinstance(name, str) or state.targets is None:
        message = f"a device's name is needed, not {spell(name)}"
        if state.targets is None:
            message = "no devices are known here"
        hint = "give run its targets: irgraph.manager.find_target" if state.targets is None else ""
        raise fail(message, statement.place, hint=hint)
    try:
        state.pricer = state.targets(str(name))
    except IrgraphError as error:
        first = error.diagnostics[0]
        raise fail(first.message, statement.device.place, hint=first.hint) from None
    state.entries.append(Entry(statement, statement.place, frame.caller, done=str(name)))


def check_script(
    script: Script, graph: Graph | None = None, paths: Sequence[str | Path] = ()
) -> dict[str, Pass]:
    """Return all passes that a script can reach; raise ``IrgraphError`` with all that is wrong."""
    problems: list[Diagnostic] = []
    passes = gather(script, paths, problems)
    dims = tuple(graph.dims) if graph is not None else None
    check = Check(passes, dims, graph.schemas if graph is not None else ())
    check.script(script)
    problems += check.problems
    if problems:
        unique = {(str(p.place), p.message): p for p in problems}
        raise IrgraphError(tuple(unique.values()))
    return passes


def _with_call(script: Script | Pass, parameters: Mapping[str, Value]) -> Script:
    """Return a script that does something: a pass alone is applied."""
    if isinstance(script, Pass):
        script = Script((script,))
    if script.body or not script.passes:
        if parameters:
            hint = "write the statements as pass NAME(parameter: int) { ... }"
            raise fail("only a pass takes parameters", script.place, hint=hint, exit_code=2)
        return script
    if len(script.passes) > 1:
        names = ", ".join(declared.name for declared in script.passes)
        raise fail(f"nothing to run: apply one of {names}", script.passes[0].place)
    only = script.passes[0]
    given = tuple((name, Literal(value, place=only.place)) for name, value in parameters.items())
    call = Call(only.name, given, place=only.place)
    return Script(script.passes, (Apply(call, place=only.place),), place=script.place)


def _run_block(statements: Sequence[Statement], state: State, frame: Frame) -> None:
    for statement in statements:
        state.count(statement)
        start, first = time.perf_counter(), len(state.entries)
        _RUNNERS[type(statement)](statement, state, frame)
        if len(state.entries) > first and state.entries[-1].statement is statement:
            seconds = time.perf_counter() - start
            state.entries[-1] = replace(state.entries[-1], seconds=seconds)


def _run_apply(statement: Apply, state: State, frame: Frame) -> None:
    called, inner = frame_of(statement, state, frame)
    start = len(state.entries)
    _run_block(called.body, state, inner)
    if any(entry.changed for entry in state.entries[start:]):
        # the statements of a pass are alternatives: some need not match
        state.entries[start:] = [entry.calmed() for entry in state.entries[start:]]


def _run_repeat(statement: Repeat, state: State, frame: Frame) -> None:
    for turn in range(statement.most):
        before, start = state.graph, len(state.entries)
        _run_block(
            statement.body, state, Frame(dict(frame.names), dict(frame.handles), frame.caller)
        )
        if state.graph is before:
            # all that a last turn says is that there is nothing left, or the same again
            del state.entries[start if turn else len(state.entries) :]
            return


_RUNNERS: Mapping[type, Callable[[Any, State, Frame], None]] = {
    Let: run_let,
    Find: run_find,
    Expect: run_expect,
    Apply: _run_apply,
    Repeat: _run_repeat,
    Fuse: run_fuse,
    Remove: run_remove,
    Replace: run_replace,
    Insert: run_insert,
    Reorder: run_reorder,
    Parallelize: run_parallelize,
    Cast: run_cast,
    Sweep: _run_sweep,
    Target_: _run_target,
    Resize: run_resize,
}


def _missing(graph: Graph) -> list[tuple[str, Op]]:
    """Return the names that are used and nowhere defined, each with its first user."""
    defined = graph.by_name
    found: dict[str, Op] = {}
    for op in graph.walk():
        for tensor in op.inputs:
            if tensor.name not in defined:
                found.setdefault(tensor.name, op)
    return list(found.items())


def _give_up(missing: Sequence[tuple[str, Op]], state: State, kept: Collection[str]) -> None:
    """Raise where a result that is still used cannot be kept by leaving a match alone."""
    for statement, users in _by_statement(missing, state):
        lost = {name for name, _ in users}
        if statement is not None and statement.selection.many and not lost & set(kept):
            continue
        notes = tuple(
            Diagnostic(f"{call_of(op)} uses %{name}", op_place(op, state.graph), severity="note")
            for name, op in users[:MOST_USERS]
        )
        if statement is None:
            raise fail("the model uses what nothing defines", notes=notes)
        message = "what this takes away is still in use"
        hint = _instead(statement, users[0][0])
        raise IrgraphError((Diagnostic(message, statement.place, notes, hint),), ILLEGAL)


def _instead(statement: Dropping, name: str) -> str:
    """Return what to do about a result that is still in use."""
    if isinstance(statement, Remove):
        return f"give its users another tensor: using %... for %{name}"
    return f"let the template make %{name}, or take in what uses it"


def _by_statement(
    missing: Sequence[tuple[str, Op]], state: State
) -> Iterator[tuple[Dropping | None, list[tuple[str, Op]]]]:
    grouped: dict[int, list[tuple[str, Op]]] = {}
    statements: dict[int, Dropping | None] = {}
    for name, op in missing:
        statement = state.dropped.get(name)
        grouped.setdefault(id(statement), []).append((name, op))
        statements[id(statement)] = statement
    for key, users in grouped.items():
        yield statements[key], users


def _check_streams(before: Graph, state: State) -> None:
    """Refuse a result in which streams lost an order that all of the graph had before."""
    if any(entry.assumptions for entry in state.entries):
        return
    now = Ordered(state.graph)
    if not now.open or Ordered(before).open:
        return
    first = min(now.open, key=lambda tie: tie.after)
    reason, at = told(first, now.leaves)
    notes = tuple(Diagnostic(s, op_place(op, state.graph), severity="note") for op, s in at)
    changes = [entry.place for entry in state.entries if entry.changed]
    hint = "insert sync.record() behind the first and sync.wait before the second"
    place = changes[-1] if changes else None
    raise IrgraphError((Diagnostic(reason, place, notes, hint),), ILLEGAL)


def _verify(graph: Graph) -> None:
    findings = verify(graph)
    if findings:
        raise IrgraphError(
            tuple(
                Diagnostic(
                    f"the result is unsound: {finding.message} [{finding.rule}]",
                    op_place(finding.op, graph) if finding.op is not None else None,
                    hint="a statement should have refused this: please report it",
                )
                for finding in findings
            ),
            ILLEGAL,
        )
