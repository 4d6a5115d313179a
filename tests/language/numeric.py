"""An oracle that shares nothing with irgraph's dependences: it runs small graphs on numbers.

Every stream is a queue; which one goes on next is chance, held back by nothing but events.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import numpy as np

from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor

Array = np.ndarray
LENGTH = 4
"""Elements of every buffer."""

UNARY: dict[str, Callable[[Array], Array]] = {
    "neg": np.negative,
    "abs": np.abs,
    "relu": lambda x: np.maximum(x, 0),
    "clone": np.copy,
    "_to_copy": np.copy,
}


class Machine:
    """The bytes of all buffers, and what every name meant when it was defined."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.bytes: dict[str, Array] = {}
        self.defined: dict[str, tuple[float, ...]] = {}
        self.recorded: set[str] = set()
        for i, declared in enumerate(graph.tensors):
            numbers = [(-1.5) ** (i + j % 3) + j for j in range(LENGTH)]
            self.bytes[declared.tensor.buffer] = np.array(numbers, dtype=np.float64)

    def run(self, chance: random.Random | None = None) -> Machine:
        """Run all ops: one after the other, or as streams let them where chance is given."""
        queues: dict[str, list[Op]] = {}
        for leaf in self.graph.leaves():
            queues.setdefault(leaf.stream if chance else "", []).append(leaf)
        while queues:
            ready = [name for name, queue in queues.items() if self._may_run(queue[0])]
            assert ready, "every stream waits for another"
            name = chance.choice(ready) if chance else ready[0]
            self._step(queues[name].pop(0))
            queues = {name: queue for name, queue in queues.items() if queue}
        return self

    def _may_run(self, op: Op) -> bool:
        return op.name != "sync.wait" or all(t.name in self.recorded for t in op.inputs)

    def _view(self, tensor: Tensor) -> Array:
        whole = self.bytes.setdefault(tensor.buffer, np.full(LENGTH, np.nan))
        start = tensor.offset // tensor.itemsize
        return whole[start : start + tensor.numel]

    def _step(self, op: Op) -> None:
        if op.name == "sync.record":
            self.recorded.update(t.name for t in op.outputs)
        elif not op.name.startswith("sync.") and not op.is_scope:
            for target, value in self._values(op):
                self._view(target)[...] = value
                self.defined[target.name] = tuple(value)

    def _values(self, op: Op) -> Iterator[tuple[Tensor, Array]]:
        """Yield what an op writes, and where; a view writes nothing."""
        name = op.name.removeprefix("aten.").removeprefix("_foreach_")
        if op.name == "aten.add":
            yield op.outputs[0], self._view(op.inputs[0]) + self._view(op.inputs[1])
        elif name.endswith("_"):
            self._view(op.inputs[0])[...] = UNARY[name[:-1]](self._view(op.inputs[0]))
        elif name in UNARY:
            for given, made in zip(op.inputs, op.outputs, strict=False):
                yield made, UNARY[name](self._view(given))
        else:
            assert name == "view", op.name

    def lasting(self) -> dict[str, tuple[float, ...]]:
        """Return what is left in the buffers that outlive the step."""
        return {d.tensor.buffer: tuple(self.bytes[d.tensor.buffer]) for d in self.graph.tensors}
