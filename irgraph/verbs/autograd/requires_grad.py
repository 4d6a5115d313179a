"""Tensors that have a gradient, read off the ``AccumulateGrad`` nodes of a step.

A node names the gradient that it stores, not the leaf. The leaves of one type all have gradients if
there are as many nodes of this type, or a multiple, and none has if there is no node. Any other
number leaves open which of them have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from msgspec import Struct

from irgraph.ir.graph import Graph, cached_per_graph
from irgraph.ir.tensor import Tensor
from irgraph.verbs.autograd.region import is_float

ACCUMULATE = "autograd.AccumulateGrad"

CUTS = frozenset(("aten.detach", "aten.detach_"))
"""Ops whose results have no gradient."""

Type = tuple[str, tuple[int, ...]]
"""Element type and shape."""


class RequiresGrad(Struct, frozen=True):
    """Names of tensors that require a gradient.

    Attributes:
        surely: tensors that depend on a leaf with a gradient.
        perhaps: all tensors that depend on a leaf which may have one.
    """

    surely: frozenset[str]
    perhaps: frozenset[str]


def _type(tensor: Tensor) -> Type:
    return tensor.dtype, tuple(map(int, tensor.shape))


@cached_per_graph
def requires_grad(graph: Graph) -> RequiresGrad:
    """Return which tensors of the forward pass require a gradient."""
    stored = Counter(
        _type(tensor) for op in graph.walk() if op.name == ACCUMULATE for tensor in op.inputs[:1]
    )
    leaves = [d.tensor for d in graph.tensors if d.role == "param" and is_float(d.tensor)]
    count_by_type = Counter(map(_type, leaves))
    complete = {
        key for key, count in count_by_type.items() if stored[key] and not stored[key] % count
    }
    # a node without a parameter of its type belongs to another leaf: an input, or a result that
    # the program made one
    foreign = stored.keys() - count_by_type.keys()
    unclear = foreign | {key for key, count in count_by_type.items() if stored[key] % count}
    surely = {tensor.name for tensor in leaves if _type(tensor) in complete}
    if not stored:
        return RequiresGrad(frozenset(), frozenset(graph.by_name))
    candidates = {
        tensor.name
        for tensor in graph.by_name.values()
        if is_float(tensor) and _type(tensor) in unclear
    }
    return RequiresGrad(_dependent(graph, surely), _dependent(graph, surely | candidates))


def _dependent(graph: Graph, leaves: Iterable[str]) -> frozenset[str]:
    """Return some tensors, and the results of the forward pass that depend on them."""
    names = set(leaves)
    for op in graph.leaves():
        if op.phase == "backward" or op.name in CUTS:
            continue
        if any(tensor.name in names for tensor in op.inputs):
            names.update(tensor.name for tensor in op.outputs if is_float(tensor))
            names.update(tensor.name for tensor in op.inputs if tensor.name in op.written)
    return frozenset(names)
