"""The linear layers of a step: their weights and biases, by the program's names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import Struct

from irgraph.ir.graph import Graph
from irgraph.ir.op import Op, Value
from irgraph.ir.tensor import Tensor
from irgraph.ir.tf32 import plain_name

VALUE_PRESERVING = ("to", "_to_copy", "detach", "alias", "contiguous", "clone")
"""Ops whose result represents the parameter: casts of autocast, and views."""


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
        if op.name.rpartition(".")[2] in VALUE_PRESERVING or op.base == "t":
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
