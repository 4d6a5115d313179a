"""A step made of a module and example inputs: forward, and with a loss backward and an update."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from irgraph.diagnostics import fail

Torch: TypeAlias = Any
"""An object of torch's: a tensor, a module, an optimizer."""

Inputs: TypeAlias = "Torch | Sequence[Torch] | Mapping[str, Torch]"
"""What a module is called with: one argument, several, or several by name."""


class ModuleStep:
    """Calls a copy of a module on the device with inputs that lie on the host.

    Attributes:
        model: the copy; the caller's module stays as it is.
    """

    def __init__(
        self,
        module: Torch,
        inputs: Inputs,
        loss: Callable[[Torch], Torch] | None,
        optimizer: Callable[[Torch], Torch] | None,
        device: str,
    ) -> None:
        self.model = copy.deepcopy(module).to(device)
        self._inputs, self._loss, self._device = inputs, loss, device
        self._optimizer = optimizer(self.model.parameters()) if optimizer else None

    def __call__(self) -> Torch:
        """Make a step; return what the module made, or the loss."""
        if self._optimizer is not None:
            self._optimizer.zero_grad()
        given = _each(self._inputs, lambda tensor: tensor.to(self._device))
        if isinstance(given, Mapping):
            made = self.model(**given)
        else:
            made = self.model(*given) if isinstance(given, (list, tuple)) else self.model(given)
        if self._loss is None:
            return made
        loss = self._loss(made)
        loss.backward()
        if self._optimizer is not None:
            self._optimizer.step()
        return loss.detach()


def batch_of(inputs: Inputs) -> int:
    """Return the size that all inputs have along their first axis, 0 if there is none."""
    sizes: set[int] = set()
    _each(inputs, lambda tensor: sizes.add(tensor.shape[0] if tensor.dim() else 0))
    return sizes.pop() if len(sizes) == 1 else 0


def of_batch(inputs: Inputs, size: int) -> Inputs:
    """Return inputs of another size along their first axis: the first ones, or repeated."""

    def cut(tensor: Torch) -> Torch:
        times = -(-size // max(tensor.shape[0], 1))
        return tensor.repeat(times, *[1] * (tensor.dim() - 1))[:size]

    return _each(inputs, cut)


def refuse_without_inputs(step: object, loss: object, optimizer: object) -> None:
    """Raise ``IrgraphError`` for a module, a loss or an optimizer without example inputs."""
    import torch

    if loss is not None or optimizer is not None or isinstance(step, torch.nn.Module):
        hint = "give what the module is called with: capture(module, (x,), loss=…, optimizer=…)"
        raise fail("a module is captured with example inputs", hint=hint, exit_code=2)


def _each(inputs: Inputs, change: Callable[[Torch], Torch]) -> Inputs:
    import torch

    if isinstance(inputs, Mapping):
        return {name: _each(value, change) for name, value in inputs.items()}
    if isinstance(inputs, (list, tuple)):
        return tuple(_each(value, change) for value in inputs)
    return change(inputs) if isinstance(inputs, torch.Tensor) else inputs
