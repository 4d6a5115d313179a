"""Live capture: run a PyTorch step once, on the meta device or for real, and keep its calls."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from irgraph.capture.common.assemble import Assembler
from irgraph.capture.common.forest import lost, main_thread, roots
from irgraph.capture.common.identity import Identities
from irgraph.capture.common.lowering import Lowering, thread_names, twice
from irgraph.capture.common.nodes import Node
from irgraph.capture.common.resolve import Resolver
from irgraph.capture.common.result import Capture, sound
from irgraph.capture.common.streams import order_backward
from irgraph.capture.common.symbolic import other_sizes, with_symbolic_batch
from irgraph.capture.emulate.accelerator import CPU_NOTES, as_accelerator
from irgraph.capture.emulate.fallbacks import Torch
from irgraph.capture.emulate.forms import accelerator_forms
from irgraph.capture.emulate.known import Known
from irgraph.capture.emulate.patches import standing_in
from irgraph.capture.execution_trace.reader import read_execution_trace
from irgraph.capture.live import recorder
from irgraph.capture.live.discover import model_of, program_forms
from irgraph.capture.live.literals import with_literals
from irgraph.capture.live.marks import join, unmarked, without_loading
from irgraph.capture.live.module import (
    ModuleStep,
    batch_of,
    of_batch,
    refuse_without_inputs,
)
from irgraph.capture.live.pinned import pinned_memory
from irgraph.capture.live.returned import kept_tensors, returned_tensors
from irgraph.capture.live.target import load_target, refuse_unrun, user_error
from irgraph.capture.live.ties import lost_ties
from irgraph.capture.live.vmap import without_vmap
from irgraph.capture.live.warned import warnings_as_notes, without_stderr
from irgraph.diagnostics import Place, fail
from irgraph.ir.graph import Graph, Stream
from irgraph.ir.op import Value
from irgraph.ir.tensor import Tensor

NOT_MOVED = (
    "nothing of the step lies on the accelerator: move the model and its data to the device that "
    "the function is given"
)


def capture(
    step: Callable[..., object],
    example_inputs: Torch = None,
    *,
    loss: Callable[[Torch], Torch] | None = None,
    optimizer: Callable[[Torch], Torch] | None = None,
    name: str = "step",
    device: str = "meta",
    model: Torch = None,
    dims: Mapping[str, int] | None = None,
    source: str = "",
    pinned: bool = False,
) -> Capture:
    """Run a step twice, once to warm up, and return its calls as a graph.

    Args:
        step: makes one training or inference step; takes nothing. With ``example_inputs`` a module,
            of which a copy is moved to the device.
        example_inputs: what a module is called with, on the host: a tensor, several, or several by
            name. The size of their first axes, if it is one, becomes the dimension ``B``.
        loss: from what the module returns to the loss, whose gradients are then computed.
        optimizer: makes the optimizer of the module's parameters, such as ``torch.optim.AdamW``.
        name: the graph's name.
        device: where the step's tensors lie. ``meta`` stands for the accelerator: nothing is
            computed, and tensors on the CPU are host tensors.
        model: names parameters and modules; without it ``step.model`` is used, or else the
            modules that the step reaches.
        dims: symbolic sizes to declare.
        source: the file the step comes from; errors name their line in it.
        pinned: whether host tensors lie in pinned memory although the program does not pin them.

    Raises:
        IrgraphError: the step raised, or torch is missing; a module without inputs (exit code 2);
            what it gives breaks a rule of the IR, which is a defect (exit code 70).
    """
    _import_torch()
    if example_inputs is None:
        refuse_without_inputs(step, loss, optimizer)
    words = _Words(name, device, dict(dims or {}), source, pinned)
    notes: dict[str, None] = {}
    with warnings_as_notes(notes), standing_in(device) as stand_in:
        if example_inputs is None:
            ties = lost_ties(model if model is not None else model_of(step))
            notes.update(dict.fromkeys(ties))
            captured = _capture(step, model, words)
        else:

            def at(size: int) -> Capture:
                given = of_batch(example_inputs, size) if size else example_inputs
                return _capture(ModuleStep(step, given, loss, optimizer, device), None, words)

            batch = batch_of(example_inputs)
            captured = at(batch)
            if batch:
                captured = with_symbolic_batch(captured, batch, at, other_sizes(batch))
    return _with_notes(captured, words.source, (*notes, *stand_in.notes))


def _capture(step: Callable[[], object], model: Torch, words: _Words) -> Capture:
    """Capture a step while the device already stands for an accelerator."""
    device = words.device
    model = model if model is not None else model_of(step)
    known = Known()
    with recorder.dispatch_mode(None, {}, known):
        _call(step, words, "first running")
    nodes, recording = _record(step, words, model, known)
    identities = Identities(("meta",) if device == "meta" else ())
    identities.devices[device] = "gpu0"
    resolver = Resolver(identities)
    records = join(nodes, recording)
    forest = unmarked(roots(nodes))
    loading = without_loading(forest)
    if not forest:
        source = words.source
        raise fail(f"{words.name} called no operator", Place(source) if source else None)
    threads = thread_names(nodes, main_thread(nodes))
    lowering = Lowering("live", resolver, records, threads, renumber=True)
    calls = lowering.calls(forest)
    changes = as_accelerator(calls, identities)
    changes += with_literals(calls, recording.literals, identities)
    calls = order_backward(calls, lowering.streams)
    assembler = Assembler(calls)
    settings: dict[str, Value] = {"source": "live", "captured_on": device}
    settings |= {"torch": _torch_version(), **live_ranks(), **twice(lowering.twice)}
    is_pinned, notes = pinned_memory(recording.copies, words.pinned)
    returned, unknown = _returned(recording, identities, assembler)
    graph = Graph(
        words.name,
        dims=words.dims,
        settings=settings | ({"pinned": True} if is_pinned else {}),
        schemas=tuple(lowering.schemas),
        streams=tuple(Stream(name, "gpu0") for name in lowering.streams.names.values() if name),
        tensors=assembler.tensors,
        ops=assembler.ops,
        returned=returned,
    )
    notes += [*loading, *unknown, *dict.fromkeys(recording.repaired), *changes]
    if device == "meta" and {"cpu"} == {t.device for t in graph.by_name.values()}:
        notes.append(NOT_MOVED)
    notes += [*(CPU_NOTES if device == "cpu" else ()), *resolver.notes(), *lost(nodes)]
    differing = (*accelerator_forms(graph), *program_forms(step, model))
    return Capture(graph, tuple(notes), differing, tuple(lowering.links))


class _Words(Struct, frozen=True):
    """What is said about a capture: see ``capture``."""

    name: str
    device: str
    dims: dict[str, int]
    source: str
    pinned: bool


def capture_file(
    target: str,
    *,
    batch: int,
    device: str = "meta",
    symbolic: bool = True,
    batches: Sequence[int] = (),
    pinned: bool = False,
    doing: Callable[[str], None] = lambda _: None,
) -> Capture:
    """Capture the step that ``FILE.py:NAME`` makes, with its batch size as the dimension ``B``.

    Args:
        target: names a function of (batch, device) that returns a step; literal options may
            follow its name, as in ``dlrm.py:default(lookups=10)``.
        batch: batch size of the captured step.
        device: ``meta``, or ``cpu`` to really run it.
        symbolic: whether to capture at other batch sizes too, to find what depends on it.
        batches: those other sizes; chosen if empty.
        pinned: whether host tensors lie in pinned memory although the program does not pin them.
        doing: called with a description of the work in progress.

    Raises:
        IrgraphError: the target cannot be found or run; its own errors name their line.
    """
    _import_torch()
    notes: dict[str, None] = {}
    with warnings_as_notes(notes), standing_in(device) as stand_in:
        found = load_target(target)
        name = f"{Path(found.path).stem}_{found.name}"
        words = _Words(name, device, {}, found.path, pinned)

        def at(size: int) -> Capture:
            doing(f"capturing {found.name} at batch size {size}")
            return _capture(found.step(size, device), None, words)

        captured = at(batch)
        if symbolic:
            captured = with_symbolic_batch(captured, batch, at, batches or other_sizes(batch))
    return _with_notes(captured, found.path, (*notes, *stand_in.notes))


def _with_notes(captured: Capture, source: str, notes: Sequence[str]) -> Capture:
    """Return a capture that is sound, with notes before its own."""
    graph = sound(captured.graph, source, program=True)
    return replace(captured, graph=graph, notes=(*notes, *captured.notes))


def _import_torch() -> None:
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # the observer warns that it observes
    if find_spec("torch") is None:
        raise fail("live capture needs PyTorch", hint="pip install irgraph[torch]", exit_code=2)


def _torch_version() -> str:
    import torch

    return str(torch.__version__)


def live_ranks() -> Mapping[str, int]:
    """Return the setting ``ranks`` where this process is one of several (``torch.distributed``)."""
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        return {}
    return {"ranks": dist.get_world_size()}


def _record(
    step: Callable[[], object], words: _Words, model: Torch, known: Known
) -> tuple[list[Node], recorder.Recording]:
    from torch.profiler import ExecutionTraceObserver

    recording = recorder.Recording()
    hints = recorder.hints_of(model)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "live.json"
        with without_stderr():
            observer = ExecutionTraceObserver().register_callback(str(file))
            observer.start()
        try:
            with recorder.module_ranges(model), recorder.dispatch_mode(recording, hints, known):
                made = _call(step, words, "capturing")
            recording.note_results(returned_tensors(made), kept_tensors(step, model))
        finally:
            with without_stderr():
                observer.stop()
                observer.unregister_callback()
        return read_execution_trace(file, words.name).nodes, recording


def _call(step: Callable[[], object], words: _Words, doing: str) -> object:
    try:
        with without_vmap():
            made = step()
    except (Exception, SystemExit) as error:
        message = f"{words.name} failed while {doing} it"
        raise user_error(message, error, words.source) from error
    refuse_unrun(made, f"the step of {words.name}", words.source)
    return made


def _returned(
    recording: recorder.Recording, identities: Identities, assembler: Assembler
) -> tuple[tuple[Tensor, ...] | None, list[str]]:
    """Return the tensors that a step leaves for its caller, and a note where one is unknown.

    What no call of the step touched is left out: nothing can happen to it.
    """
    before = {declared.tensor.buffer for declared in assembler.tensors}
    found: list[Tensor] = []
    for exact in filter(identities.touched, recording.returned):
        tensor = assembler.named(identities.known(exact))
        if tensor is None:
            shape = list(exact.shape)
            return None, [f"what the step returns is unknown: no call made its tensor {shape}"]
        found.append(tensor)
    for exact in filter(identities.touched, recording.kept):
        tensor = assembler.named(identities.known(exact))
        if tensor is not None and tensor not in found and tensor.buffer not in before:
            found.append(tensor)
    return tuple(found), []
