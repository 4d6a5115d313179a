"""A graph as a Python function: torch's calls one after the other, and nothing beside them.

``irgraph.execute.machine`` holds every result against the model; this runs as fast as a program
that makes the same calls, to be timed.
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
from irgraph.ir.live_out import is_label, live_out
from irgraph.ir.op import Op, Result
from irgraph.ir.tensor import Tensor


class Name(str):
    """What the function calls a tensor."""

    __slots__ = ()


class Program:
    """A step that runs on what the step before left, without autograd.

    Memory is given back after its last use, as in a program that does not keep it.

    Attributes:
        values: what exists before the step, by name: torch's tensors, which steps change.
    """

    def __init__(self, graph: Graph, seed: int = 0) -> None:
        """Run the first step with all results held against the model.

        Raises:
            IrgraphError: an op cannot be executed or failed, or a size is not what the graph says.
        """
        with without_autograd():
            machine = Machine(graph, {}, Drawer(graph, seed))
            machine.run()
        names = (known.tensor.name for known in graph.tensors)
        self.values = {name: machine.values[name] for name in names}
        writer = _Writer(machine)
        exec(compile(writer.text(), f"<{graph.name}>", "exec"), writer.known)
        self._step: Callable[[], None] = writer.known["step"]

    def __call__(self) -> None:
        """Run the step."""
        with torch.no_grad():
            self._step()


def calls_of(graph: Graph) -> Graph:
    """Return the model of what a ``Program`` runs: the same calls, none inside another."""
    return replace(graph, ops=tuple(op for op in graph.leaves() if not is_label(op)))


FORMAT = "memory_format"


def _laid_out(op: Op, how: Computation, named: Container[str]) -> dict[str, Any]:
    """Return the memory format of what is made in rows, which models do not name but lay out.

    Calls that take one keep the order of axes unless they are told another.
    """
    taken = how.schema is not None and any(a.name == FORMAT for a in how.schema.arguments)
    in_rows = [made for made in op.outputs if made.contiguous]
    if FORMAT in named or not (taken and in_rows):
        return {}
    return {FORMAT: torch.contiguous_format}


class _Writer:
    """Writes a step as a function, and collects the values that it refers to."""

    def __init__(self, machine: Machine) -> None:
        self.graph = machine.graph
        self.how = machine.how
        self.names: dict[str, Name] = {}
        declared = (known.tensor for known in machine.graph.tensors)
        self.known: dict[str, Any] = {self.name(t): machine.values[t.name] for t in declared}

    def text(self) -> str:
        """Return the source of the function ``step``."""
        ops = [op for op in self.graph.leaves() if not is_label(op)]
        kept = {*self.known, *map(self._called, live_out(self.graph))}
        last: dict[str, int] = {}
        for number, op in enumerate(ops):
            last |= dict.fromkeys((self.name(t) for t in (*op.inputs, *op.outputs)), number)
        lines = ["def step():", "    pass"]
        for number, op in enumerate(ops):
            lines.append(f"    {self._line(op, self.how[id(op)])}")
            over = (self.name(t) for t in dict.fromkeys((*op.inputs, *op.outputs)))
            lines += [
                f"    del {name}" for name in over if last[name] == number and name not in kept
            ]
        return "\n".join(lines) + "\n"

    def name(self, tensor: Tensor) -> Name:
        """Return what a tensor is called."""
        return self._called(tensor.name)

    def _called(self, name: str) -> Name:
        return self.names.setdefault(name, Name(f"t{len(self.names)}"))

    def _line(self, op: Op, how: Computation) -> str:
        leading, named = how.arguments(op, self.name)
        named = {**named, **_laid_out(op, how, named)}
        given = [*map(self._value, leading)]
        given += [f"{name}={self._value(value)}" for name, value in named.items()]
        call = f"{self._constant(how.call)}({', '.join(given)})"
        targets = list(self._targets(op.results, how))
        return f"{', '.join(targets)} = {call}" if targets else call

    def _value(self, value: Torch) -> str:
        if isinstance(value, list):
            return f"[{', '.join(map(self._value, value))}]"
        return str(value) if isinstance(value, Name) else self._constant(value)

    def _constant(self, value: Torch) -> str:
        name = f"k{len(self.known)}"
        self.known[name] = value
        return name

    def _targets(self, results: Iterable[Result], how: Computation) -> Iterator[str]:
        """Yield a name for each thing that the call returns; operands that it wrote have theirs."""
        left = list(results)
        if how.schema is None or not any(left):
            return
        for made in how.schema.returns:
            result = None if made.written or not left else left.pop(0)
            if isinstance(result, tuple):
                yield f"[{', '.join(map(self.name, result))}]"
            else:
                yield "_" if result is None else self.name(result)
