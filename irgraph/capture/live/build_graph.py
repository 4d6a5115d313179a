"""Records a step, and lowers the recording to a model."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from irgraph.capture.common.assemble import Assembler
from irgraph.capture.common.forest import main_thread, orphan_notes, roots
from irgraph.capture.common.identity import Identities
from irgraph.capture.common.lowering import Lowering, double_backward_setting, thread_names
from irgraph.capture.common.nodes import RecordedNode
from irgraph.capture.common.resolve import Resolver
from irgraph.capture.common.result import Capture, require_valid
from irgraph.capture.common.streams import order_backward
from irgraph.capture.common.torch_object import Torch
from irgraph.capture.emulate.accelerator import CPU_NOTES, as_accelerator
from irgraph.capture.emulate.cards.card import EmulatedCard
from irgraph.capture.emulate.communication import current_communication
from irgraph.capture.emulate.forms import accelerator_forms
from irgraph.capture.emulate.known_values import KnownValues
from irgraph.capture.emulate.processes import rebuild_buckets
from irgraph.capture.emulate.streams import mark_current
from irgraph.capture.emulate.switches import deterministic_note, float32_settings
from irgraph.capture.emulate.unknown_values.assumptions import Assumptions
from irgraph.capture.emulate.unknown_values.decisions import is_decision
from irgraph.capture.execution_trace.reader import read_execution_trace
from irgraph.capture.live.device_calls import recorder
from irgraph.capture.live.device_calls.executed import answered_calls, remove_unexecuted
from irgraph.capture.live.device_calls.literals import with_literals
from irgraph.capture.live.device_calls.loading import replace_loading
from irgraph.capture.live.device_calls.marks import join, remove_marks, unwrap_calls
from irgraph.capture.live.device_calls.pinned import pinned_memory
from irgraph.capture.live.device_calls.reallocations import (
    define_reallocated,
    recorded_reallocations,
)
from irgraph.capture.live.device_calls.swaps import recorded_swaps
from irgraph.capture.live.discover import program_forms
from irgraph.capture.live.module_ranges import hints_of, module_ranges
from irgraph.capture.live.torch_warnings import without_stderr
from irgraph.diagnostics import SourceSpan, fail
from irgraph.ir.effects import written_by
from irgraph.ir.graph import DEFAULT_SHEET, Device, Graph, Stream
from irgraph.ir.loading import UNTIMED, Loading
from irgraph.ir.measured_times import EMULATED_CARD
from irgraph.ir.op import Value
from irgraph.ir.ranks import GROUPS, RANK, RANKS, groups_text
from irgraph.ir.rarer_steps import INCLUDED, OMITTED
from irgraph.ir.step_notes import with_step_notes
from irgraph.ir.tensor import Tensor

NOT_MOVED = (
    "nothing in the step is on the accelerator: move the model and its data to the device that "
    "the function is given, or to cuda within irgraph.capturing()"
)


class CaptureSpec(Struct, frozen=True):
    """The properties of a capture: see ``capture``."""

    name: str
    device: str
    dims: dict[str, int]
    source: str
    pinned: bool
    assumptions: Assumptions = Assumptions()
    card: EmulatedCard | None = None
    loading: Loading | None = None
    symbolic: bool = True


OPTIMIZER_STEP = "Optimizer.step#"
"""Prefix of torch's labels of an optimizer's steps."""

NO_UPDATE = (
    "the optimizer's step updates no parameter: it may have ended because of a value that meta has "
    "not, as LBFGS does; capture with --device cpu"
)


@dataclass(slots=True)
class StepRecording:
    """A recorded step.

    Attributes:
        recording: the dispatch mode's recording.
        nodes: the calls of the execution trace, once the recording has ended.
        float32: the program's settings of float32 rounding at the end.
        notes: notes on the program's other settings at the end.
    """

    recording: recorder.Recording = field(default_factory=recorder.Recording)
    nodes: list[RecordedNode] = field(default_factory=list)
    float32: dict[str, Value] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


@contextlib.contextmanager
def record_step(
    spec: CaptureSpec, model: Torch, known_values: KnownValues, names: list[str] | None = None
) -> Iterator[StepRecording]:
    """Record the calls within the context, and append the names of those on the device."""
    step_recording = StepRecording()
    known_values.unknown.begin_step()
    with recorder.dispatch_mode(None, {}, known_values):
        rebuild_buckets()
    hints = hints_of(model)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "live.json"
        mode = recorder.dispatch_mode(step_recording.recording, hints, known_values, names)
        reallocations = recorded_reallocations(step_recording.recording, known_values)
        with (
            _observe(file, step_recording),
            module_ranges(model),
            _collective_recording(),
            mode,
            reallocations,
            recorded_swaps(step_recording.recording),
        ):
            if spec.device == "meta":
                mark_current()
            yield step_recording
        step_recording.nodes = read_execution_trace(file, spec.name).nodes


@contextlib.contextmanager
def _observe(file: Path, step_recording: StepRecording) -> Iterator[None]:
    """Write an execution trace of the context, and store the settings at its end."""
    from torch.profiler import ExecutionTraceObserver

    with without_stderr():
        observer = ExecutionTraceObserver().register_callback(str(file))
        observer.start()
    try:
        yield
    finally:
        step_recording.float32, step_recording.notes = float32_settings(), deterministic_note()
        with without_stderr():
            observer.stop()
            observer.unregister_callback()


def _collective_recording() -> contextlib.AbstractContextManager[None]:
    comm = current_communication.get()
    return comm.record_collectives() if comm is not None else contextlib.nullcontext()


def lower_recording(
    step_recording: StepRecording, spec: CaptureSpec, model: Torch, step: object
) -> Capture:
    """Return the model of a recorded step; ``step`` is the object that reaches compiled parts."""
    device, nodes, recording = spec.device, step_recording.nodes, step_recording.recording
    identities = Identities(("meta",) if device == "meta" else ())
    identities.devices[device] = "gpu0"
    resolver = Resolver(identities)
    records = join(nodes, recording)
    answered_ids = answered_calls(nodes, records)
    forest = remove_marks(roots(nodes))
    forest = unwrap_calls(forest, records) if recording.wrapping else forest
    forest = remove_unexecuted(forest, records, answered_ids)
    loading_notes = [UNTIMED] if replace_loading(forest) and spec.loading is None else []
    if not forest:
        source = spec.source
        raise fail(f"{spec.name} called no operator", SourceSpan(source) if source else None)
    threads = thread_names(nodes, main_thread(nodes))
    lowering = Lowering("live", resolver, records, threads, renumber=True)
    lowering.wrapping = recording.wrapping
    calls = lowering.calls(forest)
    define_reallocated(calls, recording.reallocations, identities)
    change_notes = as_accelerator(calls, identities)
    change_notes += with_literals(calls, recording.literals, identities)
    calls = order_backward(calls, lowering.streams)
    assembler = Assembler(calls)
    settings: dict[str, Value] = {"source": "live", "captured_on": device}
    sheet = DEFAULT_SHEET
    if spec.card is not None:
        settings[EMULATED_CARD] = sheet = spec.card.sheet
    settings |= {
        "torch": _torch_version(),
        **live_ranks(),
        **double_backward_setting(lowering.differentiates_gradients),
    }
    settings |= step_recording.float32
    is_pinned, notes = pinned_memory(recording.copies, spec.pinned)
    returned, unknown_notes = _returned_tensors(recording, identities, assembler)
    recording.forget()
    graph = Graph(
        spec.name,
        dims=spec.dims,
        settings=settings | ({"pinned": True} if is_pinned else {}),
        schemas=tuple(lowering.schemas),
        devices=(Device("gpu0", sheet),),
        streams=tuple(Stream(name, "gpu0") for name in lowering.streams.names.values() if name),
        tensors=assembler.tensors,
        ops=assembler.ops,
        returned=returned,
    )
    notes += [
        *step_recording.notes,
        *loading_notes,
        *unknown_notes,
        *dict.fromkeys(recording.repaired),
        *change_notes,
    ]
    if device == "meta" and {"cpu"} == {t.device for t in graph.by_name.values()}:
        notes.append(NOT_MOVED)
    notes += [*(CPU_NOTES if device == "cpu" else ()), *resolver.notes(), *orphan_notes(nodes)]
    notes += _missing_update_note(graph, recording.repaired)
    differing = (*accelerator_forms(graph), *program_forms(step, model))
    return Capture(graph, tuple(notes), differing, tuple(lowering.links))


def _missing_update_note(graph: Graph, repaired: Sequence[str]) -> list[str]:
    """Return a note if an optimizer read substitute values and then updated no parameter."""
    reads_values = any(is_decision(line) or "has no value" in line for line in repaired)
    if not reads_values or not any(op.name.startswith(OPTIMIZER_STEP) for op in graph.walk()):
        return []
    param_buffers = {
        declared.tensor.buffer for declared in graph.tensors if declared.role == "param"
    }
    updated = any(t.buffer in param_buffers for leaf in graph.leaves() for t in written_by(leaf))
    return [] if updated else [NO_UPDATE]


def with_notes(captured: Capture, source: str, notes: Sequence[str]) -> Capture:
    """Return a capture whose graph is valid, with notes before its own."""
    graph = require_valid(captured.graph, source, program=True)
    rarer = tuple(require_valid(step, source, program=True) for step in graph.rarer)
    all_notes = (*notes, *captured.notes)
    # without these, a prediction would pass for the whole program
    lasting = [n for n in all_notes if is_decision(n) or n.endswith((OMITTED, INCLUDED))]
    return replace(
        captured, graph=with_step_notes(replace(graph, rarer=rarer), lasting), notes=all_notes
    )


def import_torch() -> None:
    """Silence torch's log, and raise ``IrgraphError`` (exit code 2) if torch is missing."""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # the observer warns when it starts
    if find_spec("torch") is None:
        raise fail("live capture needs PyTorch", hint="pip install irgraph[torch]", exit_code=2)


def _torch_version() -> str:
    import torch

    return str(torch.__version__)


def live_ranks() -> Mapping[str, Value]:
    """Return the settings of ranks if this process is one of several (``torch.distributed``)."""
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        return {}
    count, comm = dist.get_world_size(), current_communication.get()
    if comm is None:
        return {RANKS: count}
    groups = {name: ranks for name, ranks in comm.groups.items() if name != "world"}
    local = int(os.environ.get("LOCAL_WORLD_SIZE") or count)
    settings: dict[str, Value] = {RANKS: count if local >= count else f"{count // local}x{local}"}
    settings[RANK] = dist.get_rank()
    return settings | ({GROUPS: groups_text(groups)} if groups else {})


def _returned_tensors(
    recording: recorder.Recording, identities: Identities, assembler: Assembler
) -> tuple[tuple[Tensor, ...] | None, list[str]]:
    """Return the result tensors of a step, and a note if one is unknown.

    Tensors that no call of the step accessed are omitted: they are unchanged.
    """
    earlier_buffers = {declared.tensor.buffer for declared in assembler.tensors}
    result: list[Tensor] = []
    for exact in filter(identities.has_storage_of, recording.returned):
        tensor = assembler.tensor_of(identities.find_exact(exact))
        if tensor is None:
            shape = list(exact.shape)
            return None, [f"what the step returns is unknown: no call made its tensor {shape}"]
        result.append(tensor)
    for exact in filter(identities.has_storage_of, recording.reachable):
        tensor = assembler.tensor_of(identities.find_exact(exact))
        if tensor is not None and tensor not in result and tensor.buffer not in earlier_buffers:
            result.append(tensor)
    return tuple(result), []
