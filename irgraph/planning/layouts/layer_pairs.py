"""Linear layers that ranks can split in pairs, derived from their order in a step.

A layer whose inputs come from column-parallel layers alone is row-parallel; any other layer begins
a pair (Megatron-LM, arXiv:1909.08053). Layers of repeated modules have equal schemes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from msgspec import Struct

from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.ops.flops import flops
from irgraph.plans.plan import COLUMNS, ROWS, LayerScheme
from irgraph.verbs.sharding.layers import linear_layers

INPUT = ""
"""Origin of tensors that come from the step's inputs without passing a linear layer."""

Sources = Mapping[str, frozenset[str]]
"""Linear layers, or ``INPUT``, from which the input of each linear layer comes."""


class LayerPair(Struct, frozen=True):
    """Column-parallel layers and the row-parallel layers that follow them.

    Attributes:
        layers: schemes by the layers' names, with ``*`` for the numbers of repeated modules.
    """

    layers: Mapping[str, LayerScheme]

    def __str__(self) -> str:
        """Return the names of the layers."""
        return ", ".join(self.layers)


class LayerPairs(Struct, frozen=True):
    """Pairs of a step's linear layers.

    Attributes:
        pairs: the pairs, in the order of their use.
        unpaired: names of the layers in no pair.
    """

    pairs: tuple[LayerPair, ...]
    unpaired: tuple[str, ...]


def layer_pairs(graph: Graph) -> LayerPairs:
    """Return the pairs of a step's linear layers."""
    sources = _sources(graph)
    schemes: dict[str, LayerScheme] = {}
    groups: list[set[str]] = []
    for name, origins in sources.items():
        pattern = pattern_of(name)
        columns = {pattern_of(origin) for origin in origins}
        is_row = _are_columns(columns, schemes)
        scheme = schemes.setdefault(pattern, ROWS if is_row else COLUMNS)
        if is_row and scheme == ROWS:
            groups = _with_group(groups, {pattern, *columns})
    names = tuple(sources)
    pairs = [LayerPair(_exact_names(schemes, group, names)) for group in groups]
    paired = set().union(*groups)
    unpaired = [pattern for pattern in schemes if pattern not in paired]
    return LayerPairs(tuple(pairs), tuple(unpaired))


def pattern_of(name: str) -> str:
    """Return a layer's name with ``*`` for the numbers of the modules that contain it."""
    *modules, last = name.split(".")
    parts = ["*" if module.isdecimal() else module for module in modules]
    return ".".join([*parts, last])


def _are_columns(patterns: set[str], schemes: Mapping[str, LayerScheme]) -> bool:
    """Return whether there are layers, and all of them are column-parallel."""
    if not patterns:
        return False
    return all(schemes.get(pattern) == COLUMNS for pattern in patterns)


def _with_group(groups: Sequence[set[str]], group: set[str]) -> list[set[str]]:
    """Return disjoint groups with a further one, joined with the groups that share layers."""
    result = []
    for other in groups:
        if other & group:
            group = group | other
        else:
            result.append(other)
    return [*result, group]


def _exact_names(
    schemes: Mapping[str, LayerScheme], group: set[str], names: Sequence[str]
) -> dict[str, LayerScheme]:
    """Return the schemes of a group; a pattern that matches other layers becomes plain names."""
    result: dict[str, LayerScheme] = {}
    for pattern, scheme in schemes.items():
        if pattern not in group:
            continue
        members = [name for name in names if pattern_of(name) == pattern]
        matches = [name for name in names if fnmatchcase(name, pattern)]
        if matches == members:
            result[pattern] = scheme
        else:
            result |= dict.fromkeys(members, scheme)
    return result


def _sources(graph: Graph) -> Sources:
    """Return the sources of a step's linear layers, in the order of their use."""
    layer_by_weight = {}
    for name, layer in linear_layers(graph).items():
        layer_by_weight[layer.weight.name] = name
    flow = _Flow(graph, layer_by_weight)
    for op in graph.leaves():
        if op.phase == "forward":
            flow.add(op)
    names = layer_by_weight.values()
    return {name: flow.sources.get(name, frozenset()) for name in names}


class _Flow:
    """Origins of the tensors of a forward pass.

    Attributes:
        sources: origins of the inputs of each layer.
    """

    def __init__(self, graph: Graph, layer_by_weight: Mapping[str, str]) -> None:
        self.sources: dict[str, frozenset[str]] = {}
        self._layer_by_tensor = dict(layer_by_weight)
        self._origins: dict[str, frozenset[str]] = {}
        for declared in graph.tensors:
            if declared.role == "input":
                self._origins[declared.tensor.name] = frozenset([INPUT])

    def add(self, op: Op) -> None:
        """Add a call: its results come from its operands, or from a layer whose weight it reads."""
        origins: frozenset[str] = frozenset()
        for tensor in op.inputs:
            origins |= self._origins.get(tensor.name, frozenset())
        layer = self._layer(op)
        if layer is not None and flops(op):
            self.sources[layer] = self.sources.get(layer, frozenset()) | origins
            origins = frozenset([layer])
        for tensor in op.outputs:
            self._origins[tensor.name] = origins
            # a view or a copy of a weight represents it
            if layer is not None and len(op.inputs) == 1:
                self._layer_by_tensor[tensor.name] = layer

    def _layer(self, op: Op) -> str | None:
        """Return the layer whose weight a call reads, ``None`` if it reads none."""
        for tensor in op.inputs:
            if tensor.name in self._layer_by_tensor:
                return self._layer_by_tensor[tensor.name]
        return None
