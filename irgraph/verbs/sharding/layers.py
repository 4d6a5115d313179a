"""Places of the parameters of linear layers that a plan splits, with their optimizer's state.

A column-parallel layer has its outputs split over ranks, a row-parallel layer its inputs
(Megatron-LM, arXiv:1909.08053). Every rank has all samples.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase

from msgspec import Struct

from irgraph.diagnostics import fail, suggestion
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op, Value
from irgraph.ir.tensor import Tensor
from irgraph.ir.tf32 import plain_name
from irgraph.ops.book import names_with
from irgraph.ops.operator import Trait
from irgraph.ops.places import Place, split
from irgraph.plans.plan import COLUMNS, Plan
from irgraph.verbs.refusal import RefusedError
from irgraph.verbs.sharding.families import STEP, find_families

VIEWS = ("detach", "alias", "t")
"""Views that represent the parameter, as its copies do: casts of autocast, for instance."""


class LinearLayer(Struct, frozen=True):
    """One linear layer.

    Attributes:
        name: name of its module, or of its weight if the module is unknown.
        weight: [outputs, inputs].
        bias: [outputs], ``None`` without a bias.
    """

    name: str
    weight: Tensor
    bias: Tensor | None = None


def linear_layers(graph: Graph) -> dict[str, LinearLayer]:
    """Return the layers whose weight a product reads, by name and in the order of their use.

    A weight is [outputs, inputs] as in ``torch.nn.Linear``: ``aten.linear`` reads it in this form,
    other products read it transposed.
    """
    labels = {d.tensor.name: d.label or d.tensor.name for d in graph.tensors}
    parameters = {
        d.tensor.name: (d.tensor, False)
        for d in graph.tensors
        if d.role == "param" and d.tensor.contiguous
    }
    layers: dict[str, LinearLayer] = {}
    for op in _calls(graph):
        if op.base in VIEWS or op.name in names_with(Trait.DUPLICATE):
            _propagate(op, parameters)
            continue
        weight, bias = _weight_and_bias(op, parameters)
        if weight is not None:
            name = labels[weight.name].removesuffix(".weight")
            layers.setdefault(name, LinearLayer(name, weight, bias))
    return layers


Parameters = dict[str, tuple[Tensor, bool]]
"""By name: the parameter that a tensor represents, and whether it is transposed."""


def _calls(graph: Graph) -> Iterator[Op]:
    """Yield all calls of the forward pass, outer calls after inner ones."""

    def inner(op: Op) -> Iterator[Op]:
        for child in op.body:
            yield from inner(child)
        yield op

    for op in graph.ops:
        yield from (call for call in inner(op) if call.phase == "forward")


def _propagate(op: Op, parameters: Parameters) -> None:
    if op.inputs and op.outputs and op.inputs[0].name in parameters:
        parameter, is_transposed = parameters[op.inputs[0].name]
        for tensor in op.outputs:
            parameters.setdefault(tensor.name, (parameter, is_transposed ^ (op.base == "t")))


def _weight_and_bias(
    op: Op, parameters: Mapping[str, tuple[Tensor, bool]]
) -> tuple[Tensor | None, Tensor | None]:
    """Return the weight and the bias that a product reads, if they are parameters."""
    name, operands = plain_name(op.name), op.operands
    if name == "aten.linear" and len(operands) > 1:
        bias = operands[2] if len(operands) > 2 else None
        return _parameter(operands[1], parameters, transposed=False), _parameter(
            bias, parameters, transposed=False
        )
    if name in ("aten.mm", "aten.addmm") and operands:
        bias = operands[0] if name == "aten.addmm" else None
        return _parameter(operands[-1], parameters, transposed=True), _parameter(
            bias, parameters, transposed=False
        )
    return None, None


def _parameter(
    value: Value, parameters: Mapping[str, tuple[Tensor, bool]], *, transposed: bool
) -> Tensor | None:
    if not isinstance(value, Tensor) or value.name not in parameters:
        return None
    parameter, is_transposed = parameters[value.name]
    return parameter if is_transposed == transposed else None


def layer_axes(graph: Graph, plan: Plan) -> dict[str, tuple[Tensor, int]]:
    """Return the weights and biases of a plan's layers, each with the axis of its split, by name.

    Raises:
        IrgraphError: the plan names a layer that the model lacks (exit code 2).
        RefusedError: a layer cannot be split in this way.
    """
    axes: dict[str, tuple[Tensor, int]] = {}
    for name, (layer, scheme) in match_layers(plan, linear_layers(graph)).items():
        axis = 0 if scheme == COLUMNS else 1
        size, kind = layer.weight.shape[axis], "inputs" if axis else "outputs"
        if size % plan.ranks:
            raise RefusedError(
                f"layer {name!r} has {size} {kind}, which {plan.ranks} ranks cannot share equally"
            )
        axes[layer.weight.name] = layer.weight, axis
        if layer.bias is not None and axis == 0:
            axes[layer.bias.name] = layer.bias, 0
    return axes


def match_layers(
    plan: Plan, layers: Mapping[str, LinearLayer]
) -> dict[str, tuple[LinearLayer, str]]:
    """Return the layers of a plan with their schemes; ``*`` in a name matches any text."""
    matched: dict[str, tuple[LinearLayer, str]] = {}
    for pattern, scheme in plan.layers.items():
        names = [name for name in layers if name == pattern or fnmatchcase(name, pattern)]
        if not names:
            message = (
                f"plan: the model has no linear layer {pattern!r}{suggestion(pattern, layers)}"
            )
            layer_names = ", ".join(list(layers)[:8]) or "none"
            raise fail(message, hint=f"linear layers: {layer_names}", exit_code=2)
        for name in names:
            if matched.setdefault(name, (layers[name], scheme))[1] != scheme:
                message = f"plan: layer {name!r} is {matched[name][1]}, and {scheme} by {pattern!r}"
                raise fail(message, exit_code=2)
    return matched


def with_states(graph: Graph, axes: Mapping[str, tuple[Tensor, int]]) -> dict[str, Place]:
    """Return the places of parameters that are split along axes, and of their state, by name.

    Raises ``RefusedError`` if an optimizer updates one as a whole, or if others share its memory.
    """
    name_by_buffer = {tensor.buffer: tensor.name for tensor, _ in axes.values()}
    declared = {d.tensor.name: d.tensor for d in graph.tensors}
    for tensor in declared.values():
        if name_by_buffer.get(tensor.buffer, tensor.name) != tensor.name:
            raise RefusedError(f"%{tensor.name} shares its memory with a layer that is split")
    places = {name: split(axis) for name, (_, axis) in axes.items()}
    for scope in (op for op in graph.ops if op.name.startswith(STEP)):
        for family in find_families(scope.leaves(), list(axes.values())):
            if family.refused_op:
                raise RefusedError(
                    f"{family.refused_op} updates %{family.parameter.name} as a whole:"
                    " its parts cannot be apart"
                )
            states = family.axes.items()
            places |= {name: split(axis) for name, axis in states if name in declared}
    return places


def gradient_places(graph: Graph, axes: Mapping[str, tuple[Tensor, int]]) -> dict[str, Place]:
    """Return the places of the gradients that an optimizer reads for split parameters, by name.

    Ranks scatter each after the op that completes it, so that no rank stores all gradients.
    """
    declared = {d.tensor.name for d in graph.tensors}
    places: dict[str, Place] = {}
    for scope in (op for op in graph.ops if op.name.startswith(STEP)):
        leaves = list(scope.leaves())
        inside = {tensor.name for leaf in leaves for tensor in leaf.outputs}
        for family in find_families(leaves, list(axes.values())):
            names = family.axes.keys() - declared - inside
            places |= {name: split(family.axes[name]) for name in names}
    return places
