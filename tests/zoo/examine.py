"""Examines one program: captured, priced, executed beside torch, resized beside a fresh capture.

``python -m tests.zoo.examine NAME …`` prints what it found, one line of JSON for each.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from irgraph.capture.live import capture_file
from irgraph.diagnostics import IrgraphError
from irgraph.execute import execute
from irgraph.ir.compare import same_op
from irgraph.ir.graph import Graph
from irgraph.ir.resize import with_dims
from irgraph.ir.schema import schemas_of
from tests.zoo.programs import train

BATCH, SECOND, OTHER = 4, 6, 8
"""Sizes: of the capture, of the one that it is compared with, and of the one it is resized to."""

LIMIT = 600
"""Seconds that one program may take."""
DEVICE = "a100"
CLOSE = 1e-3
"""Share of a tensor's change by which an execution may differ from torch."""

ROUNDING = 1e-5
"""Share of the largest gradient below which one is nothing but rounding."""

FILE = Path(__file__).with_name("programs.py")


@dataclass
class Found:
    """What an examination found of one program."""

    name: str
    ops: int = 0
    parameters: int = 0
    unknown: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    captured: str = "not tried"
    resized: str = "not tried"
    executed: str = "not tried"
    difference: float = 0.0
    seconds: float = 0.0


def examine(name: str) -> Found:
    """Return what can be done with a program; each failure is a sentence."""
    found, begin = Found(name), time.monotonic()
    try:
        captured = captured_at(name, BATCH, symbolic=True)
        found.captured = "yes"
        graph = captured.graph
        found.notes = list(captured.notes)
        found.ops = sum(1 for _ in graph.leaves())
        found.parameters = sum(d.tensor.numel for d in graph.tensors if d.role == "param")
        found.unknown = unknown_ops(graph)
    except Exception as error:
        found.captured = sentence(error)
    else:
        found.resized = attempt(lambda: resized(name, graph))
        found.executed = attempt(lambda: executed(name, graph, found))
    found.seconds = round(time.monotonic() - begin, 1)
    return found


def attempt(check: Any) -> str:
    """Return what a check found, or the first line of what it raised."""
    try:
        return str(check())
    except Exception as error:  # what went wrong is the finding
        return sentence(error)


def sentence(error: Exception) -> str:
    if isinstance(error, IrgraphError):
        first = error.diagnostics[0]
        return "; ".join([first.message, *(note.message for note in first.notes)])[:600]
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"[:300]


def captured_at(name: str, batch: int, *, symbolic: bool, fixed: bool = False) -> Any:
    """Return the capture of a program's step on meta."""
    target = f"{FILE}:train(name={name!r}, fixed={fixed})"
    return capture_file(target, batch=batch, symbolic=symbolic, batches=(SECOND,))


def unknown_ops(graph: Graph) -> dict[str, int]:
    """Return the ops that no cost model knows, and ops without a schema, with their numbers."""
    from costmodels.backend import price
    from irgraph.ir.cost import PriceOptions

    priced = price(graph, DEVICE, PriceOptions())
    return dict(Counter(op.name for op in priced.unknown))


def resized(name: str, graph: Graph) -> str:
    """Compare the graph at another size with a capture at that size."""
    if "B" not in graph.dims:
        return "no dimension B"
    after = with_dims(graph, {"B": OTHER})
    fresh = captured_at(name, OTHER, symbolic=False).graph
    if len(after.ops) != len(fresh.ops):
        return f"{len(after.ops)} calls, captured there {len(fresh.ops)}"
    for a, b in zip(after.ops, fresh.ops, strict=True):
        if not same_op(a, b):
            return f"{b.name} differs"
    same = [d.tensor for d in after.tensors] == [d.tensor for d in fresh.tensors]
    return "equal" if same else "declared tensors differ"


def executed(name: str, graph: Graph, found: Found) -> str:
    """Execute the step that was captured on meta, from the values of a real one, and compare."""
    if any(schema.random for op in graph.leaves() for schema in schemas_of(op.name)):
        graph = captured_at(name, BATCH, symbolic=False, fixed=True).graph
    torch.set_num_threads(1)
    step: Any = train(BATCH, "cpu", name, True)
    for group in step.optimizer.param_groups:
        group["foreach"] = True  # as on an accelerator
    step()
    before, owners = values_of(graph, step)
    loss = step()
    after, _ = values_of(graph, step)
    left = execute(graph, before)
    noise = without_gradient(step.model)
    judged = [n for n in before if n in after and id(owners.get(n)) not in noise]
    worst = [(difference(before[n], after[n], left[n]), n) for n in judged]
    if isinstance(loss, torch.Tensor) and graph.returned:
        returned = left[graph.returned[0].name]
        worst.append((difference(torch.zeros_like(loss), loss, returned), "the loss"))
    worst.sort(reverse=True)
    found.difference = worst[0][0]
    changed = sum(not torch.equal(before[n], after[n]) for n in after)
    if not changed:
        return "nothing changed"
    return "equal" if worst[0][0] <= CLOSE else f"%{worst[0][1]} differs by {worst[0][0]:.2g}"


def without_gradient(model: torch.nn.Module) -> set[int]:
    """Return the parameters whose gradient is nothing but rounding, which Adam would blow up.

    Such are the biases of keys: a softmax does not see what all scores have in common.
    """
    sizes = {id(p): largest(p.grad) for p in model.parameters() if p.grad is not None}
    return {key for key, size in sizes.items() if size <= ROUNDING * max(sizes.values())}


def largest(value: torch.Tensor) -> float:
    return float(value.detach().to_dense().abs().max()) if value.numel() else 0.0


def difference(start: torch.Tensor, real: torch.Tensor, mine: torch.Tensor) -> float:
    """Return how far a result is from the real one, by the size of the real change."""
    start, real, mine = (t.detach().to(torch.float64) for t in (start, real, mine))
    if not real.numel() or torch.equal(real, mine):
        return 0.0
    scale = max(norm(real - start), 1e-6 * norm(real), 1e-12)
    return norm(real - mine) / scale


def norm(value: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(value))


def values_of(graph: Graph, step: Any) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Return the present values of what a graph starts from by name, and whose they are.

    Parameters, buffers and gradients go by their labels, data by the order of first use, and
    the optimizer's state by its order: one kind of state after the other, as it is first used.
    """
    labelled = {**dict(step.model.named_parameters()), **dict(step.model.named_buffers())}
    grads = {f"{n}.grad": p.grad for n, p in step.model.named_parameters() if p.grad is not None}
    labelled.update(grads)
    state, owners = state_of(step.optimizer), {}
    data = list(step.inputs.values())
    found = {}
    held = Counter(declared.tensor.buffer for declared in graph.tensors)
    for declared in graph.tensors:
        tensor = declared.tensor
        if held[tensor.buffer] > 1:
            continue  # buckets of gradients, which the step fills
        if declared.label in labelled:
            value = owners[tensor.name] = labelled[declared.label]
        elif declared.role == "state" and any(fits(tensor, v) for v, _ in state):
            place = next(i for i, (v, _) in enumerate(state) if fits(tensor, v))
            value, owners[tensor.name] = state.pop(place)
        elif any(fits(tensor, v) for v in data):
            value = take(data, tensor)
        else:
            continue
        found[tensor.name] = value.detach().clone()
    return found, owners


def state_of(optimizer: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return the tensors of an optimizer's state, each with the parameter that it belongs to."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    keys = dict.fromkeys(key for p in parameters for key in optimizer.state[p])
    pairs = ((optimizer.state[p].get(key), p) for key in keys for p in parameters)
    return [(value, p) for value, p in pairs if isinstance(value, torch.Tensor)]


def fits(tensor: Any, value: torch.Tensor) -> bool:
    return tuple(value.shape) == tuple(map(int, tensor.shape))


def take(values: list[torch.Tensor], tensor: Any) -> torch.Tensor:
    place = next(i for i, value in enumerate(values) if fits(tensor, value))
    return values.pop(place)


class TooSlowError(Exception):
    """A program took longer than it may."""


def stop(*_: object) -> None:
    raise TooSlowError(f"not done in {LIMIT} seconds")


if __name__ == "__main__":
    signal.signal(signal.SIGALRM, stop)
    for name in sys.argv[1:]:
        signal.alarm(LIMIT)
        print(json.dumps(asdict(examine(name))), flush=True)  # noqa: T201
        signal.alarm(0)
