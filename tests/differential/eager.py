"""What a captured step leaves, beside what torch leaves when it runs the program itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from irgraph.ir.graph import Graph
from tests.differential.interpreter import Interpreter
from tests.differential.memory import TORCH, drawn
from tests.differential.programs import BATCH, WIDTH, Program


def differing(program: Program, graph: Graph, batch: int = BATCH, width: int = WIDTH) -> list[str]:
    """Return the parameters, buffers, gradients and inputs that a graph leaves wrong.

    Raises ``LookupError`` where it is not clear which of the program's tensors one is.
    """
    step = program.build(batch, width)
    step()
    started = dict(_tensors(step))
    values = {}
    for declared in graph.tensors:
        tensor = declared.tensor
        found = started.get(declared.label) if declared.label else _input(step, tensor)
        if found is None or tuple(found.shape) != tuple(map(int, tensor.shape)):
            raise LookupError(f"%{tensor.name} is none of the program's")
        found.data.copy_(drawn(tensor.name, found, declared.role, 0))
        values[tensor.name] = found.detach().clone()
    run = Interpreter(graph, values, wide=False).run()
    step()
    wrong = []
    for declared in graph.tensors:
        label, name = declared.label, declared.tensor.name
        left = dict(_tensors(step))[label] if label else _input(step, declared.tensor)
        if left is not None and not torch.allclose(left, run[name], 1e-4, 1e-5, equal_nan=True):
            wrong.append(f"%{name}: {left.flatten()[:4]} {run[name].flatten()[:4]}")
    return wrong


def _tensors(step: Any) -> Iterator[tuple[str, torch.Tensor]]:
    for name, parameter in step.model.named_parameters():
        yield name, parameter
        if parameter.grad is not None:
            yield f"{name}.grad", parameter.grad
    yield from step.model.named_buffers()


def _input(step: Any, tensor: Any) -> torch.Tensor | None:
    fitting = [
        given
        for given in step.inputs
        if tuple(given.shape) == tuple(tensor.shape) and given.dtype == TORCH[tensor.dtype]
    ]
    return fitting[0] if len(fitting) == 1 else None
