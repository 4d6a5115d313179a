"""Support for ``torch.func``, which wraps tensors once for each transformation.

Gradients are captured, as calls on the wrapped tensors. ``vmap`` is refused, since the observer
records its calls as if for one sample, and so are derivatives in forward mode.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from unittest import mock

VMAP = "vmap is not captured: its calls are recorded as if for one sample"
FORWARD = "derivatives in forward mode are not captured: their tensors hold two values each"
_NESTING = "vmap_increment_nesting"
_GRADIENT = "_grad_increment_nesting"
_FORWARD = "jvp_increment_nesting"


class VmapCalledError(NotImplementedError):
    """Raised if the step calls ``torch.vmap``, itself or through a Jacobian or Hessian."""

    def __init__(self) -> None:
        super().__init__(VMAP)


class ForwardCalledError(NotImplementedError):
    """Raised if the step computes derivatives in forward mode: ``torch.func.jvp``, dual numbers."""

    def __init__(self) -> None:
        super().__init__(FORWARD)


@contextlib.contextmanager
def without_vmap() -> Iterator[None]:
    """Refuse ``torch.vmap`` and forward mode within the context, each with its own error.

    Gradients by ``torch.func`` mark the recording as one with wrapped tensors.
    """
    from torch._functorch import eager_transforms, vmap
    from torch.autograd import forward_ad

    def refuse(*_: object, **__: object) -> None:
        raise VmapCalledError

    def refuse_forward(*_: object, **__: object) -> None:
        raise ForwardCalledError

    increment_nesting = getattr(eager_transforms, _GRADIENT)

    def note_and_nest(*arguments: object) -> object:
        _note_wrapping()
        return increment_nesting(*arguments)

    with contextlib.ExitStack() as stack:
        for owner, name, value in (
            (vmap, _NESTING, refuse),
            (eager_transforms, _FORWARD, refuse_forward),
            (forward_ad, "enter_dual_level", refuse_forward),
            (eager_transforms, _GRADIENT, note_and_nest),
        ):
            if hasattr(owner, name):
                stack.enter_context(mock.patch.object(owner, name, value))
        yield


def _note_wrapping() -> None:
    """Mark the recording of this step as one with tensors that wrap others."""
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    for mode in _get_current_dispatch_mode_stack():
        recording = getattr(mode, "recording", None)
        if recording is not None:
            recording.wrapping = True


def refuse_old_vmap() -> None:
    """Raise ``VmapCalledError`` within torch's older vmap, as ``is_grads_batched`` uses it."""
    import torch

    if torch._C._dispatch_tls_is_dispatch_key_included("VmapMode"):
        raise VmapCalledError
