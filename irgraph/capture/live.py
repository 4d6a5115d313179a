"""Live capture: run a PyTorch step once, on the meta device or for real, and keep its calls."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from irgraph.capture import recorder
from irgraph.capture.accelerator import as_accelerator
from irgraph.capture.assemble import Assembler
from irgraph.capture.batch import DifferentStructureError, with_batch
from irgraph.capture.et_reader import read_execution_trace
from irgraph.capture.forest import lost, roots
from irgraph.capture.forms import accelerator_forms
from irgraph.capture.identity import Identities
from irgraph.capture.lowering import Lowering, thread_names
from irgraph.capture.marks import join, unmarked
from irgraph.capture.nodes import Node
from irgraph.capture.resolve import Resolver
from irgraph.capture.result import Capture
from irgraph.capture.target import load_target, user_error
from irgraph.ir.graph import Graph
from irgraph.text.diagnostics import IrgraphError, Place, fail

CPU_NOTES = (
    "captured on the CPU: tensors stand for the accelerator's, and copies between host and "
    "device are missing",
    "captured on the CPU: backward ran on the calling thread; it is shown on thread backward",
)
"""What a program that ran on the CPU cannot show."""


def capture(
    step: Callable[[], object],
    *,
    name: str = "step",
    device: str = "meta",
    model: recorder.Torch = None,
    dims: Mapping[str, int] | None = None,
    source: str = "",
) -> Capture:
    """Run a step twice, once to warm up, and return its calls as a graph.

    Args:
        step: makes one training or inference step; takes nothing.
        name: the graph's name.
        device: where the step's tensors lie. ``meta`` stands for the accelerator: nothing is
            computed, and tensors on the CPU are host tensors.
        model: names parameters and modules; without it ``step.model`` is used, if there is one.
        dims: symbolic sizes to declare.
        source: the file the step comes from; errors name their line in it.

    Raises:
        IrgraphError: the step raised, or torch is missing.
    """
    model = model if model is not None else getattr(step, "model", None)
    _import_torch()
    with recorder.foreach_on_meta():
        with recorder.dispatch_mode(None, {}):
            _call(step, name, "warming up", source)
        nodes, recording = _record(step, name, model, source)
    identities = Identities(("meta",) if device == "meta" else ())
    identities.devices[device] = "gpu0"
    resolver = Resolver(identities)
    records = join(nodes, recording)
    forest = unmarked(roots(nodes))
    if not forest:
        raise fail(f"{name} called no operator", Place(source) if source else None)
    threads = thread_names(nodes, forest[0].thread)
    lowering = Lowering("live", resolver, records, threads, renumber=True)
    calls = lowering.calls(forest)
    changes = as_accelerator(calls, identities)
    assembler = Assembler(calls)
    graph = Graph(
        name,
        dims=dict(dims or {}),
        settings={"source": "live", "captured_on": device, "torch": _torch_version()},
        schemas=tuple(lowering.schemas),
        tensors=assembler.tensors,
        ops=assembler.ops,
    )
    notes = [*dict.fromkeys(recording.repaired), *changes, *(CPU_NOTES if device == "cpu" else ())]
    notes += [*resolver.notes(), *lost(nodes)]
    return Capture(graph, tuple(notes), accelerator_forms(graph), tuple(lowering.links))


def capture_file(
    target: str,
    *,
    batch: int,
    device: str = "meta",
    symbolic: bool = True,
    batches: Sequence[int] = (),
) -> Capture:
    """Capture the step that ``FILE.py:NAME`` makes, with its batch size as the dimension ``B``.

    Args:
        target: names a function of (batch, device) that returns a step; literal options may
            follow its name, as in ``dlrm.py:default(lookups=10)``.
        batch: batch size of the captured step.
        device: ``meta``, or ``cpu`` to really run it.
        symbolic: whether to capture at other batch sizes too, to find what depends on it.
        batches: those other sizes; chosen if empty.

    Raises:
        IrgraphError: the target cannot be found or run; its own errors name their line.
    """
    _import_torch()
    found = load_target(target)
    name = f"{Path(found.path).stem}_{found.name}"

    def at(size: int) -> Capture:
        step = found.step(size, device)
        return capture(step, name=name, device=device, source=found.path)

    first = at(batch)
    if not symbolic:
        return first
    try:
        sizes = batches or other_sizes(batch)
        others = {size: at(size).graph for size in sizes if size != batch}
        graph, odd = with_batch({batch: first.graph, **others}, batch)
    except DifferentStructureError as error:
        return _without_batch(first, f"the calls depend on it: {error}")
    except IrgraphError as error:
        return _without_batch(first, f"other sizes fail: {error.diagnostics[0].message}")
    return replace(first, graph=graph, notes=(*first.notes, *odd))


def _without_batch(captured: Capture, reason: str) -> Capture:
    return replace(captured, notes=(*captured.notes, f"no batch dimension: {reason}"))


def other_sizes(batch: int) -> tuple[int, ...]:
    """Return two more batch sizes to compare with: smaller ones where there is room."""
    return (batch // 2, batch // 4) if batch >= 16 else (2 * batch, 3 * batch)


def _import_torch() -> None:
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # the observer warns that it observes
    if find_spec("torch") is None:
        raise fail("live capture needs PyTorch", hint="pip install irgraph[torch]", exit_code=2)


def _torch_version() -> str:
    import torch

    return str(torch.__version__)


def _record(
    step: Callable[[], object], name: str, model: recorder.Torch, source: str
) -> tuple[list[Node], recorder.Recording]:
    from torch.profiler import ExecutionTraceObserver

    recording = recorder.Recording()
    hints = recorder.hints_of(model)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "live.json"
        observer = ExecutionTraceObserver().register_callback(str(file))
        observer.start()
        try:
            with recorder.module_ranges(model), recorder.dispatch_mode(recording, hints):
                _call(step, name, "capturing", source)
        finally:
            observer.stop()
            observer.unregister_callback()
        return read_execution_trace(file).nodes, recording


def _call(step: Callable[[], object], name: str, doing: str, source: str) -> None:
    try:
        step()
    except Exception as error:
        raise user_error(f"{name} failed while {doing} it", error, source) from error
