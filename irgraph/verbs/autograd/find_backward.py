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
from irgraph.verbs.autograd.context import gradients_in_context, root_gradients
from irgraph.verbs.autograd.derive import DerivationError, derive
from irgraph.verbs.autograd.match_backward import (
    Backward,
    BackwardMatcher,
    MissingCallError,
    UnclearBackwardError,
)
from irgraph.verbs.autograd.region import ForwardRegion, is_float, region_of
from irgraph.verbs.autograd.requires_grad import requires_grad
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
    try:
        return _match(graph, members, region)
    except UnclearBackwardError as error:
        cotangents = gradients_in_context(graph, members, region, _match)
        if not any(cotangents):
            raise
        region = replace(region, cotangents=cotangents)
        try:
            return _match(graph, members, region, cotangents)
        except UnclearBackwardError:
            raise error from None


def _match(
    graph: Graph,
    members: Sequence[Op],
    region: ForwardRegion,
    cotangents: Sequence[Tensor | None] = (),
) -> Backward:
    """Return the backward of a region; ``cotangents`` are gradients of its outputs."""
    cotangents = cotangents or root_gradients(graph, region)

    def match_needs(needs: tuple[int, ...]) -> Backward:
        layouts = likely_cotangents(graph, region, cotangents)

        def match_layouts(types: tuple[Tensor, ...]) -> Backward:
            typed = replace(region, cotangents=types)
            return BackwardMatcher.find(graph, typed, needs, members, cotangents)

        return _first_match(layouts, match_layouts, "layouts of its gradients")

    sets = likely_needs(graph, region)
    backward = _first_match(sets, match_needs, "sets of inputs with a gradient")
    backward = _with_other_gradients(graph, members, backward, cotangents)
    _check_gradients(graph, members, backward)
    return backward


def _check_gradients(graph: Graph, members: Sequence[Op], backward: Backward) -> None:
    """Refuse a backward without the gradient of an input that surely has one.

    Its calls would not change with the forward ops.
    """
    surely = requires_grad(graph).surely
    for i, tensor in enumerate(backward.region.inputs):
        if i in backward.needs or tensor.name not in surely:
            continue
        with suppress(DerivationError):
            derived = derive(backward.region, (*backward.needs, i), plain=True)
            if derived.gradients[i] is not None:
                reason = f"the gradient of %{tensor.name} is not the sum that autograd derives"
                raise RefusedError(f"{reason}: others may be added first", [(members[0], "")])


def _first_match(
    candidates: Iterator[Item], find: Callable[[Item], Backward], kind: str
) -> Backward:
    """Return the backward of the first candidate that has one, or raise the error of the first."""
    first: RefusedError | None = None
    for candidate in islice(candidates, MAX_TRIES):
        try:
            return find(candidate)
        except (MissingCallError, DerivationError) as error:
            first = first or error
    if first is None:
        raise MissingCallError("no operand of it can have a gradient")
    if next(candidates, None) is None or isinstance(first, DerivationError):
        raise first
    raise MissingCallError(f"{first.reason} (of more {kind}, {MAX_TRIES} were tried)", first.notes)


def _with_other_gradients(
    graph: Graph, members: Sequence[Op], backward: Backward, cotangents: Sequence[Tensor | None]
) -> Backward:
    """Return a backward with the gradients of other inputs as well, if the step computes them."""
    perhaps = requires_grad(graph).perhaps
    for i, tensor in enumerate(backward.region.inputs):
        if i not in backward.needs and is_float(tensor) and tensor.name in perhaps:
            needs = tuple(sorted((*backward.needs, i)))
            with suppress(MissingCallError, DerivationError):
                region = replace(backward.region, cotangents=backward.region.gradient_types)
                backward = BackwardMatcher.find(graph, region, needs, members, cotangents)
    return backward
