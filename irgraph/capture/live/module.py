"""A step of a module with example inputs: forward, and with a loss backward and an update."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from irgraph.capture.common.torch_object import Torch
from irgraph.capture.live.batches import lengths_of
from irgraph.diagnostics import fail

Inputs: TypeAlias = "Torch | Sequence[Torch] | Mapping[str, Torch]"
"""Arguments of a module: one, several, or several by name."""


class ModuleStep:
    """Calls a copy of a module on the device with inputs from the host.

    Attributes:
        model: the copy; the caller's module stays unchanged.
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
        """Run a step; return the module's result, or the loss if there is one."""
        if self._optimizer is not None:
            self._optimizer.zero_grad()
        inputs = _move_to(self._inputs, self._device)
        if isinstance(inputs, Mapping):
            outputs = self.model(**inputs)
        else:
            is_sequence = isinstance(inputs, (list, tuple)) and not hasattr(inputs, "to")
            outputs = self.model(*inputs) if is_sequence else self.model(inputs)
        if self._loss is None:
            return outputs
        loss = self._loss(outputs)
        loss.backward()
        if self._optimizer is not None:
            self._optimizer.step()
        return loss.detach()


def batch_of(inputs: Inputs) -> int:
    """Return the common size of all inputs along their first axis, 0 if there is none."""
    sizes = set(lengths_of(inputs))
    return sizes.pop() if len(sizes) == 1 else 0


def refuse_without_inputs(step: object, loss: object, optimizer: object) -> None:
    """Raise ``IrgraphError`` for a module, a loss or an optimizer without example inputs."""
    import torch

    if loss is not None or optimizer is not None or isinstance(step, torch.nn.Module):
        hint = "give what the module is called with: capture(module, (x,), loss=…, optimizer=…)"
        raise fail("a module is captured with example inputs", hint=hint, exit_code=2)


def _move_to(inputs: Inputs, device: str) -> Inputs:
    """Return inputs with their tensors and packed sequences moved to a device."""
    if hasattr(inputs, "to"):
        return inputs.to(device)
    if isinstance(inputs, Mapping):
        return {name: _move_to(value, device) for name, value in inputs.items()}
    if isinstance(inputs, (list, tuple)):
        return tuple(_move_to(value, device) for value in inputs)
    return inputs
