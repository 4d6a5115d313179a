"""Finds the stage of a pipeline that breaks a graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from irgraph.diagnostics import IrgraphError, fail
from irgraph.ir.graph import Graph
from irgraph.language import Pricer
from irgraph.manage.run import check_stages, run_stages
from irgraph.manage.stage import Applied, Stage
from irgraph.manage.watch import Watcher
from irgraph.ops.verify import describe, verify

Predicate = Callable[[Graph], str]
"""Returns the reason why a graph is broken, or ``""`` if it is not."""


@dataclass(frozen=True, slots=True)
class Bisection:
    """Result of a bisection.

    Attributes:
        stage: the stage that breaks the graph, ``None`` if there is none.
        reason: the predicate's result for the graph after it, or why the stage failed.
        before, after: the graphs before and after that stage; ``after`` is ``None`` if it failed.
        checks: number of calls of the predicate.
    """

    stage: Stage | None
    reason: str
    before: Graph
    after: Graph | None
    checks: int


def verifier_finding(graph: Graph) -> str:
    """Return the first finding of the verifier, or ``""``: the default predicate."""
    findings = verify(graph)
    more = f", and {len(findings) - 1} more" if len(findings) > 1 else ""
    return describe(graph, findings[0]) + more if findings else ""


class _GraphHistory(Watcher):
    """Stores the graph after every stage."""

    def __init__(self, graph: Graph) -> None:
        self.graphs = [graph]

    def after(self, done: Applied, before: Graph, graph: Graph) -> None:
        """Store a graph."""
        self.graphs.append(graph)


def bisect(
    graph: Graph,
    pipeline: Sequence[Stage],
    broken: Predicate = verifier_finding,
    *,
    pass_path: Sequence[str] = (),
    pricer: Pricer | None = None,
) -> Bisection:
    """Find the stage after which ``broken`` first returns a reason, or the stage that fails.

    The pipeline runs once, unverified. Graphs are immutable, so all intermediate graphs are stored
    and the predicate is called a logarithmic number of times. If a later stage repairs the graph,
    the result is a stage that breaks it, not necessarily the first.

    Raises ``IrgraphError``: exit code 1 if the graph is broken before the first stage, 2 or 4 if
    the pipeline itself is invalid.
    """
    check_stages(graph, pipeline, pass_path)
    history = _GraphHistory(graph)
    failure = ""
    try:
        run_stages(
            graph,
            pipeline,
            pass_path=pass_path,
            pricer=pricer,
            watchers=[history],
            verified=False,
        )
    except IrgraphError as error:
        failure = str(error)
    graphs = history.graphs
    first_reason = broken(graphs[0])
    if first_reason:
        hint = "bisect needs a model that passes the check before the first stage"
        raise fail(
            f"the model is broken before the first stage: {first_reason}", hint=hint, exit_code=1
        )
    last_reason = broken(graphs[-1]) if len(graphs) > 1 else ""
    if not last_reason:
        return _result_without_culprit(graphs, pipeline, failure)
    good, bad, reason, checks = 0, len(graphs) - 1, last_reason, 2
    while bad - good > 1:
        middle = (good + bad) // 2
        finding = broken(graphs[middle])
        checks += 1
        if finding:
            bad, reason = middle, finding
        else:
            good = middle
    return Bisection(pipeline[good], reason, graphs[good], graphs[bad], checks)


def _result_without_culprit(
    graphs: Sequence[Graph], pipeline: Sequence[Stage], failure: str
) -> Bisection:
    """Return the result without a broken stage, or with the stage that failed."""
    checks = min(len(graphs), 2)
    if failure:
        stage = pipeline[len(graphs) - 1]
        return Bisection(stage, failure, graphs[-1], None, checks)
    return Bisection(None, "", graphs[-1], graphs[-1], checks)
