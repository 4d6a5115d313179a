"""Modules that move while a step is recorded: parameters exchange their memory with new tensors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock
from weakref import ref

from irgraph.capture.common.torch_object import Torch
from irgraph.capture.live.device_calls.recorder import Recording


@contextlib.contextmanager
def recorded_swaps(recording: Recording) -> Iterator[None]:
    """Transfer the numbers of tensors that ``torch.utils.swap_tensors`` exchanges.

    torch refuses tensors with weak references, and the recording identifies tensors by them.
    """
    import torch

    original = torch.utils.swap_tensors

    def swap(first: Torch, second: Torch) -> None:
        entries = [recording.seen.pop(int(t._cdata), None) for t in (first, second)]
        numbers = [_number(entry, t) for entry, t in zip(entries, (first, second), strict=True)]
        entries.clear()
        original(first, second)
        for tensor, number in zip((second, first), numbers, strict=True):
            if number is not None:
                recording.seen[int(tensor._cdata)] = (ref(tensor), number)

    with mock.patch.object(torch.utils, "swap_tensors", swap):
        yield


def _number(entry: tuple[Any, int] | None, tensor: Torch) -> int | None:
    """Return the number of a tensor in its entry, ``None`` if another tensor had its address."""
    is_same = entry is not None and entry[0]() is tensor
    return entry[1] if entry is not None and is_same else None
