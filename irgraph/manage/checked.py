"""Whether the stages of a pipeline leave what a step computes, by running the graphs."""

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
    """What running the graphs before and after some stages showed.

    Attributes:
        stages: one after the other, each of which changed the graph.
        result: how they compare; ``None`` where the stages change results on purpose.
        blamed: the first of several stages whose results differ.
    """

    stages: Sequence[Stage]
    result: Comparison | None
    blamed: Stage | None = None

    @property
    def same(self) -> bool:
        """Whether the stages do what they are meant to, as far as that can be told."""
        return self.result is None or self.result.same


@dataclass
class Checked(Watcher):
    """Keeps the graphs around each stage, to be compared at the end."""

    pass_path: Sequence[str] = ()
    done: list[tuple[Stage, Graph, Graph]] = field(default_factory=list)

    def after(self, done: Applied, before: Graph, graph: Graph) -> None:
        """Keep what a stage changed."""
        if done.changed:
            self.done.append((done.stage, before, graph))

    def verdicts(self) -> Iterator[Verdict]:
        """Compare the graphs before and after each run of stages that keep results.

        Raises ``IrgraphError`` where a graph cannot be run.
        """
        for changing, run in groupby(self.done, key=lambda one: self._changes(one[0])):
            pieces = list(run)
            stages = [stage for stage, _, _ in pieces]
            if changing:
                yield Verdict(stages, None)
                continue
            result = compare(pieces[0][1], pieces[-1][2])
            yield Verdict(stages, result, None if result.same else _blamed(pieces))

    def _changes(self, stage: Stage) -> bool:
        """Return whether a stage applies a pass that says that it ``changes results``."""
        passes = check_script(stage.script, paths=self.pass_path)
        return any(declared.changing for declared in passes.values())


def _blamed(pieces: Sequence[tuple[Stage, Graph, Graph]]) -> Stage | None:
    """Return the first of several stages whose results differ."""
    found = (stage for stage, before, after in pieces if not compare(before, after).same)
    return next(found, None) if len(pieces) > 1 else pieces[0][0]
