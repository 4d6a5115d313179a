"""Batches of another size: the first rows of a batch, or its rows again and again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from irgraph.capture.emulate.fallbacks import Torch


def length_of(batch: object) -> int:
    """Return the length of a batch's first tensor along its first axis, 0 if it holds none."""
    import torch

    if isinstance(batch, torch.Tensor):
        return int(batch.shape[0]) if batch.dim() else 0
    if not isinstance(batch, (Mapping, list, tuple)):
        return 0
    inner = batch.values() if isinstance(batch, Mapping) else batch
    return next((size for part in inner if (size := length_of(part))), 0)


def cut_to(batch: object, size: int) -> object:
    """Return a batch with another number of rows; what is not as long as the batch stays."""
    return _cut(batch, length_of(batch), size)


def _cut(value: Any, rows: int, size: int) -> Any:  # noqa: ANN401
    import torch

    if rows == size:
        return value
    if isinstance(value, torch.Tensor):
        return _tensor(value, size) if value.dim() and value.shape[0] == rows else value
    if isinstance(value, Mapping):
        return type(value)({name: _cut(part, rows, size) for name, part in value.items()})  # type: ignore[call-arg]
    if not isinstance(value, (list, tuple)):
        return value
    if len(value) == rows and not any(isinstance(part, torch.Tensor) for part in value):
        return type(value)((value * -(-size // rows))[:size])
    parts = [_cut(part, rows, size) for part in value]
    return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)


def _tensor(tensor: Torch, size: int) -> Torch:
    times = -(-size // tensor.shape[0])
    rows = tensor.repeat(times, *[1] * (tensor.dim() - 1))[:size].clone()
    return rows.pin_memory() if tensor.is_pinned() else rows
