"""Registration with torch of ops that it lacks: on the CPU, on meta, and with autograd."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, TypeAlias

from irgraph.ir.schema import Schema, parse_schema
from irgraph.ir.torch_schemas.custom_ops import CustomOp, DifferentiatedCall, custom_ops

Torch: TypeAlias = Any
"""An object of torch's."""


@cache
def register_custom_ops() -> None:
    """Register all declared ops with torch, as ``torch.ops.irgraph.bias_gelu``.

    Ops that a package has registered itself are skipped.
    """
    import torch

    for custom in custom_ops().values():
        library, _, base = custom.torch_name.partition("::")
        if not hasattr(getattr(torch.ops, library), base):
            _register(custom, library, base)


EMPTY_LIST = re.compile(r"\b(Tensor\[\]|str\[\]) (\w+)=\[\]")
"""An argument that torch must read as an optional one: it has no empty lists as defaults here."""

_LIBRARIES: list[Any] = []
"""References that prevent the registrations from being freed."""


def _register(custom: CustomOp, library_name: str, base: str) -> None:
    import torch

    library = torch.library.Library(library_name, "FRAGMENT")
    _LIBRARIES.append(library)
    schema = parse_schema(custom.schema)
    library.define(EMPTY_LIST.sub(r"\1? \2=None", custom.schema.partition("::")[2]))
    reference = _by_name(schema, custom.reference)
    if any(argument.is_tensor for argument in schema.arguments):
        library.impl(base, reference, "CPU")
        library.impl(base, _by_name(schema, custom.types or custom.reference), "Meta")
    else:
        # no tensor has a device by which torch could choose a kernel
        library.impl(base, reference, "CompositeExplicitAutograd")
    if custom.backward is not None:
        library.impl(base, _autograd_kernel(custom, schema), "Autograd")


def _by_name(schema: Schema, function: Callable[..., Torch]) -> Callable[..., Torch]:
    """Return a function that passes all arguments on by the schema's names."""

    def call(*positional: Torch, **keywords: Torch) -> Torch:
        return function(**_arguments(schema, positional, keywords))

    return call


def _arguments(
    schema: Schema, positional: Sequence[Torch], keywords: Mapping[str, Torch]
) -> dict[str, Torch]:
    names = (argument.name for argument in schema.arguments)
    arguments = {**dict(zip(names, positional, strict=False)), **keywords}
    empty = {argument.name for argument in schema.arguments if argument.default == "[]"}
    return {n: value for n, value in arguments.items() if value is not None or n not in empty}


def _autograd_kernel(custom: CustomOp, schema: Schema) -> Callable[..., Torch]:
    """Return the autograd kernel of an op; its node has the op's name."""
    import torch

    backward = custom.backward
    assert backward is not None

    def forward(ctx: Any, arguments: Mapping[str, Torch], *_: Torch) -> Torch:  # noqa: ANN401
        with torch._C._AutoDispatchBelowAutograd():
            results = _call(custom, schema, arguments)
        flat = results if isinstance(results, (tuple, list)) else (results,)
        ctx.mark_non_differentiable(*(r for r in flat if not r.is_floating_point()))
        ctx.set_materialize_grads(False)
        # autograd frees saved tensors, and refuses tensors that were written since
        tensors = [value for _, _, value in _tensors(arguments)]
        ctx.save_for_backward(*tensors, *flat)
        ctx.arguments = _without_tensors(arguments)
        return results if not isinstance(results, list) else tuple(results)

    def gradients(ctx: Any, *grads: Torch) -> tuple[Torch, ...]:  # noqa: ANN401
        saved = list(ctx.saved_tensors)
        arguments = _with_tensors(ctx.arguments, saved)
        results = saved[len(saved) - len(grads) :]
        needs: dict[str, list[int]] = {}
        flat = list(_tensors(arguments))
        for needed, (name, index, _) in zip(ctx.needs_input_grad[1:], flat, strict=True):
            if needed:
                needs.setdefault(name, []).append(index)
        by_name = backward(DifferentiatedCall(arguments, results, grads, needs))
        return None, *(_gradient(by_name.get(name), index) for name, index, _ in flat)

    base = custom.torch_name.partition("::")[2]
    title = "".join(map(str.capitalize, base.split("_")))
    methods = {"forward": staticmethod(forward), "backward": staticmethod(gradients)}
    node: Any = type(title, (torch.autograd.Function,), methods)
    has_list = schema.returns[0].is_list

    def call(*positional: Torch, **keywords: Torch) -> Torch:
        arguments = _arguments(schema, positional, keywords)
        # tensors are passed on singly: autograd looks for them among the arguments only
        results = node.apply(arguments, *(value for _, _, value in _tensors(arguments)))
        return list(results) if has_list else results

    return call


def _call(custom: CustomOp, schema: Schema, arguments: Mapping[str, Torch]) -> Torch:
    """Call the registered op."""
    import torch

    library, _, base = custom.torch_name.partition("::")
    keywords = dict(arguments)
    positional = []
    for argument in schema.arguments:
        if argument.keyword or argument.name not in keywords:
            break
        positional.append(keywords.pop(argument.name))
    return getattr(getattr(torch.ops, library), base)(*positional, **keywords)


def _tensors(arguments: Mapping[str, Torch]) -> Iterator[tuple[str, int, Torch]]:
    """Yield each tensor among the arguments with the argument's name, and its index in a list."""
    import torch

    for name, value in arguments.items():
        for index, item in enumerate(value if isinstance(value, (list, tuple)) else (value,)):
            if isinstance(item, torch.Tensor):
                yield name, index, item


class _Slot:
    """Placeholder of a saved tensor."""


def _without_tensors(arguments: Mapping[str, Torch]) -> dict[str, Torch]:
    """Return arguments with a placeholder for each tensor."""
    import torch

    def emptied(value: Torch) -> Torch:
        if isinstance(value, (list, tuple)):
            return [emptied(item) for item in value]
        return _Slot() if isinstance(value, torch.Tensor) else value

    return {name: emptied(value) for name, value in arguments.items()}


def _with_tensors(arguments: Mapping[str, Torch], saved: Sequence[Torch]) -> dict[str, Torch]:
    """Return arguments with placeholders replaced by the saved tensors, in order."""
    tensors = iter(saved)

    def filled(value: Torch) -> Torch:
        if isinstance(value, list):
            return [filled(item) for item in value]
        return next(tensors) if isinstance(value, _Slot) else value

    return {name: filled(value) for name, value in arguments.items()}


def _gradient(value: Torch, index: int) -> Torch:
    """Return the gradient of one tensor, given its argument's gradient."""
    return value[index] if isinstance(value, (list, tuple)) else value
