"""Measures the CPU of this machine: its sheet, single calls, recorded steps, alternating steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeAlias

import msgspec

from irgraph.ir.graph import Graph
from irgraph.overheads.samples import Samples

COST = 2.5
"""Microseconds that the profiler adds to an event with shapes (``irgraph calibrate-profiler``)."""

RULE = "whiskers"
"""Outlier rule for samples of overheads, as in the paper: traces have wall-clock times, and other
programs of a busy machine delay some samples by milliseconds."""

TimesAndCalls: TypeAlias = tuple[list[list[float]], Path]
"""Times of each step in microseconds, and the file of their models' calls."""

WARM_UP = 3
"""Number of untimed rounds before the timed ones."""


class CpuBench:
    """Measures this machine; files are written to a folder."""

    def __init__(self, folder: Path, runs: int, scale: float) -> None:
        from costmodels.measure.calibrate import calibrate, to_json
        from costmodels.measure.run import torch_for

        sheet = calibrate(torch_for("cpu"), "cpu", scale=scale)
        self.device, self.runs, self.folder = str(sheet["name"]), runs, folder
        self.sheet, self.files = folder / "cpu.json", 0
        self.sheet.write_text(to_json(sheet), encoding="utf-8")

    def record_overheads(self, name: str, make: Callable[[], Callable[[], object]]) -> Samples:
        """Return the samples of the host's overheads in a step."""
        from irgraph.capture.kineto import read_kineto
        from irgraph.capture.kineto.events.tree import build_tree
        from irgraph.capture.recording.folder import KINETO_TRACE
        from irgraph.capture.recording.record import record_step
        from irgraph.replay.replay import build_replayer

        trace_folder = self.folder / "trace"
        record_step(make, name, trace_folder, batch=0, runs=1)
        return (
            build_replayer(build_tree(read_kineto(trace_folder / KINETO_TRACE)))
            .samples()
            .require_sufficient(name)
        )

    def time_steps(
        self, graphs: Iterable[Graph], steps: Sequence[Callable[[], object]]
    ) -> TimesAndCalls:
        """Time steps in turns, before and after their models' calls are measured.

        The load of the machine by other programs is then similar for the steps and for the calls.
        """
        from costmodels.measure.calls import measure_calls

        self.files += 1
        calls = self.folder / f"calls{self.files}.jsonl"
        first = self._time_in_turns(steps)
        measure_calls(graphs, "cpu", calls)
        second = self._time_in_turns(steps)
        return [
            [*first_times, *second_times]
            for first_times, second_times in zip(first, second, strict=True)
        ], calls

    def predict_step(self, graph: Graph, calls: Path, others: Sequence[Samples]) -> float:
        """Return the microseconds of a step with the overheads of other programs."""
        from irgraph import predict
        from irgraph.overheads.extract import ProfilerCost, extract
        from irgraph.overheads.rules import find_rule

        cost = ProfilerCost(COST, 0.0)
        table = extract(others, "others", rule=find_rule(RULE), cost=cost, architecture="cpu")
        host = self.folder / "host.json"
        host.write_bytes(msgspec.json.encode(table))
        sheet, files = str(self.sheet), [str(calls)]
        return predict(graph, device=sheet, host=str(host), weights=files).step_time

    def _time_in_turns(self, steps: Sequence[Callable[[], object]]) -> list[list[float]]:
        """Return the microseconds of each step, run in turns in alternating order."""
        from irgraph.capture.recording.record import step_timer

        time_step = step_timer("cpu")
        times_by_step: list[list[float]] = [[] for _ in steps]
        for number in range(WARM_UP + self.runs // 2):
            for index in range(len(steps))[:: (-1) ** number]:
                times_by_step[index].append(time_step(steps[index]))
        return [times[WARM_UP:] for times in times_by_step]
