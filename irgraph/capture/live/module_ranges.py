"""Ranges around the calls of a model's modules, and names of its parameters and buffers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from irgraph.capture.common.lowering import MODULE
from irgraph.capture.common.torch_object import Torch


@contextlib.contextmanager
def module_ranges(model: Torch) -> Iterator[None]:
    """Mark every call of a submodule within the context by a range with the submodule's path."""
    from torch.autograd.profiler import record_function

    open_ranges: list[Any] = []

    def enter(path: str) -> Callable[..., None]:
        def hook(*_: Torch) -> None:
            mark = record_function(MODULE + path)
            mark.__enter__()
            open_ranges.append(mark)

        return hook

    def leave(*_: Torch) -> None:
        open_ranges.pop().__exit__(None, None, None)

    hooks = []
    for path, module in model.named_modules() if model is not None else ():
        if path:
            hooks.append(module.register_forward_pre_hook(enter(path)))
            hooks.append(module.register_forward_hook(leave, always_call=True))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def hints_of(model: Torch) -> dict[int, tuple[str, str]]:
    """Return the role and label of each parameter, gradient and buffer, by storage address."""
    hints: dict[int, tuple[str, str]] = {}
    if model is None:
        return hints
    for name, buffer in model.named_buffers():
        hints[_storage_address(buffer)] = ("state", name)
    for name, parameter in model.named_parameters():
        hints[_storage_address(parameter)] = ("param", name)
        if parameter.grad is not None and not parameter.grad.is_sparse:
            hints[_storage_address(parameter.grad)] = ("state", f"{name}.grad")
    return hints


def _storage_address(tensor: Torch) -> int:
    """Return the address of a tensor's storage, or of this rank's part of a distributed tensor."""
    local: Torch = getattr(tensor, "_local_tensor", tensor)
    return int(local.untyped_storage()._cdata)
