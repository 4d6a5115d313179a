"""Checks that the stages of a pipeline preserve the results of a step, by running the graphs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from irgraph.execute import Comparison, compare
from irgraph.ir.graph import Graph
from irgraph.language.check import check_script
from irgraph.manage.stage import Applied, Stage
from irgraph.manage.watch import Watcher


@dataclass(frozen=True)
class Verdict:
    """Comparison of the graphs before and after some stages.

    Attributes:
        stages: consecutive stages, each of which changed the graph.
        result: their comparison; ``None`` if the stages change results on purpose.
        culprit: the first of several stages whose results differ.
    """

    stages: Sequence[Stage]
    result: Comparison | None
    culprit: Stage | None = None

    @property
    def same(self) -> bool:
        """Whether no unintended change of results was found."""
        return self.result is None or self.result.same


@dataclass
class ResultCheck(Watcher):
    """Stores the graphs before and after each stage, for a comparison at the end."""

    pass_path: Sequence[str] = ()
    changed_stages: list[tuple[Stage, Graph, Graph]] = field(default_factory=list)

    def after(self, done: Applied, before: Graph, graph: Graph) -> None:
        """Store the graphs around a stage that changed something."""
        if done.changed:
            self.changed_stages.append((done.stage, before, graph))

    def verdicts(self) -> Iterator[Verdict]:
        """Compare the graphs before and after each run of stages that preserve results.

        Raises ``IrgraphError`` if a graph cannot be run.
        """
        for changing, run in groupby(
            self.changed_stages, key=lambda change: self.changes_results(change[0])
        ):
            changes = list(run)
            stages = [stage for stage, _, _ in changes]
            if changing:
                yield Verdict(stages, None)
                continue
            result = compare(changes[0][1], changes[-1][2])
            yield Verdict(stages, result, None if result.same else _first_differing(changes))

    def changes_results(self, stage: Stage) -> bool:
        """Return whether a stage applies a pass that declares that it ``changes results``."""
        passes = check_script(stage.script, paths=self.pass_path)
        return any(declared.changing for declared in passes.values())


def _first_differing(changes: Sequence[tuple[Stage, Graph, Graph]]) -> Stage | None:
    """Return the first of several stages whose results differ."""
    differing = (stage for stage, before, after in changes if not compare(before, after).same)
    return next(differing, None) if len(changes) > 1 else changes[0][0]
