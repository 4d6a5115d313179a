"""Where a graph has the backward of some of its forward ops.

What autograd makes of the ops (``derive``) is looked for in the graph, op by op: by what both read
of the forward pass, and by what follows from that. What is found computes their gradient because
it is, call by call, what autograd would do; no number of a recording is trusted for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import TypeVar

from msgspec.structs import replace

from irgraph.ir.graph import DOUBLE, Graph, cached_per_graph
from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor
from irgraph.verbs.autograd.candidates import likely_cotangents, likely_needs
from irgraph.verbs.autograd.match_backward import Backward, Finding, MissingCallError
from irgraph.verbs.autograd.region import Region, is_float, region_of
from irgraph.verbs.refusal import RefusedError

Item = TypeVar("Item")

MOST_TRIES = 12
"""How many sets of inputs that may need a gradient are tried, and layouts for each."""


def has_backward(graph: Graph) -> bool:
    """Return whether a step has a backward pass."""
    return any(op.is_autograd or op.phase == "backward" for op in graph.walk())


@cached_per_graph
def _is_double(graph: Graph) -> bool:
    """Return whether a step differentiates gradients."""
    named = any("BackwardBackward" in op.name for op in graph.walk())
    return bool(graph.settings.get(DOUBLE)) or named


def backward_of(graph: Graph, members: Sequence[Op]) -> Backward:
    """Return the backward of forward ops; raise ``RefusedError`` with why there is none."""
    if _is_double(graph):
        raise RefusedError("the step differentiates gradients: what it does to them is not told")
    region = region_of(graph, members)
    if not region.outputs:
        raise RefusedError("no later op of the forward pass uses what it makes", [(members[0], "")])

    def bound(needs: tuple[int, ...]) -> Backward:
        return _bound(graph, members, region, needs)

    found = _fitting(likely_needs(graph, region), bound, "sets of inputs with a gradient")
    return _whole(graph, members, found)


def _fitting(ways: Iterator[Item], find: Callable[[Item], Backward], what: str) -> Backward:
    """Return what is found in the first way that does, or raise why the likeliest does not."""
    first: MissingCallError | None = None
    for way in islice(ways, MOST_TRIES):
        try:
            return find(way)
        except MissingCallError as error:
            first = first or error
    assert first is not None
    if next(ways, None) is None:
        raise first
    raise MissingCallError(f"{first.reason} (of more {what}, {MOST_TRIES} were tried)", first.notes)


def _whole(graph: Graph, members: Sequence[Op], found: Backward) -> Backward:
    """Return a backward with the gradients of other inputs, too, if the step computes them."""
    for i, tensor in enumerate(found.region.inputs):
        if i not in found.needs and is_float(tensor):
            needs = tuple(sorted((*found.needs, i)))
            with suppress(MissingCallError):
                found = Finding.of(graph, found.region, needs, members)
    return found


def _bound(graph: Graph, members: Sequence[Op], region: Region, needs: tuple[int, ...]) -> Backward:
    def with_types(cotangents: tuple[Tensor, ...]) -> Backward:
        return Finding.of(graph, replace(region, cotangents=cotangents), needs, members)

    return _fitting(likely_cotangents(graph, region), with_types, "layouts of its gradients")
