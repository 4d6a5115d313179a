"""``irgraph evaluate timed``: steps and gains timed on a rented GPU, compared with predictions.

Host overheads come from traces of other programs on the same machine: a step is never predicted
with the overheads of its own model.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory

from msgspec import Struct

from costmodels.evaluate.comparison import Comparison, Point, Series
from costmodels.evaluate.errors import IntervalHit, coverage
from costmodels.evaluate.timed.gains import StepPair, pairs
from costmodels.evaluate.timed.steps import Step, steps_of
from costmodels.evaluate.whole.programs import result_or_reason
from costmodels.hosts.rented_gpu import merged_table
from costmodels.hosts.writing import encode
from irgraph.api import rewrite, run_script
from irgraph.diagnostics import fail
from irgraph.ir.graph import Graph
from irgraph.predict.prediction import Prediction, predict

DEVICE = "h100-80gb-hbm3"

DEVICE_WORK = "work of the device, traced"
"""Name of the series of summed kernels and copies."""

STATEMENTS = ("compile",)
"""Changes that are statements of the language instead of passes."""

NOTES = (
    "Timed without a profiler on an H100 SXM 80 GB, torch 2.11, CUDA 13.0, cuDNN 9.19: medians, "
    "each step followed by a wait for the device; the host is a virtual machine of 16 cores.",
    "Host overheads: means over the traces of the other models on that machine.",
    "Programs: costmodels/measurements/programs.py, captured by the release of torch installed.",
    "Peak memory: what torch's allocator had given out at most, the model included; libraries' "
    "workspaces are in it, and not in the prediction.",
)


class TimedEvaluation(Struct):
    """Predictions of timed steps, each with the overheads of the other models' traces."""

    device: str
    keep: Path | None
    folder: Path

    def host(self, step: Step) -> str:
        """Return the file of the host table for a step."""
        return _others(self.device, step.traced_as, self.folder)

    def predict_graph(self, graph: Graph, step: Step) -> Prediction:
        """Return the prediction of a graph with the host of a step."""
        return predict(graph, self.device, host=self.host(step))

    def program(self, step: Step) -> Graph:
        """Return the program of a step: captured, and as a CUDA graph or compiled if it was."""
        graph = step.graph(self.keep)
        return apply_change(graph, {"": "", "graph": "cuda-graph", "compile": "compile"}[step.how])


def apply_change(graph: Graph, change: str) -> Graph:
    """Return a graph after a pass or a statement, unchanged for ``""``.

    Raises ``IrgraphError`` if the pass changes nothing.
    """
    if not change:
        return graph
    result = (run_script if change in STATEMENTS else rewrite)(graph, change).graph
    if len(result.ops) == len(graph.ops) and result == graph:
        raise fail(f"{change} changes nothing")
    return result


@cache
def _others(device: str, model: str, folder: Path) -> str:
    path = folder / f"without-{model}.json"
    path.write_bytes(encode(merged_table(f"{device}, others than {model}", device, model)))
    return str(path)


def evaluate_timed(
    device: str = DEVICE, keep: Path | None = None, select: Callable[[Step], bool] | None = None
) -> Comparison:
    """Return measured and predicted steps, gains, peak memory, and coverage of intervals.

    Args:
        device: device of the measurements.
        keep: folder that caches captured programs.
        select: predicate of the steps to evaluate (default: all).
    """
    steps = [step for step in steps_of(device) if select is None or select(step)]
    with TemporaryDirectory() as folder:
        timed = TimedEvaluation(device, keep, Path(folder))
        predictions = _StepPredictions(timed, steps)
        kinds = ((predictions.points, "ms"), (predictions.gains(), "x"), (predictions.memory, "GB"))
        series = [
            Series(name, points, unit=unit)
            for points_by_name, unit in kinds
            for name, points in sorted(points_by_name.items())
        ]
        notes = (*NOTES, *(f"left out: {text}" for text in predictions.missing))
        return Comparison("timed", series, {}, notes, coverage(predictions.hits))


class _StepPredictions:
    """Predictions of timed steps, with points, memory and interval hits by group."""

    def __init__(self, timed: TimedEvaluation, steps: Sequence[Step]) -> None:
        self.timed, self.steps = timed, steps
        self.points: defaultdict[str, list[Point]] = defaultdict(list)
        self.memory: defaultdict[str, list[Point]] = defaultdict(list)
        self.hits: defaultdict[str, list[IntervalHit]] = defaultdict(list)
        self.missing: dict[str, None] = {}
        self.times: dict[int, float] = {}
        for step in steps:
            self._add_step(step)

    def _add_step(self, step: Step) -> None:
        prediction = result_or_reason(partial(self._predict, step))
        if isinstance(prediction, str):
            self.missing[f"{step.name}: {prediction}"] = None
            return
        self.times[id(step)] = prediction.step_time
        if step.device:
            work = sum(kernel.time for kernel in prediction.kernels())
            self.points[DEVICE_WORK].append(Point(step.name, step.device / 1e3, work / 1e3))
        if not (step.how or step.bench):
            memory = self.memory[f"peak memory: {'training' if step.trains else 'inference'}"]
            memory.append(Point(step.name, step.peak / 1e9, prediction.memory.peak / 1e9))
        group = "cuDNN's benchmark on" if step.bench else step.group
        self.points[group].append(Point(step.name, step.time / 1e3, prediction.step_time / 1e3))
        low, high = prediction.interval
        half = (high - low) / 2 / step.time
        self.hits[group].append(IntervalHit(low <= step.time <= high, half))

    def _predict(self, step: Step) -> Prediction:
        return self.timed.predict_graph(self.timed.program(step), step)

    def gains(self) -> dict[str, list[Point]]:
        """Return predicted and measured gains by change, for captured programs and for passes."""
        points_by_group: defaultdict[str, list[Point]] = defaultdict(list)
        for pair in pairs(self.steps):
            before, after = (self.times.get(id(step)) for step in (pair.before, pair.after))
            if before is None or after is None:
                continue
            name, change = pair.before.name, pair.change
            kind = f"gain of {change.name}"
            pass_group = f"{kind}, by {change.made_by}"
            group = pass_group if pair.after.how else f"{kind}, captured"
            points_by_group[group].append(Point(name, pair.gain, before / after))
            if change.made_by and not pair.after.how:
                self._by_pass(points_by_group[pass_group], pair, before)
        return {name: points for name, points in points_by_group.items() if points}

    def _by_pass(self, points: list[Point], pair: StepPair, before: float) -> None:
        step, made_by = pair.before, pair.change.made_by

        def changed() -> Prediction:
            return self.timed.predict_graph(apply_change(self.timed.program(step), made_by), step)

        after = result_or_reason(changed)
        if isinstance(after, str):
            self.missing[f"{made_by} on {step.name}: {after}"] = None
        else:
            points.append(Point(step.name, pair.gain, before / after.step_time))
