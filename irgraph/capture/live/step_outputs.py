"""Output tensors of a step: returned tensors, and new tensors in objects that the step reaches.

A module with a hidden state, or a list to which the step appends losses, passes tensors to the
step's caller just as a returned value does.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

from irgraph.capture.common.torch_object import Torch
from irgraph.capture.live.discover import MAX_DEPTH, named_members

MAX_RESULT_DEPTH = 16
"""Maximum depth of objects that are searched in the result of a step."""

MAX_STATE_DEPTH = 4
"""Maximum depth of tensors in an optimizer's state: by parameter, by name, in lists."""

REGISTERED = ("_parameters", "_buffers", "_modules")
"""Attributes of a module with its registered parameters, buffers and modules."""


def returned_tensors(result: object) -> list[Torch]:
    """Return the tensors in the result of a step, in order, including those in nested objects."""
    return list(_tensors(result, MAX_RESULT_DEPTH, set(), values_only=True))


def reachable_tensors(step: object, model: Torch) -> list[Torch]:
    """Return the tensors in a step's closure, its object and its model's attributes."""
    seen: set[int] = set()
    tensors = list(_tensors(step, MAX_DEPTH, seen))
    for module in model.modules() if model is not None else ():
        tensors += _attributes(module, MAX_DEPTH, seen)
    return tensors


def _tensors(
    value: Torch, depth: int, seen: set[int], *, values_only: bool = False
) -> Iterator[Torch]:
    """Yield the tensors below a value.

    With ``values_only``, those that modules, optimizers and functions reach are omitted.
    """
    import torch

    if isinstance(value, torch.Tensor):
        jagged = value.is_nested and hasattr(value, "__tensor_flatten__")
        names = value.__tensor_flatten__()[0] if jagged else ()
        yield from (getattr(value, name) for name in names) if jagged else (value,)
        return
    if id(value) in seen or isinstance(value, (type, ModuleType, str, int, float)):
        return
    seen.add(id(value))
    if isinstance(value, torch.nn.Module):
        yield from () if values_only else _attributes(value, depth, seen)
    elif isinstance(value, torch.optim.Optimizer):
        if not values_only:
            yield from _tensors(list(value.state.values()), MAX_STATE_DEPTH, seen)
    elif depth and not (values_only and callable(value)):
        for inner in named_members(value).values():
            yield from _tensors(inner, depth - 1, seen, values_only=values_only)


def _attributes(module: Torch, depth: int, seen: set[int]) -> Iterator[Torch]:
    """Yield the tensors among a module's attributes.

    Registered tensors are included, since the step may have replaced a buffer or changed a
    parameter's ``data``; they count if their memory is new.
    """
    for name, value in vars(module).items():
        if name not in REGISTERED:
            yield from _tensors(value, depth - 1, seen)
    for name in ("_parameters", "_buffers"):
        yield from (t for t in vars(module).get(name, {}).values() if t is not None)
