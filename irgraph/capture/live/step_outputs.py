"""What a step leaves for its caller: what it returns, and new tensors in objects that it reaches.

A module that keeps its hidden state, or a list of losses that the step appends to, shows its caller
what the step made just as a returned value does.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

from irgraph.capture.common.torch_object import Torch
from irgraph.capture.live.discover import MAX_DEPTH, named_members

MAX_RESULT_DEPTH = 16
"""How many objects deep to look into what a step returns."""

MAX_STATE_DEPTH = 4
"""How deep an optimizer's state may hold tensors: by parameter, by name, in lists."""

REGISTERED = ("_parameters", "_buffers", "_modules")
"""Attributes of a module that hold what it registered."""


def returned_tensors(result: object) -> list[Torch]:
    """Return the tensors in what a step returned, in order, whatever objects hold them."""
    return list(_tensors(result, MAX_RESULT_DEPTH, set(), values_only=True))


def reachable_tensors(step: object, model: Torch) -> list[Torch]:
    """Return the tensors that a step's closure, its object and its model's attributes hold."""
    seen: set[int] = set()
    tensors = list(_tensors(step, MAX_DEPTH, seen))
    for module in model.modules() if model is not None else ():
        tensors += _attributes(module, MAX_DEPTH, seen)
    return tensors


def _tensors(
    value: Torch, depth: int, seen: set[int], *, values_only: bool = False
) -> Iterator[Torch]:
    """Yield the tensors below a value; ``values_only`` without those that functions reach."""
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

    Of those that it registered, the ones count whose memory is new: the step put a tensor in place
    of a buffer, or changed a parameter's ``data``.
    """
    for name, value in vars(module).items():
        if name not in REGISTERED:
            yield from _tensors(value, depth - 1, seen)
    for name in ("_parameters", "_buffers"):
        yield from (t for t in vars(module).get(name, {}).values() if t is not None)
