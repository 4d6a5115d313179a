"""Measures each distinct call of a model once, on the values that it has in the model."""

from __future__ import annotations

import json
from collections.abc import Container, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from costmodels.benchmarks.bench import Call
from costmodels.measure.rows import CALLS
from costmodels.measure.run import current, describe, resume, torch_for
from costmodels.measure.timer import RUNS, measure_by_turns, measure_call
from costmodels.pricing.calls import call_key
from irgraph.execute.machine import Machine, without_autograd
from irgraph.execute.random_values import Drawer
from irgraph.ir.effects import is_view
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor


def measure_calls(
    graphs: Iterable[Graph],
    device: str,
    path: str | Path,
    *,
    seed: int = 0,
    runs: int = RUNS,
) -> int:
    """Measure the calls of models on a torch device, append to a file, return the number of rows.

    The models run on the CPU to compute the values. The calls of each model that are not in the
    file yet are then timed on the device in turns. Of calls that differ only in fractions, only the
    first is measured.

    Args:
        graphs: the models, with numeric sizes.
        device: a torch device, such as ``cpu`` or ``cuda``.
        path: the file to write or to continue.
        seed: of the values that the models start from.
        runs: number of timed calls of each.

    Raises:
        IrgraphError: a model cannot be executed, torch or the device is missing, or the file was
            written on another device or is no file of measurements.
    """
    torch = torch_for(device)
    head = {**describe(torch, device, seed), "python_us": _python(torch)}
    done = resume(Path(path), head)
    new = 0
    for graph in graphs:
        with (
            without_autograd(),
            current(torch, device),
            Path(path).open("a", encoding="utf-8") as file,
        ):
            calls = _calls(graph, device, seed, done)
            timings = measure_by_turns(torch, device, list(calls.values()), runs)
            for key, timing in zip(calls, timings, strict=True):
                row = {"family": CALLS, "key": key, **timing.as_row()}
                file.write(json.dumps(row, separators=(",", ":")) + "\n")
        done |= calls.keys()
        new += len(calls)
    return new


def _python(torch: Any) -> float:  # noqa: ANN401  (the module)
    """Return the microseconds of a Python call of an operator, which schedules count as T1."""
    scalar, is_same_size = torch.zeros(1), torch.ops.aten.is_same_size.default
    return measure_call(torch, "cpu", lambda: is_same_size(scalar, scalar)).op


def _calls(graph: Graph, device: str, seed: int, done: Container[str]) -> dict[str, Call]:
    """Run a model; return its computing calls by key, bound to copies of their values."""
    machine = Machine(graph, {}, Drawer(graph, seed))
    calls: dict[str, Call] = {}
    for op in machine.steps():
        key = call_key(op)
        if not (key in done or key in calls or is_view(op)):
            calls[key] = _call(op, machine, device)
    return calls


def _call(op: Op, machine: Machine, device: str) -> Call:
    """Return an op's call, with copies of the tensors that it writes."""

    def value_of(tensor: Tensor) -> Any:  # noqa: ANN401
        tensor_value = machine.values[tensor.name].to(device)
        return tensor_value.clone() if tensor.name in op.written else tensor_value

    computation = machine.computations[op]
    positional, keywords = computation.arguments(op, value_of)
    return partial(computation.call, *positional, **keywords)
