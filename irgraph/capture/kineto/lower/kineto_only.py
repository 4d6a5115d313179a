"""Lowers a Kineto trace with operand shapes to ops with their streams and measured times."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile, zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from irgraph.capture.common.assemble import Assembler
from irgraph.capture.common.calls import CapturedCall, Item, fill, handles_in
from irgraph.capture.common.identity import Handle
from irgraph.capture.common.interrupted import EVALUATE
from irgraph.capture.common.lowering import autograd_name, label
from irgraph.capture.common.result import Capture, require_valid
from irgraph.capture.common.source import Source
from irgraph.capture.emulate.accelerator import CPU_NOTES
from irgraph.capture.kineto.events.host import ancestors
from irgraph.capture.kineto.events.steps import TraceStep
from irgraph.capture.kineto.events.tree import PHASES, Tree, build_tree
from irgraph.capture.kineto.lower.measured import (
    NO_DEVICE,
    OpMeasurement,
    StepMeasurements,
    add_measurements,
    launched_work,
    unmeasured_calls,
    with_card,
)
from irgraph.capture.kineto.reading.ingest import read_kineto
from irgraph.capture.kineto.reading.trace import (
    EventKind,
    Integers,
    KinetoTrace,
    operands,
    recorded_values,
)
from irgraph.diagnostics import SourceSpan, fail
from irgraph.ir.dtypes import FROM_CPP
from irgraph.ir.graph import OPERANDS, Device, Graph
from irgraph.ir.schema import Schema, schemas_of
from irgraph.ops.kinds.elements import is_tagged
from irgraph.ops.shapes import broadcast

_STEP = "ProfilerStep#"
_LIST = "TensorList"
_MODULES = ("nn.Module: ", "module::", "irgraph.module#")

UNKNOWN = (
    "a Kineto trace does not tell tensors apart: all operands share one buffer that every op may "
    "write; results are unknown, and attributes unless the trace records them. Measured times, "
    "streams and launches can be read; ops cannot be moved, fused, resized or run, and models "
    "price them roughly. An execution trace of the same step (lower it with --kineto) gives the "
    "rest"
)


def lower_kineto(
    path: str | Path | Source,
    *,
    name: str | None = None,
    step: int | None = None,
    sheet: str = "v100",
) -> Capture:
    """Lower one step of a Kineto trace: ops with operand shapes, streams and measured times.

    Args:
        path: the trace.
        name: the graph's name; by default the file's name.
        step: number of the step; by default the last complete one that has operators and device
            work, or else only operators.
        sheet: name of the device sheet of the trace's devices.

    Raises:
        IrgraphError: the file cannot be used, has no such step, no operators in it or no operand
            shapes (exit code 4).
    """
    tree = build_tree(read_kineto(path))
    trace, source = tree.trace, SourceSpan(str(path))
    operators = trace.columns["kind"] == EventKind.OP
    if not (trace.columns["shape"][operators] > 0).any():
        raise fail(
            "this Kineto trace has no operand shapes, so no model can be made from it alone",
            source,
            hint="record with record_shapes=True, or lower the execution trace with --kineto",
        )
    chosen = _choose_step(tree, step, str(path))
    lowering = _Lowering(tree, Path(path).name, "gpu0")
    assembler = Assembler(lowering.calls(_roots(tree, chosen)))
    graph = Graph(
        name or Path(path).name.removesuffix(".gz").removesuffix(".json"),
        settings={"source": Path(path).name, OPERANDS: "by shape"},
        devices=(Device("gpu0", sheet),),
        tensors=assembler.tensors,
        ops=assembler.ops,
    )
    notes = [_step_note(tree, chosen, step), UNKNOWN]
    if not trace.on_device.any():
        notes += [NO_DEVICE, CPU_NOTES[0]]
    measurements, unowned = _step_measurements(tree, lowering.rows, chosen)
    notes += [f"{count} {description}" for description, count in sorted(lowering.counts.items())]
    if unowned:
        notes.append(f"{unowned} device events of the step belong to no op of the model")
    graph = require_valid(with_card(add_measurements(graph, measurements), tree), str(path))
    return Capture(graph, tuple(notes), health=trace.health.repairs())


def _choose_step(tree: Tree, number: int | None, source: str) -> TraceStep:
    """Return the requested step, or the last complete one with operators, preferably with work."""
    chosen = [step for step in tree.steps if step.number == number]
    if number is None:
        working = np.unique(tree.step[tree.trace.on_device])
        idle = [index not in working for index in range(len(tree.steps))]
        order = sorted(zip(idle, tree.steps, strict=True), key=lambda pair: (pair[0], -pair[1].end))
        chosen = [step for _, step in order if step.complete]
    match = next((step for step in chosen if _has_operators(tree, step)), None)
    if match is not None:
        return match
    available = ", ".join(str(step.number) for step in tree.steps) or "none"
    if number is not None and not chosen:
        raise fail(f"no step {number}: the trace has steps {available}", SourceSpan(source))
    which = "no complete step" if number is None else f"step {number}"
    verb = "has an operator" if number is None else "has no operator"
    raise fail(
        f"{which} {verb} on the thread that runs the steps, so there is no model to make: the "
        f"trace has steps {available}",
        SourceSpan(source),
        hint="call the model and prof.step() in one thread, or lower the step's execution trace",
    )


def _has_operators(tree: Tree, step: TraceStep) -> bool:
    return bool((tree.trace.columns["kind"][_step_rows(tree, step)] == EventKind.OP).any())


def _step_note(tree: Tree, chosen: TraceStep, number: int | None) -> str:
    reason = "as asked" if number is not None else "the last complete one"
    if number is None and any(s.complete and s.start > chosen.start for s in tree.steps):
        work = " and device work" if tree.trace.on_device.any() else ""
        reason += f" with operators{work}"
    numbers = ", ".join(str(step.number) for step in tree.steps)
    return f"took step {chosen.number} of {numbers}, marked by {chosen.mark}: {reason}"


def _step_rows(tree: Tree, step: TraceStep) -> Integers:
    """Return the operators and annotations of a step on the program's thread and autograd's."""
    trace = tree.trace
    kind, start = trace.columns["kind"], trace.columns["start"]
    inside = (
        (start >= step.start)
        & (start < step.end)
        & np.isin(kind, (EventKind.OP, EventKind.ANNOTATION))
    )
    rows: Integers = np.flatnonzero(inside)
    return rows[np.isin(trace.columns["thread"][rows], [tree.main, *tree.backward])]


def _roots(tree: Tree, step: TraceStep) -> list[int]:
    """Return the outermost host events of a step on the program's thread and autograd's."""
    rows = _step_rows(tree, step).tolist()
    candidates = {row for row in rows if not tree.trace.text(row).startswith(_STEP)}
    return [r for r in rows if r in candidates and not candidates.intersection(ancestors(tree, r))]


COPIES = frozenset(("clone", "_to_copy", "contiguous", "empty_like", "zeros_like", "ones_like"))
"""Ops that are not pointwise whose result has the shape of their operand."""


@dataclass(slots=True)
class _Lowering:
    """Converts a tree of events to calls; ``rows`` has the number of each call by its event."""

    tree: Tree
    source: str
    device: str
    rows: dict[int, int] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    below: dict[int, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.below = self.tree.children()

    def calls(self, rows: Sequence[int]) -> list[CapturedCall]:
        """Return the calls that events represent, in order of their starts."""
        return [call for row in rows for call in self._event(row)]

    def _event(self, row: int) -> list[CapturedCall]:
        trace = self.tree.trace
        kind, name = trace.columns["kind"][row], trace.text(row)
        inside = self.below.get(row, [])
        if kind not in (EventKind.OP, EventKind.ANNOTATION) or name.startswith((*_MODULES, _STEP)):
            return self.calls(inside)
        if name.startswith(EVALUATE):
            return self._autograd(row, inside)
        if kind == EventKind.ANNOTATION:
            call = self._start(row, label(name))
            call.body = self.calls(inside)
        elif "::" in name and not name.startswith("torch::autograd::"):
            call = self._operator(row, name, inside)
        elif self.tree.is_backward_thread(row):
            call = self._start(row, autograd_name(name))
            call.body = self.calls(inside)
        else:
            call = self._start(row, label(name))
            call.body = self.calls(inside)
        return [call]

    def _autograd(self, row: int, inside: Sequence[int]) -> list[CapturedCall]:
        """Collapse the engine's wrapper and the autograd node in it into one scope."""
        call = self._start(row, autograd_name(self.tree.trace.text(row)))
        for child in inside:
            calls = self._event(child)
            same = len(calls) == 1 and calls[0].name == call.name
            call.body += calls[0].body if same else calls
            if same:
                self.rows[child] = self.rows[row]
        return [call]

    def _operator(self, row: int, name: str, inside: Sequence[int]) -> CapturedCall:
        call = self._start(row, name.replace("::", "."))
        schemas = schemas_of(call.name)
        composite = any(schema.composite for schema in schemas)
        call.body = self.calls(inside) if composite or not schemas else []
        self._set_arguments(row, call, schemas)
        if not call.body:
            call.results = self._results(call)
            call.written = list(handles_in([*call.operands, *call.attributes.values()]))
        return call

    def _set_arguments(self, row: int, call: CapturedCall, schemas: Sequence[Schema]) -> None:
        """Set the operands of a call, and the attributes that the trace records.

        Without recorded values, or without an overload that fits them, operands are the leading
        tensors.
        """
        trace = self.tree.trace
        tensors = list(self._tensors(row))
        recorded = recorded_values(trace.concretes[int(trace.columns["concrete"][row])])
        values = [v if t is None else t for t, v in zip_longest(tensors, recorded)]
        schema = next((s for s in schemas if _fits(s, values)), None) if recorded else None
        if schema is None:
            call.operands = list(takewhile(lambda value: value is not None, tensors))
            return
        fill(call, schema, values, lambda _: self.device)
        for argument, value in zip(schema.arguments, values, strict=True):
            # such a value is of a kind that the profiler does not record
            if value is None and not argument.type.endswith("?"):
                call.attributes.pop(argument.name, None)
                self.counts["arguments whose value is not recorded: left out"] += 1

    def _results(self, call: CapturedCall) -> list[Item]:
        """Return the results of a pointwise op or a copy, which follow from its operands.

        Results of other ops depend on arguments that a Kineto trace does not record. In-place ops
        have no result here, as they return the operand that they wrote.
        """
        base = call.name.rpartition(".")[2]
        is_supported = base in COPIES or is_tagged(call.name)
        tensors = list(handles_in(call.operands))
        shape = broadcast([tensor.shape for tensor in tensors])
        if not is_supported or base.endswith("_") or shape is None:
            return []
        self.counts["results of pointwise ops and copies, taken to be of their operand's type"] += 1
        buffer = len(self.rows) + 1  # one for each: operands share the first
        return [Handle(tensors[0].dtype, shape, None, buffer, 0, self.device)]

    def _start(self, row: int, name: str) -> CapturedCall:
        tree = self.tree
        number = len(self.rows) + 1
        call = CapturedCall(name, origin=f"{self.source}#{number}")
        self.rows[row] = number
        call.thread = "backward" if tree.is_backward_thread(row) else "main"
        call.phase = PHASES[int(tree.phase[row])]
        call.module = tree.modules[int(tree.module[row])]
        return call

    def _tensors(self, row: int) -> Iterator[Item]:
        """Yield a call's arguments that are tensors, as new ones, and ``None`` for all others.

        The identity of tensors is not recorded.
        """
        for shape, kind in _arguments(self.tree.trace, row):
            if kind == _LIST and shape and all(isinstance(part, list) for part in shape):
                self.counts["lists of tensors, whose element type is not recorded: f32"] += 1
                yield tuple(self._tensor(part, "float") for part in shape)
            else:
                yield self._tensor(shape, kind) if kind in FROM_CPP else None

    def _tensor(self, shape: Sequence[int], kind: str) -> Handle:
        sizes = tuple(size if isinstance(size, int) else 1 for size in shape)
        return Handle(FROM_CPP[kind], sizes, None, 1, 0, self.device, hint=("state", ""))


def _arguments(trace: KinetoTrace, row: int) -> Iterator[tuple[list[Any], str]]:
    dims, types = trace.shapes[int(trace.columns["shape"][row])]
    pairs = zip(*(operands(dims, types) or ((), ())), strict=False)
    yield from ((s, k) if isinstance(s, list) else ([], "") for s, k in pairs)


def _fits(schema: Schema, values: Sequence[Item]) -> bool:
    """Return whether an overload has as many arguments, and tensors at the same positions."""
    return len(schema.arguments) == len(values) and all(
        argument.is_tensor == bool(list(handles_in(value)))
        for argument, value in zip(schema.arguments, values, strict=True)
        if value is not None
    )


def _step_measurements(
    tree: Tree, rows: dict[int, int], step: TraceStep
) -> tuple[StepMeasurements, int]:
    """Return the measurements of the calls, and the number of the step's events without a call."""
    trace = tree.trace
    start = trace.columns["start"]
    rows_by_number: dict[int, list[int]] = defaultdict(list)
    unowned = 0
    for row, launch, call in launched_work(tree, rows):
        if not step.start <= start[launch] < step.end:
            continue
        if call < 0:
            unowned += 1
        else:
            rows_by_number[rows[call]].append(row)
    measurements = {
        number: OpMeasurement.from_calls(trace, [events])
        for number, events in rows_by_number.items()
    }
    return StepMeasurements(measurements, set(rows.values()), unmeasured_calls(tree, rows)), unowned
