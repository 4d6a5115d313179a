"""Measuring the calls of a model, each once, on the values that it works on there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from costmodels.benchmarks.bench import Call
from costmodels.measure.run import Job, Run, describe, run_jobs, torch_for
from costmodels.measure.timer import RUNS, measure_call
from costmodels.pricing.calls import CALLS, call_key
from irgraph.ir.effects import is_view
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor


def measure_calls(
    graphs: Iterable[Graph],
    device: str,
    path: str | Path,
    *,
    budget: float = 600.0,
    seed: int = 0,
    runs: int = RUNS,
    progress: Callable[[str], None] | None = None,
) -> Run:
    """Measure the calls of models on a torch device, appending to a file.

    The models run on the CPU, for the values; what they call is timed on the device, apart from the
    rest. Of calls that differ in fractions alone, the first stands for all.

    Args:
        graphs: the models, at the sizes that they have.
        device: a torch device, such as ``cpu`` or ``cuda``.
        path: the file to write or to continue.
        budget: seconds after which no new call starts.
        seed: of the values that the models start from.
        runs: timed calls of each.
        progress: told each call's key as its turn comes, also of those measured before.

    Raises:
        IrgraphError: a model cannot be executed, torch or the device is missing, or the file was
            written on another device or is no file of measurements.
    """
    torch = torch_for(device)
    head = {**describe(torch, device, seed), "python_us": _python(torch)}
    jobs = (job for graph in graphs for job in _jobs(graph, device, seed))
    return run_jobs(jobs, torch, path, head, budget, runs, progress)


def _python(torch: Any) -> float:  # noqa: ANN401  (the module)
    """Return microseconds from Python to an operator and back, which schedules count as T1."""
    one, same = torch.zeros(1), torch.ops.aten.is_same_size.default
    return measure_call(torch, "cpu", lambda: same(one, one)).op


def _jobs(graph: Graph, device: str, seed: int) -> Iterator[Job]:
    """Run a model, and yield each call that computes right after it has run."""
    from irgraph.execute.draw import Drawer
    from irgraph.execute.machine import Machine, alone

    with alone():
        machine = Machine(graph, {}, Drawer(graph, seed))
        for op in machine.steps():
            if not is_view(op):
                about = {"family": CALLS, "op": op.name}
                yield Job(call_key(op), about, partial(_call, op, machine, device))


def _call(op: Op, machine: Any, device: str) -> Call:  # noqa: ANN401  (torch is not imported)
    """Return an op's call on copies of what it writes."""

    def held(tensor: Tensor) -> Any:  # noqa: ANN401
        value = machine.values[tensor.name].to(device)
        return value.clone() if tensor.name in op.written else value

    how = machine.how[id(op)]
    leading, named = how.arguments(op, held)
    function = how.call
    return lambda: function(*leading, **named)
