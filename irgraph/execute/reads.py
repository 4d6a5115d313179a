"""What the host reads of two steps: which read of the second is which of the first."""

from __future__ import annotations

import torch

from irgraph.execute.records import Result
from irgraph.execute.torch_values import Torch


def when_read(result: Result) -> Result:
    """Return the values that the host read of each tensor, one after the other."""
    return Result({name: torch.stack(list(each)) for name, each in result.read.items()}, {})


def paired(first: Result, second: Result) -> dict[str, str]:
    """Return by what name the second step reads what the first reads.

    That is the same name, or else the next in order of those that only the second reads.
    """
    left = [name for name in second.read if name not in first.read]
    found: dict[str, str] = {}
    for name, values in first.read.items():
        if name in second.read:
            found[name] = name
            continue
        other = next((n for n in left if _alike(second.read[n][0], values[0])), None)
        if other is not None:
            left.remove(other)
            found[name] = other
    return found


def _alike(a: Torch, b: Torch) -> bool:
    return bool(a.shape == b.shape and a.dtype == b.dtype)
