"""Floating-point operations of a step, as torch's ``FlopCounterMode`` counts them.

Products, convolutions, attention and recurrent layers are counted, with a multiplication and an
addition each; other ops are not. The book of operators has torch's formulas
(``torch/utils/flop_counter.py``), with two exceptions. The gradient of a grouped convolution's
weight has the channels of one group, where torch counts all channels. In cuDNN's layers every
matrix is multiplied by each row of each time step.
"""

from __future__ import annotations

from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.ops.book import operator_of
from irgraph.ops.call import Call, InvalidCallError
from irgraph.ops.operator import uncounted


def step_flops(graph: Graph) -> tuple[int, int]:
    """Return the operations of all leaves of a step, and the number of uncounted products."""
    counts = [flops(op) for op in graph.walk() if not op.body]
    return sum(count or 0 for count in counts), counts.count(None)


def flops(op: Op) -> int | None:
    """Return the floating-point operations of a leaf; 0 if it is no product.

    ``None`` if a trace does not record the operands or attributes on which they depend.
    """
    operator = operator_of(op.name)
    if operator is None or operator.flops is None:
        return 0
    try:
        return operator.flops(Call(op))
    except (InvalidCallError, LookupError, ValueError):  # not recorded by a trace
        return None


def is_product(name: str) -> bool:
    """Return whether the operations of ops with this name are counted."""
    operator = operator_of(name)
    return operator is not None and operator.flops not in (None, uncounted)
