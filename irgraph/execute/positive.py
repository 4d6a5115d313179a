"""What must not be negative, since a step takes its root or its logarithm."""

from __future__ import annotations

from collections.abc import Iterator

from irgraph.ir.graph import Graph
from irgraph.ir.op import Op, tensors_in
from irgraph.ir.schema import bind, resolve
from irgraph.ir.tensor import Tensor

ROOTS = ("sqrt", "rsqrt", "log", "log2", "log10", "bernoulli", "binary_cross_entropy")
"""Ops that take all their operands so, by their names without marks of lists and places."""

NAMED = ("exp_avg_sqs", "max_exp_avg_sqs", "state_steps", "running_var")
"""Arguments of any op that are taken so."""

KEEPING = ("maximum", "add", "mul", "div", "clone", "_to_copy", "to")
"""Ops whose result is not negative where their operands are not."""


def positive_buffers(graph: Graph) -> set[str]:
    """Return the buffers of which a root or a logarithm is taken, straight or a few ops later."""
    found: set[str] = set()
    for op in reversed(list(graph.leaves())):
        found.update(tensor.buffer for tensor in _positive(op, graph, found))
    return found


def _positive(op: Op, graph: Graph, found: set[str]) -> Iterator[Tensor]:
    base = op.base.removeprefix("_foreach_").rstrip("_")
    if base in ROOTS or (base in KEEPING and found.intersection(t.buffer for t in op.outputs)):
        yield from op.inputs
        return
    schema = resolve(op, graph.schemas) if not op.is_scope else None
    for argument, value in bind(schema, op) if schema else ():
        if argument.name in NAMED:
            yield from tensors_in((value,))
