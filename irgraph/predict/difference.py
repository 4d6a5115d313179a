"""Difference of two predictions: the effect of a change."""

from __future__ import annotations

import math
from collections import Counter
from functools import cached_property
from typing import Any, Unpack

from msgspec import Struct

from irgraph.diagnostics import fail
from irgraph.ir.graph import Graph
from irgraph.predict.caveats import merge_percentages, one_sided_graph
from irgraph.predict.options import PredictFields, PredictOptions
from irgraph.predict.pair import predict_pair
from irgraph.predict.prediction import Prediction
from irgraph.predict.validation import validation
from irgraph.report.console import time_text
from irgraph.report.plots import Plot
from irgraph.report.structure import Change, structural_diff
from irgraph.schedule.sampling import interval


class Difference(Struct, frozen=True, dict=True):
    """Two comparable predictions, and the changes from one model to the other.

    Attributes:
        before, after: the predictions (``predict.pair``).
        measured: measured step times of both models in microseconds, if any.
    """

    before: Prediction
    after: Prediction
    measured: tuple[float, float] | None = None

    def __repr__(self) -> str:
        """Return the device, both step times and their change, in one line."""
        first, second = (side.step_time for side in (self.before, self.after))
        times = f"{time_text(first)} to {time_text(second)}"
        share = f", {second / first - 1:+.1%}" if first else ""
        return f"<Difference on {self.before.sheet.name}: {times}{share}>"

    @property
    def step_time_change(self) -> float:
        """Change of the step time, microseconds; positive if slower."""
        return self.after.step_time - self.before.step_time

    @cached_property
    def interval(self) -> tuple[float, float]:
        """Ends of a 90 % interval of ``step_time_change``, microseconds.

        Errors of parts that both models share cancel.
        """
        return interval(self.after.steady_samples - self.before.steady_samples)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about either prediction, the first model's first, and about both.

        Texts that differ only in percentages are merged, with the lowest and the highest.
        """
        pair = (self.before, self.after)
        lines = [line for side in pair for line in side.warnings]
        return tuple(merge_percentages([*lines, *one_sided_graph([side.host for side in pair])]))

    @cached_property
    def changes(self) -> list[Change]:
        """Ops that were added, removed, moved or changed, each with its device times."""
        first, second = self.before.priced, self.after.priced
        return structural_diff(first.graph, second.graph, (first, second))

    def plot(self) -> Plot:
        """Draw the critical path by cause, before and after (needs matplotlib)."""
        from irgraph.predict.notebook import plot_change

        return plot_change(self.summary())

    def _repr_html_(self) -> str:
        """Return the change as HTML for notebooks."""
        from irgraph.predict.notebook import difference_html

        return difference_html(self.summary())

    def summary(self) -> dict[str, Any]:
        """Return the figures as plain values, for tables and JSON; times in microseconds."""
        first, second = self.before.summary(), self.after.summary()
        figures = ("step_time_us", "gpu_active_us", "gpu_idle_us", "host_waits_us")
        pair = (self.before, self.after)
        counts = [Counter(op.name for op in p.priced.graph.walk()) for p in pair]
        names = sorted(counts[0] | counts[1])
        return {
            "models": _names(self.before, self.after),
            "device": first["device"]["name"],
            "host": first["host"],
            "figures": {name: [first[name], second[name]] for name in figures},
            "step_time_change_us": self.step_time_change,
            "step_time_change_interval_us": list(self.interval),
            "validation": validation(self.step_time_change, self.interval, self.measured),
            "memory_peak_bytes": [p.memory.peak for p in pair],
            "critical_path_us": _paired_times(
                first["critical_path_us"], second["critical_path_us"]
            ),
            "kernels_us": _paired_times(_times(first), _times(second)),
            "ops": {n: [c[n] for c in counts] for n in names if counts[0][n] != counts[1][n]},
            "measured_times": second["measured_times"],
            "collectives": second["collectives"],
            "warnings": list(self.warnings),
            "unknown": [first["unknown"], second["unknown"]],
            "assumptions": second["assumptions"],
        }


def diff(
    before: Graph | Prediction,
    after: Graph,
    options: PredictOptions | str | None = None,
    *,
    step_times: tuple[float, float] | None = None,
    **changes: Unpack[PredictFields],
) -> Difference:
    """Predict two models and compare them (``predict_pair``); options as for ``predict``.

    ``before`` may be a prediction already. ``step_times`` are the measured step times of both,
    microseconds, if any.
    """
    invalid_time = next((t for t in step_times or () if not (math.isfinite(t) and t > 0)), None)
    if invalid_time is not None:
        raise fail(f"step_times: give microseconds above 0, not {invalid_time!r}", exit_code=2)
    return Difference(*predict_pair(before, after, options, **changes), step_times)


def _names(before: Prediction, after: Prediction) -> list[str]:
    """Return labels of the two models: their names, or their files if the names are equal."""
    first, second = before.priced.graph, after.priced.graph
    if first.name != second.name or not (first.source and second.source):
        return [first.name, second.name]
    return [first.source, second.source]


def _times(summary: dict[str, Any]) -> dict[str, float]:
    return {family: figures["time_us"] for family, figures in summary["kernels"].items()}


def _paired_times(first: dict[str, float], second: dict[str, float]) -> dict[str, list[float]]:
    names = sorted({**first, **second}, key=lambda n: -_change(first, second, n))
    return {name: [first.get(name, 0.0), second.get(name, 0.0)] for name in names}


def _change(first: dict[str, float], second: dict[str, float], name: str) -> float:
    return abs(second.get(name, 0.0) - first.get(name, 0.0))
