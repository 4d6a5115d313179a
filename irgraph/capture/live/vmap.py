"""Refuses ``vmap`` in captured steps: the observer sees what it batches as if for one sample."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

VMAP = "vmap is not captured: its calls are recorded as if for one sample"
_NESTING = "vmap_increment_nesting"


class VmapCalledError(NotImplementedError):
    """The step calls ``torch.vmap``, itself or through a Jacobian or Hessian."""

    def __init__(self) -> None:
        super().__init__(VMAP)


@contextlib.contextmanager
def without_vmap() -> Iterator[None]:
    """Let ``torch.vmap``, and what is built on it, raise ``VmapCalledError`` while it lasts."""
    from torch._functorch import vmap

    def refuse(*_: object, **__: object) -> None:
        raise VmapCalledError

    kept = getattr(vmap, _NESTING, None)
    if kept is not None:
        setattr(vmap, _NESTING, refuse)
    try:
        yield
    finally:
        if kept is not None:
            setattr(vmap, _NESTING, kept)


def refuse_old_vmap() -> None:
    """Raise ``VmapCalledError`` within torch's older vmap, as ``is_grads_batched`` uses it."""
    import torch

    if torch._C._dispatch_tls_is_dispatch_key_included("VmapMode"):
        raise VmapCalledError
