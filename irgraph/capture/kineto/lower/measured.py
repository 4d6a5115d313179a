"""Adds the times and streams measured by a Kineto trace to a lowered execution trace."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from irgraph.capture.common.result import Capture
from irgraph.capture.common.source import Source
from irgraph.capture.execution_trace import lower_execution_trace, read_execution_trace
from irgraph.capture.kineto.events.host import ancestors
from irgraph.capture.kineto.events.tree import Tree, build_tree
from irgraph.capture.kineto.lower.join import Join, join
from irgraph.capture.kineto.reading.ingest import read_kineto
from irgraph.capture.kineto.reading.trace import EventKind, KinetoTrace
from irgraph.ir.effects import is_view
from irgraph.ir.graph import Graph, Stream
from irgraph.ir.measured_times import CARD
from irgraph.ir.op import Note, Op
from irgraph.ir.quantity import Quantity

_HALF_WIDTH_90 = 1.645
"""Half width of a 90 % interval in standard deviations."""

NO_DEVICE = "the Kineto trace has no device events, so no device time is measured"

IDLE: dict[str, Note] = {"time": Quantity(0.0, "us"), "by": "measured", "kernels": 0}
"""Notes of a recorded op that launched no device work."""


class OpMeasurement(Struct, frozen=True):
    """Measurement of one op.

    Attributes:
        times: microseconds of device work in each recorded iteration.
        kernels: number of device events in the last iteration.
        stream: stream of most of the work.
    """

    times: tuple[float, ...]
    kernels: int
    stream: int

    @classmethod
    def from_calls(cls, trace: KinetoTrace, calls: Sequence[Sequence[int]]) -> OpMeasurement:
        """Return the measurement of an op from the device events of its calls, in order of time."""
        duration, stream = trace.columns["duration"], trace.columns["stream"]
        times = tuple(float(duration[list(rows)].sum()) / 1000 for rows in calls)
        streams: Counter[int] = Counter()
        for row in calls[-1]:
            streams[int(stream[row])] += int(duration[row]) + 1
        return cls(times, len(calls[-1]), streams.most_common(1)[0][0])

    def notes(self) -> dict[str, Note]:
        """Return the notes of an op: median time with its interval, and provenance."""
        half_width = _HALF_WIDTH_90 * float(np.std(self.times)) if len(self.times) > 1 else 0.0
        time = Quantity(round(float(np.median(self.times)), 3), "us", round(half_width, 3))
        return {"time": time, "by": "measured", "kernels": self.kernels}


class StepMeasurements(Struct, frozen=True):
    """Measurements of a model's ops, by the number in their origin.

    Attributes:
        by_number: measurements of ops with device work.
        recorded: numbers of all calls in the trace.
        unmeasured: numbers of calls whose device work is not in the trace.
    """

    by_number: Mapping[int, OpMeasurement]
    recorded: Collection[int]
    unmeasured: Collection[int]

    def is_idle(self, op: Op) -> bool:
        """Return whether an op was recorded, and neither it nor any op in it launched work."""
        if _number(op) not in self.recorded:
            return False
        numbers = map(_number, op.walk())
        return all(n not in self.by_number and n not in self.unmeasured for n in numbers)


def lower_with_times(
    recording: str | Path | Source,
    kineto: str | Path | Source,
    *,
    name: str | None = None,
    step: int | None = None,
) -> tuple[Capture, Join]:
    """Lower an execution trace with measured times from its Kineto trace.

    Every op that launched device work gets notes: its time, ``by = measured``, its kernels; and
    its stream, if that is not the stream with most of the work.

    Raises:
        IrgraphError: a file cannot be used, or they do not belong together (exit code 4).
    """
    trace = read_execution_trace(recording)
    tree = build_tree(read_kineto(kineto))
    match = join(trace, tree)
    capture = lower_execution_trace(trace, name=name, step=step)
    graph, unowned = with_times(capture.graph, tree, match)
    graph = with_card(graph, tree)
    notes = [*capture.notes, *match.lines()]
    if not tree.trace.on_device.any():
        notes.append(NO_DEVICE)
    if unowned:
        notes.append(f"{unowned} device events of the joined step belong to no op of the model")
    health = (*capture.health, *tree.trace.health.repairs())
    return replace(capture, graph=graph, notes=tuple(notes), health=health), match


def with_times(graph: Graph, tree: Tree, match: Join) -> tuple[Graph, int]:
    """Return a graph with measured notes, and the number of device events without an op."""
    nodes = {number for op in graph.walk() if (number := _number(op)) >= 0}
    owner = {
        row: node for node, rows in match.iteration_rows.items() for row in rows if node in nodes
    }
    owner.update({row: node for node, row in match.rows.items() if node in nodes})
    rows_by_op: dict[int, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    unowned = 0
    for row, launch, call in launched_work(tree, owner):
        if call >= 0:
            rows_by_op[owner[call]][call].append(row)
        elif match.window[0] <= tree.trace.columns["start"][launch] < match.window[1]:
            unowned += 1
    by_number = {
        n: OpMeasurement.from_calls(tree.trace, list(calls.values()))
        for n, calls in rows_by_op.items()
    }
    measurements = StepMeasurements(by_number, set(owner.values()), unmeasured_calls(tree, owner))
    return add_measurements(graph, measurements), unowned


def launched_work(tree: Tree, owner: Mapping[int, int]) -> Iterator[tuple[int, int, int]]:
    """Yield each device event with a launch, the launch, and the innermost call in ``owner``."""
    for row in np.flatnonzero(tree.trace.on_device & (tree.launch >= 0)).tolist():
        launch = int(tree.launch[row])
        yield row, launch, _call(tree, launch, owner)


def unmeasured_calls(tree: Tree, owner: Mapping[int, int]) -> set[int]:
    """Return the numbers of calls with a launch that started no device event.

    Launches are the runtime functions that started a device event elsewhere.
    """
    trace = tree.trace
    launches = np.unique(tree.launch[trace.on_device & (tree.launch >= 0)])
    names = np.unique(trace.columns["name"][launches])
    runtime = trace.columns["kind"] == EventKind.RUNTIME
    rows = np.flatnonzero(runtime & np.isin(trace.columns["name"], names))
    calls = (_call(tree, row, owner) for row in np.setdiff1d(rows, launches).tolist())
    return {owner[call] for call in calls if call >= 0}


def _call(tree: Tree, row: int, owner: Mapping[int, int]) -> int:
    return next((up for up in ancestors(tree, row) if up in owner), -1)


def with_card(graph: Graph, tree: Tree) -> Graph:
    """Return a graph with the card of its measured times in the settings, if the trace has it."""
    card = tree.trace.device_name
    return replace(graph, settings={**graph.settings, CARD: card}) if card else graph


def add_measurements(graph: Graph, measurements: StepMeasurements) -> Graph:
    """Return a graph with the measurements in notes, and the streams that the ops ran on."""
    by_number = measurements.by_number
    if not by_number:
        return graph
    ((default, _),) = Counter(m.stream for m in by_number.values()).most_common(1)
    ops = tuple(_add_notes(op, measurements, default) for op in graph.ops)
    numbers = sorted({m.stream for m in by_number.values()} - {default})
    streams = tuple(Stream(f"stream{number}", graph.device) for number in numbers)
    return replace(graph, ops=ops, streams=(*graph.streams, *streams))


def _number(op: Op) -> int:
    """Return the number of the recorded call that an op was lowered from, -1 if none."""
    number = op.origin.rpartition("#")[2]
    return int(number) if number.isdecimal() else -1


def _add_notes(op: Op, measurements: StepMeasurements, default: int, idle: bool = False) -> Op:
    idle = idle or measurements.is_idle(op)
    body = tuple(_add_notes(child, measurements, default, idle) for child in op.body)
    measurement = measurements.by_number.get(_number(op))
    if measurement is not None:
        stream = op.stream if measurement.stream == default else f"stream{measurement.stream}"
        return replace(op, body=body, stream=stream, notes={**op.notes, **measurement.notes()})
    if idle and not (op.body or op.is_annotation or is_view(op)):
        return replace(op, notes={**op.notes, **IDLE})
    return replace(op, body=body) if body else op
