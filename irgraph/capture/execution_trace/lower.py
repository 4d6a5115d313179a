"""Lowers a PyTorch execution trace, of any schema version, to a graph."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from irgraph.capture.common.assemble import Assembler
from irgraph.capture.common.forest import (
    first_too_deep,
    last_complete_step,
    main_thread,
    orphan_notes,
    roots,
    step_ranges,
)
from irgraph.capture.common.identity import Identities
from irgraph.capture.common.lowering import Lowering, double_backward_setting, thread_names
from irgraph.capture.common.nodes import RecordedNode
from irgraph.capture.common.resolve import Resolver, tensors_in
from irgraph.capture.common.result import Capture, require_valid
from irgraph.capture.common.source import Source
from irgraph.capture.emulate.accelerator import CPU_NOTES
from irgraph.capture.emulate.forms import accelerator_forms
from irgraph.capture.execution_trace.collective_ranks import recorded_ranks
from irgraph.capture.execution_trace.reader import (
    Trace,
    decode_execution_trace,
    missing_records_note,
    read_execution_trace,
)
from irgraph.diagnostics import SourceSpan, fail
from irgraph.ir.graph import Device, Graph

__all__ = ["Trace", "lower_execution_trace", "read_execution_trace"]


def lower_execution_trace(
    trace: str | Path | Source | bytes | Trace,
    *,
    name: str | None = None,
    step: int | None = None,
    sheet: str = "v100",
) -> Capture:
    """Lower an execution trace, or one step of it, to a graph.

    Args:
        trace: a file, plain or gzipped (``-`` is standard input), its bytes, or the result of
            ``read_execution_trace``, whose nodes are consumed.
        name: the graph's name; by default the file's name.
        step: number of the ``ProfilerStep`` to lower; by default the last complete one. A trace
            without steps is lowered as one step.
        sheet: name of the device sheet of the trace's devices.

    In a step that ran only on the CPU, the CPU represents the device, as in a capture.

    Raises:
        IrgraphError: the file is not an execution trace, has no such step, or its content gives
            no valid graph (exit code 4).
    """
    trace = _read(trace, name or "trace")
    notes = [note for note in trace.warnings if note not in trace.contradictions]
    main = main_thread(trace.nodes)
    forest = roots(trace.nodes)
    if not forest or first_too_deep(trace.nodes) is not None:
        reason = "nests its calls too deeply" if forest else "holds no operation"
        raise fail(f"the execution trace {reason}", SourceSpan(trace.source))
    step_nodes = _choose_step(trace, forest, step, notes)
    file = Path(trace.source).name
    identities = Identities()
    resolver = Resolver(identities)
    on_host = not _names_a_device(trace.nodes)
    if on_host:
        identities.devices["cpu"] = "gpu0"
        notes += CPU_NOTES
    lowering = Lowering(file, resolver, threads=thread_names(trace.nodes, main))
    assembler = Assembler(lowering.calls(step_nodes))
    notes += [*resolver.notes(), *_doubt_notes(assembler), *orphan_notes(trace.nodes)]
    devices = sorted({*identities.devices.values(), "gpu0"} - {"cpu"})
    graph = Graph(
        name or file.removesuffix(".gz").removesuffix(".json"),
        settings={
            "source": file,
            "trace_version": trace.schema,
            **({"captured_on": "cpu"} if on_host else {}),
            **recorded_ranks(step_nodes),
            **double_backward_setting(lowering.differentiates_gradients),
        },
        schemas=tuple(lowering.schemas),
        devices=tuple(Device(device, sheet) for device in devices),
        tensors=assembler.tensors,
        ops=assembler.ops,
    )
    differing = accelerator_forms(graph) if on_host else ()
    checked, links = require_valid(graph, trace.source), tuple(lowering.links)
    health = [f"{trace.source}: {contradiction}" for contradiction in trace.contradictions]
    health += missing_records_note(trace)
    return Capture(checked, tuple(notes), differing, links, tuple(health))


def _read(trace: str | Path | Source | bytes | Trace, name: str) -> Trace:
    if isinstance(trace, bytes):
        return decode_execution_trace(trace, name)
    return trace if isinstance(trace, Trace) else read_execution_trace(trace)


def _names_a_device(nodes: Sequence[RecordedNode]) -> bool:
    """Return whether any tensor of a recording lies elsewhere than on the CPU."""
    tensors = (t for node in nodes for t in tensors_in([*node.inputs, *node.outputs]))
    return any(t.device and not t.device.startswith("cpu") for t in tensors)


def _choose_step(
    trace: Trace, forest: Sequence[RecordedNode], step: int | None, notes: list[str]
) -> Sequence[RecordedNode]:
    """Return the nodes of one step and note its number; a trace without steps is one step."""
    steps = step_ranges(forest)
    if not steps:
        if step is not None:
            raise fail(f"no step {step}: the trace marks no steps", SourceSpan(trace.source))
        return forest
    if step is not None and step not in steps:
        numbers = ", ".join(map(str, steps))
        raise fail(f"no step {step}: the trace has steps {numbers}", SourceSpan(trace.source))
    number = last_complete_step(steps) if step is None else step
    if len(steps) > 1:
        reason = "the last complete one" if step is None else "as asked"
        notes.append(f"took step {number} of {', '.join(map(str, steps))}: {reason}")
    if not steps[number].children:
        raise fail(f"step {number} holds no operation", SourceSpan(trace.source))
    return steps[number].children


def _doubt_notes(assembler: Assembler) -> list[str]:
    scalars = [h for h in assembler.handles if h.device == "cpu" and not h.shape]
    doubts = []
    if scalars:
        doubts.append(
            f"{len(scalars)} host scalars are inputs: the trace does not give their value"
        )
    if assembler.late_definitions:
        doubts.append(
            f"{assembler.late_definitions} tensors are used before the call that makes them"
        )
    return doubts
