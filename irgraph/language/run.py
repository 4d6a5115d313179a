"""Runs scripts: each is first checked completely, then run, and committed completely at the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from irgraph.diagnostics import Diagnostic, IrgraphError, fail
from irgraph.ir.graph import Graph
from irgraph.ir.op import Value
from irgraph.ir.rarer_steps import without_rarer
from irgraph.language.check import check_script, unused_name_warnings
from irgraph.language.clauses import Call
from irgraph.language.expressions.evaluate import Pricer, Target
from irgraph.language.expressions.nodes import Literal
from irgraph.language.running.report import Outcome, Report, op_place
from irgraph.language.running.settle import settle
from irgraph.language.running.state import ILLEGAL, Frame, State
from irgraph.language.script import Pass, Script
from irgraph.language.statements.apply import Apply
from irgraph.ops.verify import verify
from irgraph.verbs.stream_order import StreamOrder, explain


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

    ``parameters`` are the values for the pass (or for the only pass of a script without
    statements); ``pricer`` returns ``op.time``, ``targets`` finds the devices that ``target``
    names; ``paths`` are further folders of passes; ``verified`` is whether the rules of the IR are
    checked at the end. The given graph is never modified, not even on an error.

    Raises ``IrgraphError``: exit code 4 for an invalid script, 1 for an illegal change or an
    ``expect`` that fails.
    """
    full_script = _with_call(script, parameters or {})
    passes = check_script(full_script, graph, paths)
    state = settle(full_script.body, Frame(State(graph, passes, pricer, targets)))
    if verified and state.graph is not graph:
        _verify(state.graph)
        _check_streams(graph, state)
    # statements change the usual step alone
    result = state.graph if state.graph is graph else without_rarer(state.graph)
    return Outcome(result, Report(tuple(state.entries), tuple(unused_name_warnings(full_script))))


def _with_call(script: Script | Pass, parameters: Mapping[str, Value]) -> Script:
    """Return a script with statements: for a single pass, a script that applies it."""
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
    single = script.passes[0]
    arguments = tuple(
        (name, Literal(value, place=single.place)) for name, value in parameters.items()
    )
    call = Call(single.name, arguments, place=single.place)
    return Script(script.passes, (Apply(call, place=single.place),), place=script.place)


def _check_streams(before: Graph, state: State) -> None:
    """Refuse a result whose streams do not order ops that the original graph orders."""
    if any(entry.assumptions for entry in state.entries):
        return
    order = StreamOrder(state.graph)
    unordered = order.newly_unordered(StreamOrder(before))
    if not unordered:
        return
    reason, involved_ops = explain(unordered[0], order.leaves)
    notes = tuple(
        Diagnostic(s, op_place(op, state.graph), severity="note") for op, s in involved_ops
    )
    changes = [entry.place for entry in state.entries if entry.changed]
    hint = "insert sync.record() after the first and sync.wait before the second"
    place = changes[-1] if changes else None
    raise IrgraphError((Diagnostic(reason, place, notes, hint),), ILLEGAL)


def _verify(graph: Graph) -> None:
    findings = verify(graph)
    if findings:
        raise IrgraphError(
            tuple(
                Diagnostic(
                    f"the result breaks a rule of the IR: {finding.message} [{finding.rule}]",
                    op_place(finding.op, graph) if finding.op is not None else None,
                    hint="a statement should have refused this: please report it",
                )
                for finding in findings
            ),
            ILLEGAL,
        )
