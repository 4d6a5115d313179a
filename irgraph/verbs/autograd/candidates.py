"""Candidates for a region's backward: sets of gradients, and layouts of the gradients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, product, zip_longest

from irgraph.ir.graph import Graph, cached_per_graph
from irgraph.ir.tensor import Tensor
from irgraph.verbs.autograd.region import ForwardRegion, is_float
from irgraph.verbs.autograd.requires_grad import requires_grad


def likely_needs(graph: Graph, region: ForwardRegion) -> Iterator[tuple[int, ...]]:
    """Yield sets of inputs whose gradient the step may compute, likely ones first."""
    surely, perhaps = requires_grad(graph).surely, requires_grad(graph).perhaps
    floats = [i for i, tensor in enumerate(region.inputs) if is_float(tensor)]
    roles = (graph.lasting.get(region.inputs[i].buffer, "param") for i in floats)
    guesses = (
        tuple(i for i in floats if region.inputs[i].name in surely),
        tuple(i for i in floats if region.inputs[i].name in perhaps),
        tuple(i for i, role in zip(floats, roles, strict=True) if role == "param"),
    )
    likely = tuple(dict.fromkeys(filter(None, guesses)))
    yield from likely
    sets = (c for n in range(len(floats), 0, -1) for c in combinations(floats, n))
    yield from (needs for needs in sets if needs not in likely)


def likely_cotangents(
    graph: Graph, region: ForwardRegion, gradients: Sequence[Tensor | None] = ()
) -> Iterator[tuple[Tensor, ...]]:
    """Yield candidate types of the outputs' gradients: with the outputs' layouts, then others.

    ``gradients`` are the known ones.
    """
    layouts: list[list[Tensor]] = []
    for output, gradient in zip_longest(region.outputs, gradients):
        if gradient is not None:
            layouts.append([gradient])
            continue
        observed = _layouts(graph).get((output.dtype, output.shape), ())
        layouts.append([output, *(t for t in observed if t.strides != output.strides)])
    yield from product(*layouts)


@cached_per_graph
def _layouts(graph: Graph) -> Mapping[tuple[str, tuple[int, ...]], Sequence[Tensor]]:
    """Return one tensor of the backward pass for each layout, by type and shape."""
    tensors_by_type: dict[tuple[str, tuple[int, ...]], dict[object, Tensor]] = {}
    for leaf in (leaf for leaf in graph.leaves() if leaf.phase == "backward"):
        for tensor in leaf.outputs:
            by_strides = tensors_by_type.setdefault((tensor.dtype, tensor.shape), {})
            by_strides.setdefault(tensor.strides, tensor)
    return {
        key: tuple(tensor_by_strides.values()) for key, tensor_by_strides in tensors_by_type.items()
    }
