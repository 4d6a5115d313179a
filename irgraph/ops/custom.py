"""Declarations of ops that torch lacks: all that irgraph reads of such an op."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import cache
from importlib import import_module
from typing import Any

from irgraph.ir.schema import parse_schema
from irgraph.ir.torch_schemas.custom_ops import CustomOp, DifferentiatedCall, Gradient
from irgraph.ops.operator import Flops, Operator, Trait
from irgraph.ops.patterns import Rule

Function = Callable[..., Any]
"""A function of torch's values."""


def custom_operator(
    schema: str,
    rule: Rule,
    reference: Function,
    *,
    backward: Gradient | None = None,
    types: Function | None = None,
    tolerance: float = 0.0,
    counted: bool = False,
    text: str = "",
    flops: Flops | None = None,
    traits: Collection[Trait] = (),
) -> dict[str, Operator]:
    """Return the declaration of an op that torch lacks, by its name.

    Args:
        schema: in torch's notation.
        rule: returns the meaning of a call.
        reference: computes the results with torch; its parameters have the schema's names.
        backward: returns the gradients, see ``gradient_op``.
        types: returns results of the right types on torch's meta device; not needed if the
            reference does, since it reads no elements.
        tolerance: largest difference by rounding inside the op, relative to the largest element.
        counted: whether the host computes arguments that differ from step to step.
        text: the declaration as text, if it depends on tensors alone.
        flops: returns the floating-point operations of a call.
        traits: its properties by which other packages choose it.
    """
    custom = CustomOp(schema, reference, backward, types, tolerance, counted)
    operator = Operator(custom.name, rule, text, flops, custom, frozenset(traits))
    return {custom.name: operator}


def deferred(module: str, name: str) -> Function:
    """Return a function of a module in ``references``, which is imported by the first call."""

    def call(**arguments: Any) -> Any:  # noqa: ANN401  (torch's values)
        return _load(module, name)(**arguments)

    call.__name__ = name
    return call


@cache
def _load(module: str, name: str) -> Function:
    function: Function = getattr(import_module(f"irgraph.ops.references.{module}"), name)
    return function


def gradient_op(schema: str) -> Gradient:
    """Return the gradient that another declared op computes, given its schema.

    It takes the gradients of the results, the tensors of the call and its keywords, and returns
    the gradient of each tensor.
    """
    parsed = parse_schema(schema)
    library, _, base = parsed.name.partition(".")

    def backward(call: DifferentiatedCall) -> dict[str, Any]:
        import torch

        tensors: dict[str, Any] = {}
        keywords: dict[str, Any] = {}
        for name, value in call.arguments.items():
            is_tensor = isinstance(value, torch.Tensor)
            arguments = tensors if is_tensor else keywords
            arguments[name] = value
        compute = getattr(getattr(torch.ops, library), base)
        gradients = compute(*call.grads, *tensors.values(), **keywords)
        if not isinstance(gradients, Sequence):
            gradients = (gradients,)
        return dict(zip(tensors, gradients, strict=True))

    return backward
