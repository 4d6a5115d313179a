"""Gradients of tensors whose backward is ambiguous, from the ops around them.

The backward of a sum, a view or a product with a number reads nothing but the gradient. Which
gradient that is shows in the backward of the ops that use the result: the region is enlarged by
these ops until its backward is matched; autograd derives the gradient within it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from msgspec.structs import replace

from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor
from irgraph.ops.live_out import is_label
from irgraph.verbs.autograd.companions import forward_users, intermediate_calls
from irgraph.verbs.autograd.match_backward import Backward, UnclearBackwardError, byte_layout
from irgraph.verbs.autograd.region import ForwardRegion, as_region, is_float, results_of
from irgraph.verbs.refusal import RefusedError

Match = Callable[[Graph, Sequence[Op], ForwardRegion], Backward]
"""Returns the backward of a region, or raises ``RefusedError``."""

MAX_CONTEXT = 12
"""Maximum number of ops that are added to a region."""


def gradients_in_context(
    graph: Graph, members: Sequence[Op], region: ForwardRegion, match: Match
) -> tuple[Tensor | None, ...]:
    """Return the gradient of each output of a region; none if the context is unclear, too."""
    for enlarged in _enlarged(graph, members):
        outputs = _used_outside(graph, enlarged)
        context = replace(as_region(graph, enlarged, outputs), inner=region.outputs)
        try:
            return match(graph, enlarged, context).inner_gradients
        except UnclearBackwardError:
            continue
        except RefusedError:
            break
    return ()


def _enlarged(graph: Graph, members: Sequence[Op]) -> Iterator[list[Op]]:
    """Yield members with the ops that use their results, the ops that use those, and so on."""
    ops = list(members)
    while True:
        users = [op for t in results_of(ops).values() for op in forward_users(graph, t.name)]
        added = [op for op in dict.fromkeys(users) if op not in ops and not is_label(op)]
        ops += added
        ops += intermediate_calls(graph, ops)
        if not added or len(ops) > len(members) + MAX_CONTEXT:
            return
        ops.sort(key=lambda op: graph.paths[op])
        yield list(ops)


def _used_outside(graph: Graph, ops: Sequence[Op]) -> list[Tensor]:
    """Return the results through which gradients reach ops: those used elsewhere, or not at all."""
    outputs = []
    for tensor in results_of(ops).values():
        users = forward_users(graph, tensor.name)
        if is_float(tensor) and (not users or any(op not in ops for op in users)):
            outputs.append(tensor)
    return outputs


def root_gradients(graph: Graph, region: ForwardRegion) -> tuple[Tensor | None, ...]:
    """Return the gradient with which the backward pass starts, for each output that is a loss."""
    return tuple(_root_gradient(graph, output) for output in region.outputs)


def _root_gradient(graph: Graph, output: Tensor) -> Tensor | None:
    if output.numel != 1 or forward_users(graph, output.name):
        return None
    ones = [
        leaf.outputs[0]
        for _, leaf in graph.touching.get(output.buffer, ())
        if leaf.phase == "backward"
        and leaf.name == "aten.ones_like"
        and byte_layout(leaf.inputs[0]) == byte_layout(output)
    ]
    return ones[0] if len(ones) == 1 else None
