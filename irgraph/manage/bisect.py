"""Which stage of a pipeline breaks something."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from irgraph.diagnostics import IrgraphError, fail
from irgraph.ir.graph import Graph
from irgraph.ir.verify import describe, verify
from irgraph.language import Pricer
from irgraph.manage.run import check_stages, run_stages
from irgraph.manage.stage import Applied, Stage
from irgraph.manage.watch import Watcher

Predicate = Callable[[Graph], str]
"""Returns why a graph is broken, or ``""`` if it is not."""


@dataclass(frozen=True, slots=True)
class Bisection:
    """What a bisection found.

    Attributes:
        stage: the stage that breaks it, ``None`` where none does.
        reason: the predicate's answer for the graph after it, or why the stage failed.
        before, after: the graphs around that stage; ``after`` is ``None`` where it failed.
        asked: number of calls of the predicate.
    """

    stage: Stage | None
    reason: str
    before: Graph
    after: Graph | None
    asked: int


def unsound(graph: Graph) -> str:
    """Return the first finding of the verifier, or ``""``: the default predicate."""
    findings = verify(graph)
    more = f", and {len(findings) - 1} more" if len(findings) > 1 else ""
    return describe(graph, findings[0]) + more if findings else ""


class _Keep(Watcher):
    """Keeps the graph after every stage."""

    def __init__(self, graph: Graph) -> None:
        self.graphs = [graph]

    def after(self, done: Applied, before: Graph, graph: Graph) -> None:
        """Keep a graph."""
        self.graphs.append(graph)


def bisect(
    graph: Graph,
    pipeline: Sequence[Stage],
    broken: Predicate = unsound,
    *,
    pass_path: Sequence[str] = (),
    pricer: Pricer | None = None,
) -> Bisection:
    """Find the stage after which ``broken`` first holds, or the one that fails.

    The pipeline runs once, unverified; graphs are immutable, so all intermediate ones are kept and
    the predicate is called a logarithmic number of times. If a later stage repairs the graph, some
    stage that breaks it is found, not necessarily the first.

    Raises ``IrgraphError``: exit code 1 where the graph is broken before the first stage, 2 or 4
    where the pipeline itself is wrong.
    """
    check_stages(graph, pipeline, pass_path)
    keep = _Keep(graph)
    failure = ""
    try:
        run_stages(
            graph,
            pipeline,
            pass_path=pass_path,
            pricer=pricer,
            watchers=[keep],
            verified=False,
        )
    except IrgraphError as error:
        failure = str(error)
    graphs = keep.graphs
    first = broken(graphs[0])
    if first:
        hint = "bisect needs a model that passes the check before the first stage"
        raise fail(f"the model is broken before the first stage: {first}", hint=hint, exit_code=1)
    last = broken(graphs[-1]) if len(graphs) > 1 else ""
    if not last:
        return _unbroken(graphs, pipeline, failure)
    good, bad, reason, asked = 0, len(graphs) - 1, last, 2
    while bad - good > 1:
        middle = (good + bad) // 2
        said = broken(graphs[middle])
        asked += 1
        if said:
            bad, reason = middle, said
        else:
            good = middle
    return Bisection(pipeline[good], reason, graphs[good], graphs[bad], asked)


def _unbroken(graphs: Sequence[Graph], pipeline: Sequence[Stage], failure: str) -> Bisection:
    """Return the result without a broken stage, or with the stage that failed."""
    asked = min(len(graphs), 2)
    if failure:
        stage = pipeline[len(graphs) - 1]
        return Bisection(stage, failure, graphs[-1], None, asked)
    return Bisection(None, "", graphs[-1], graphs[-1], asked)
