"""A lowered execution trace with the times, streams and threads that a Kineto trace measured."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from irgraph.capture.execution_trace import lower_execution_trace, read_execution_trace
from irgraph.capture.kineto.host import ancestors
from irgraph.capture.kineto.ingest import read_kineto
from irgraph.capture.kineto.trace import KinetoTrace
from irgraph.capture.kineto.tree import Tree, build_tree
from irgraph.capture.link import Join, join
from irgraph.capture.result import Capture
from irgraph.ir.graph import Graph, Stream
from irgraph.ir.op import Note, Op
from irgraph.ir.quantity import Quantity

_NINETY = 1.645
"""Standard deviations in half of a 90 % interval."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured of one op.

    Attributes:
        times: microseconds of device work in each iteration that was recorded.
        kernels: device events in the last of them.
        stream: the stream that most of it ran on.
    """

    times: tuple[float, ...]
    kernels: int
    stream: int

    @classmethod
    def of(cls, trace: KinetoTrace, calls: Sequence[Sequence[int]]) -> Measured:
        """Return what the device events of each call of an op say, the last call last."""
        duration, stream = trace.columns["duration"], trace.columns["stream"]
        times = tuple(float(duration[list(rows)].sum()) / 1000 for rows in calls)
        streams: Counter[int] = Counter()
        for row in calls[-1]:
            streams[int(stream[row])] += int(duration[row]) + 1
        return cls(times, len(calls[-1]), streams.most_common(1)[0][0])

    def notes(self) -> dict[str, Note]:
        """Return the notes of an op: median time with its interval, and provenance."""
        spread = _NINETY * float(np.std(self.times)) if len(self.times) > 1 else 0.0
        time = Quantity(round(float(np.median(self.times)), 3), "us", round(spread, 3))
        return {"time": time, "by": "measured", "kernels": self.kernels}


def lower_with_times(
    recording: str, kineto: str, *, name: str | None = None, step: int | None = None
) -> tuple[Capture, Join]:
    """Lower an execution trace with measured times from the Kineto trace that belongs to it.

    Every op that launched device work gets notes: its time, ``by = measured``, its kernels; and
    the stream it ran on, where that is not the one with most of the work.

    Raises:
        IrgraphError: a file cannot be used, or they do not belong together (exit code 4).
    """
    trace = read_execution_trace(recording)
    tree = build_tree(read_kineto(kineto))
    joined = join(trace, tree)
    captured = lower_execution_trace(trace, name=name, step=step)
    graph, missed = with_times(captured.graph, tree, joined)
    notes = [*captured.notes, *joined.lines()]
    if missed:
        notes.append(f"{missed} device events of the joined step belong to no op of the model")
    health = tree.trace.health.repairs()
    return replace(captured, graph=graph, notes=tuple(notes), health=health), joined


def with_times(graph: Graph, tree: Tree, joined: Join) -> tuple[Graph, int]:
    """Return a graph with measured notes, and how many device events found no op."""
    nodes = {int(number) for op in graph.walk() if (number := _node(op)).isdecimal()}
    measured, missed = _measure(tree, joined, nodes)
    return annotated(graph, measured), missed


def annotated(graph: Graph, measured: Mapping[int, Measured]) -> Graph:
    """Return a graph with what was measured, by the number in the origin of its ops."""
    usual = Counter(m.stream for m in measured.values()).most_common(1)
    default = usual[0][0] if usual else 0
    ops = tuple(_noted(op, measured, default) for op in graph.ops)
    used = sorted({m.stream for m in measured.values()} - {default})
    streams = tuple(Stream(f"stream{number}", graph.device) for number in used)
    return replace(graph, ops=ops, streams=(*graph.streams, *streams))


def _node(op: Op) -> str:
    """Return the number of the recorded call that an op was lowered from."""
    return op.origin.rpartition("#")[2]


def _noted(op: Op, measured: Mapping[int, Measured], default: int) -> Op:
    body = tuple(_noted(child, measured, default) for child in op.body)
    number = _node(op)
    found = measured.get(int(number)) if number.isdecimal() else None
    if found is None:
        return replace(op, body=body) if body else op
    stream = op.stream if found.stream == default else f"stream{found.stream}"
    return replace(op, body=body, stream=stream, notes={**op.notes, **found.notes()})


def _measure(tree: Tree, joined: Join, nodes: set[int]) -> tuple[dict[int, Measured], int]:
    """Return what was measured by node, and device events of the joined stretch without one."""
    trace = tree.trace
    owner = {row: node for node, rows in joined.every.items() for row in rows if node in nodes}
    owner.update({row: node for node, row in joined.rows.items() if node in nodes})
    found: dict[int, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    missed = 0
    for row in np.flatnonzero(trace.on_device & (tree.launch >= 0)).tolist():
        launch = int(tree.launch[row])
        call = next((up for up in ancestors(tree, launch) if up in owner), -1)
        if call >= 0:
            found[owner[call]][call].append(row)
        elif joined.window[0] <= trace.columns["start"][launch] < joined.window[1]:
            missed += 1
    return {node: Measured.of(trace, list(calls.values())) for node, calls in found.items()}, missed
