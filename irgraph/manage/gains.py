"""The predicted gain of each stage of a pipeline."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

from irgraph.ir.graph import Graph
from irgraph.ir.measured_times import has_measured_times
from irgraph.language.expressions.evaluate import Target
from irgraph.manage.stage import Applied, Stage
from irgraph.manage.watch import Tabular
from irgraph.predict.validation import SIMILAR, UNVALIDATED
from irgraph.schedule.memory.peak import peak_memory

MODELS_ONLY_NOTE = (
    "by models alone: the measured times of some ops would not go with modelled ones of those that "
    "change; `irgraph diff` of both models scales by them"
)

MIN_LOSS = 0.0005
"""Share of the step below which a loss is not reported."""


@dataclass
class Gains(Tabular):
    """Predicts the step before the first stage and after every stage that changes it.

    ``target`` is the device. ``steps`` has each stage's label with the step time after it in
    microseconds and the peak memory in bytes. ``resized`` has the labels of stages that resize.
    """

    title = "predicted step time and peak memory of tensors"
    caption = UNVALIDATED
    target: Target
    steps: list[tuple[str, float, int]] = field(default_factory=list)
    resized: set[str] = field(default_factory=set)

    def before(self, stage: Stage, graph: Graph) -> None:
        """Predict the step before the first stage."""
        if not self.steps:
            if has_measured_times(graph):
                self.caption = f"{UNVALIDATED}\n{MODELS_ONLY_NOTE}"
            self.steps.append(("before", *self._figures(graph)))

    def after(self, done: Applied, before: Graph, graph: Graph) -> None:
        """Predict the step after a stage."""
        figures = self._figures(graph) if done.changed else self.steps[-1][1:]
        texts = [f"WARNING: {done.label}: {text}" for text in self.target.doubts(graph)]
        if done.changed and done.stage.name in SIMILAR:
            texts.append(f"{done.stage.name}: {SIMILAR[done.stage.name]}")
        for text in texts:
            if text not in self.caption:
                self.caption += f"\n{text}"
        self.steps.append((done.label, *figures))
        if any(entry.verb == "resize" for entry in done.report.entries):
            self.resized.add(done.label)

    def remarks(self) -> list[str]:
        """Return a line for each stage that makes the step slower, unless it resizes the work."""
        return [
            f"slower: {label} is predicted to add {(time - last) / 1000:.3f} ms"
            f" to the step ({time / last - 1:+.1%})"
            for (_, last, _), (label, time, _) in pairwise(self.steps)
            if time > last * (1 + MIN_LOSS) and label not in self.resized
        ]

    def _figures(self, graph: Graph) -> tuple[float, int]:
        return self.target.measure(graph)["step.time"], peak_memory(graph).peak

    def rows(self) -> list[dict[str, str]]:
        """Return a row for each stage: time in milliseconds, memory in MiB, and their changes."""
        before = [("", 0.0, 0), *self.steps]
        return [
            {
                "stage": label,
                "ms": f"{time / 1000:.3f}",
                "change": f"{(time - last) / 1000:+.3f}" if last else "",
                "share": f"{time / last - 1:+.1%}" if last else "",
                "peak MiB": f"{peak / 2**20:,.1f}",
                "more": f"{(peak - last_peak) / 2**20:+,.1f}" if last else "",
            }
            for (label, time, peak), (_, last, last_peak) in zip(self.steps, before, strict=False)
        ]
