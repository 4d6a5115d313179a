"""Search for the backward of forward ops in a graph.

The backward that autograd derives from the ops (``derive``) is matched with the graph, op by op:
first by the tensors of the forward pass that both read, then by tensors that follow from these.
The matched ops compute the gradient because they are, call by call, the calls of autograd; no
number of a recording is trusted for it.
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
from irgraph.verbs.autograd.match_backward import Backward, BackwardMatcher, MissingCallError
from irgraph.verbs.autograd.region import ForwardRegion, is_float, region_of
from irgraph.verbs.refusal import RefusedError

Item = TypeVar("Item")

MAX_TRIES = 12
"""Maximum number of tried sets of inputs that need a gradient, and of layouts for each set."""


def has_backward(graph: Graph) -> bool:
    """Return whether a step has a backward pass."""
    return any(op.is_autograd or op.phase == "backward" for op in graph.walk())


@cached_per_graph
def _is_double(graph: Graph) -> bool:
    """Return whether a step differentiates gradients."""
    is_named = any("BackwardBackward" in op.name for op in graph.walk())
    return bool(graph.settings.get(DOUBLE)) or is_named


def backward_of(graph: Graph, members: Sequence[Op]) -> Backward:
    """Return the backward of forward ops; raise ``RefusedError`` with a reason if there is none."""
    if _is_double(graph):
        raise RefusedError("the step differentiates gradients: what it does to them is not told")
    region = region_of(graph, members)
    if not region.outputs:
        raise RefusedError("no later op of the forward pass uses what it makes", [(members[0], "")])

    def match_needs(needs: tuple[int, ...]) -> Backward:
        return _match_layouts(graph, members, region, needs)

    backward = _first_match(
        likely_needs(graph, region), match_needs, "sets of inputs with a gradient"
    )
    return _with_other_gradients(graph, members, backward)


def _first_match(
    candidates: Iterator[Item], find: Callable[[Item], Backward], kind: str
) -> Backward:
    """Return the backward of the first candidate that has one, or raise the error of the first."""
    first: MissingCallError | None = None
    for candidate in islice(candidates, MAX_TRIES):
        try:
            return find(candidate)
        except MissingCallError as error:
            first = first or error
    assert first is not None
    if next(candidates, None) is None:
        raise first
    raise MissingCallError(f"{first.reason} (of more {kind}, {MAX_TRIES} were tried)", first.notes)


def _with_other_gradients(graph: Graph, members: Sequence[Op], backward: Backward) -> Backward:
    """Return a backward with the gradients of other inputs as well, if the step computes them."""
    for i, tensor in enumerate(backward.region.inputs):
        if i not in backward.needs and is_float(tensor):
            needs = tuple(sorted((*backward.needs, i)))
            with suppress(MissingCallError):
                backward = BackwardMatcher.find(graph, backward.region, needs, members)
    return backward


def _match_layouts(
    graph: Graph, members: Sequence[Op], region: ForwardRegion, needs: tuple[int, ...]
) -> Backward:
    def with_types(cotangents: tuple[Tensor, ...]) -> Backward:
        return BackwardMatcher.find(graph, replace(region, cotangents=cotangents), needs, members)

    return _first_match(likely_cotangents(graph, region), with_types, "layouts of its gradients")
