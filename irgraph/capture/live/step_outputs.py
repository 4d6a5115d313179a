"""What a step leaves for its caller: what it returns, and new tensors in objects that it reaches.

A module that keeps its hidden state, or a list of losses that the step appends to, shows its caller
what the step made just as a returned value does.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

from irgraph.capture.common.torch_object import Torch
from irgraph.capture.live.discover import DEPTH, named_members

DEEPEST = 16
"""How many objects deep to look into what a step returns."""

NESTED = 4
"""How deep an optimizer's state may hold tensors: by parameter, by name, in lists."""

REGISTERED = ("_parameters", "_buffers", "_modules")
"""Attributes of a module that hold what it registered."""


def returned_tensors(made: object) -> list[Torch]:
    """Return the tensors in what a step returned, in order, whatever objects hold them."""
    return list(_tensors(made, DEEPEST, set(), alone=True))


def reachable_tensors(step: object, model: Torch) -> list[Torch]:
    """Return the tensors that a step's closure, its object and its model's attributes hold."""
    seen: set[int] = set()
    found = list(_tensors(step, DEPTH, seen))
    for module in model.modules() if model is not None else ():
        found += _attributes(module, DEPTH, seen)
    return found


def _tensors(value: Torch, depth: int, seen: set[int], *, alone: bool = False) -> Iterator[Torch]:
    """Yield the tensors below a value; ``alone`` without those that functions reach."""
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
        yield from () if alone else _attributes(value, depth, seen)
    elif isinstance(value, torch.optim.Optimizer):
        if not alone:
            yield from _tensors(list(value.state.values()), NESTED, seen)
    elif depth and not (alone and callable(value)):
        for inner in named_members(value).values():
            yield from _tensors(inner, depth - 1, seen, alone=alone)


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
