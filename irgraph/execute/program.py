"""A graph as a Python function with only its torch calls, in order.

``irgraph.execute.machine`` checks every result against the model. This function runs as fast as a
program with the same calls, for timing.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from typing import Any

import torch
from msgspec.structs import replace

from irgraph.execute.callables import Computation
from irgraph.execute.machine import Machine, without_autograd
from irgraph.execute.random_values import Drawer
from irgraph.execute.torch_values import Torch
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op, Result
from irgraph.ir.tensor import Tensor
from irgraph.ops.live_out import is_label, live_out


class VariableName(str):
    """Name of a tensor's variable in the function."""

    __slots__ = ()


class GraphProgram:
    """A step that runs on the results of the previous step, without autograd.

    Memory is released after its last use, as in an ordinary program.

    Attributes:
        values: tensors that exist before the step, by name; steps change them.
    """

    def __init__(self, graph: Graph, seed: int = 0) -> None:
        """Run the first step, with all results checked against the model.

        Raises:
            IrgraphError: an op cannot be executed or failed, or a size differs from the graph's.
        """
        with without_autograd():
            machine = Machine(graph, {}, Drawer(graph, seed))
            machine.run()
        names = (declared.tensor.name for declared in graph.tensors)
        self.values = {name: machine.values[name] for name in names}
        writer = _Writer(machine)
        exec(compile(writer.text(), f"<{graph.name}>", "exec"), writer.namespace)
        self._step: Callable[[], None] = writer.namespace["step"]

    def __call__(self) -> None:
        """Run the step."""
        with torch.no_grad():
            self._step()


def calls_of(graph: Graph) -> Graph:
    """Return the model of the calls of a ``GraphProgram``: the leaves, without nesting."""
    return replace(graph, ops=tuple(op for op in graph.leaves() if not is_label(op)))


FORMAT = "memory_format"


def _memory_format(op: Op, computation: Computation, keywords: Container[str]) -> dict[str, Any]:
    """Return the contiguous memory format as an argument if a call has contiguous results.

    Models record strides instead of this argument. Calls that accept it preserve the order of axes
    by default.
    """
    accepts_format = computation.schema is not None and any(
        a.name == FORMAT for a in computation.schema.arguments
    )
    contiguous = [output for output in op.outputs if output.contiguous]
    if FORMAT in keywords or not (accepts_format and contiguous):
        return {}
    return {FORMAT: torch.contiguous_format}


class _Writer:
    """Writes a step as the source of a function, and collects the values that it refers to."""

    def __init__(self, machine: Machine) -> None:
        self.graph = machine.graph
        self.computations = machine.computations
        self.names: dict[str, VariableName] = {}
        declared = (declaration.tensor for declaration in machine.graph.tensors)
        self.namespace: dict[str, Any] = {self.name(t): machine.values[t.name] for t in declared}

    def text(self) -> str:
        """Return the source of the function ``step``."""
        ops = [op for op in self.graph.leaves() if not is_label(op)]
        live_names = {*self.namespace, *map(self._variable, live_out(self.graph))}
        last_use: dict[str, int] = {}
        for number, op in enumerate(ops):
            last_use |= dict.fromkeys((self.name(t) for t in (*op.inputs, *op.outputs)), number)
        lines = ["def step():", "    pass"]
        for number, op in enumerate(ops):
            lines.append(f"    {self._statement(op, self.computations[op])}")
            names = (self.name(t) for t in dict.fromkeys((*op.inputs, *op.outputs)))
            lines += [
                f"    del {name}"
                for name in names
                if last_use[name] == number and name not in live_names
            ]
        return "\n".join(lines) + "\n"

    def name(self, tensor: Tensor) -> VariableName:
        """Return the variable of a tensor."""
        return self._variable(tensor.name)

    def _variable(self, name: str) -> VariableName:
        return self.names.setdefault(name, VariableName(f"t{len(self.names)}"))

    def _statement(self, op: Op, computation: Computation) -> str:
        leading, keywords = computation.arguments(op, self.name)
        keywords = {**keywords, **_memory_format(op, computation, keywords)}
        arguments = [*map(self._value, leading)]
        arguments += [f"{name}={self._value(value)}" for name, value in keywords.items()]
        call = f"{self._constant(computation.call)}({', '.join(arguments)})"
        targets = list(self._targets(op.results, computation))
        return f"{', '.join(targets)} = {call}" if targets else call

    def _value(self, value: Torch) -> str:
        if isinstance(value, list):
            return f"[{', '.join(map(self._value, value))}]"
        return str(value) if isinstance(value, VariableName) else self._constant(value)

    def _constant(self, value: Torch) -> str:
        name = f"k{len(self.namespace)}"
        self.namespace[name] = value
        return name

    def _targets(self, results: Iterable[Result], computation: Computation) -> Iterator[str]:
        """Yield a name for each result of the call, ``_`` for operands that it wrote."""
        remaining = list(results)
        if computation.schema is None or not any(remaining):
            return
        for schema_return in computation.schema.returns:
            result = None if schema_return.written or not remaining else remaining.pop(0)
            if isinstance(result, tuple):
                yield f"[{', '.join(map(self.name, result))}]"
            else:
                yield "_" if result is None else self.name(result)
