"""Watchers: objects that observe a pipeline, stage by stage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from irgraph.diagnostics import Diagnostic
from irgraph.ir.graph import Graph
from irgraph.manage.stage import Applied, Stage
from irgraph.report.structure import structure_lines
from irgraph.text.printer import print_graph

Write = Callable[[str], None]
"""Shows one or more lines of text."""


PRINT_CHOICES = ("all", "changed", "failed")
"""Values of ``PrintAfter.which`` other than names of passes."""


class Watcher:
    """Observes every stage of a pipeline; override what you need."""

    def should_run(self, stage: Stage, graph: Graph) -> bool:
        """Return whether a stage may run; it is skipped if any watcher says no."""
        return True

    def before(self, stage: Stage, graph: Graph) -> None:
        """Observe the graph before a stage."""

    def after(self, done: Applied, before: Graph, graph: Graph) -> None:
        """Observe the result of a stage, and the graphs before and after it."""

    def failed(self, stage: Stage, graph: Graph, error: Exception) -> None:
        """Observe the graph on which a stage failed, and its error, which then propagates."""


@dataclass
class PrintAfter(Watcher):
    """Prints the graph after every stage, or after selected ones.

    ``which`` is ``all``, ``changed`` (if a stage changed it), ``failed`` (the graph on which a
    stage failed) or the name of a pass.
    """

    which: str
    write: Write

    def after(self, done: Applied, before: Graph, graph: Graph) -> None:
        """Print the graph if it is selected."""
        selected = {"all": True, "changed": done.changed, "failed": False}
        if selected.get(self.which, self.which == done.stage.name):
            self.write(f"# after {done.stage}\n{print_graph(graph)}")

    def failed(self, stage: Stage, graph: Graph, error: Exception) -> None:
        """Print the graph on which a stage failed."""
        if self.which == "failed":
            self.write(f"# before {stage}, which failed\n{print_graph(graph)}")


@dataclass
class PrintDiff(Watcher):
    """Prints the structural difference that each stage makes."""

    write: Write

    def after(self, done: Applied, before: Graph, graph: Graph) -> None:
        """Print the difference, grouped."""
        lines = structure_lines(before, graph) if done.changed else ["  no difference"]
        self.write("\n".join([f"{done.stage}:", *lines]))


@dataclass
class StopAfter(Watcher):
    """Skips all stages after the first ``count``."""

    count: int

    def should_run(self, stage: Stage, graph: Graph) -> bool:
        """Return whether a stage is one of the first."""
        return stage.number <= self.count


class Tabular(Watcher):
    """Collects rows while a pipeline runs.

    Attributes:
        title: title of the table.
        caption: text below the rows.
    """

    title = ""
    caption = ""

    def rows(self) -> list[dict[str, str]]:
        """Return the collected rows, with columns in order."""
        return []

    def remarks(self) -> list[str]:
        """Return remarks on the rows, a line each."""
        return []


@dataclass
class Timing(Tabular):
    """Collects the seconds of every stage."""

    title = "time of steps"
    times: list[tuple[str, float]] = field(default_factory=list)

    def after(self, done: Applied, before: Graph, graph: Graph) -> None:
        """Record the duration of a stage."""
        self.times.append((done.label, done.seconds))

    def rows(self) -> list[dict[str, str]]:
        """Return a row for each stage and one for their sum, times in milliseconds."""
        total = sum(seconds for _, seconds in self.times)
        rows = [*self.times, ("all", total)]
        return [
            {
                "stage": label,
                "ms": f"{seconds * 1e3:.1f}",
                "share": f"{seconds / total:.1%}" if total else "",
            }
            for label, seconds in rows
        ]


@dataclass
class Statistics(Tabular):
    """Collects, for each statement, the ops its pattern was tried on and the matches."""

    title = "statements"
    done: list[Applied] = field(default_factory=list)

    def after(self, done: Applied, before: Graph, graph: Graph) -> None:
        """Record the result of a stage."""
        self.done.append(done)

    def rows(self) -> list[dict[str, str]]:
        """Return a row for each statement that ran, in order; time in milliseconds."""
        return [
            {
                "statement": f"{entry.caller + ': ' if entry.caller else ''}{entry.verb}",
                "at": f"{entry.place.line}:{entry.place.column}",
                "tried": str(entry.tried),
                "matched": str(entry.matched),
                "went": str(entry.replaced),
                "came": str(entry.made),
                "refused": str(len(entry.refused)),
                "ms": f"{entry.seconds * 1e3:.1f}",
                "nearest miss": "; ".join(_misses(entry.warnings)),
            }
            for done in self.done
            for entry in done.report.entries
        ]


def _misses(warnings: tuple[Diagnostic, ...]) -> list[str]:
    """Return the nearest misses in warnings, or the reasons why there are none."""
    return [
        note.message.removeprefix("nearest miss: ")
        for warning in warnings
        for note in warning.notes or (warning,)
    ]
