"""What each stage of a pipeline is predicted to gain."""

from __future__ import annotations

from dataclasses import dataclass, field

from irgraph.ir.graph import Graph
from irgraph.language.evaluate import Target
from irgraph.manage.stage import Applied, Stage
from irgraph.manage.watch import Tabular
from irgraph.report.validation import UNVALIDATED


@dataclass
class Gains(Tabular):
    """Predicts the step before the first stage and after every one that changes it.

    ``target`` is the device; ``times`` holds each stage's label with the step time after it, in
    microseconds.
    """

    title = "predicted step time"
    caption = UNVALIDATED
    target: Target
    times: list[tuple[str, float]] = field(default_factory=list)

    def before(self, stage: Stage, graph: Graph) -> None:
        """Predict the step that the pipeline starts with."""
        if not self.times:
            self.times.append(("before", self._time(graph)))

    def after(self, done: Applied, before: Graph, graph: Graph) -> None:
        """Predict what a stage left."""
        time = self._time(graph) if done.changed else self.times[-1][1]
        self.times.append((done.label, time))

    def _time(self, graph: Graph) -> float:
        return self.target.measure(graph)["step.time"]

    def rows(self) -> list[dict[str, str]]:
        """Return a row for each stage: the step time after it and the change, in milliseconds."""
        before = [0.0, *(time for _, time in self.times)]
        return [
            {
                "step": label,
                "ms": f"{time / 1000:.3f}",
                "change": f"{(time - last) / 1000:+.3f}" if last else "",
                "share": f"{time / last - 1:+.1%}" if last else "",
            }
            for (label, time), last in zip(self.times, before, strict=False)
        ]
