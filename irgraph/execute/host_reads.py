"""What the host reads of two steps: which read of the second is which of the first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import torch
from msgspec import Struct

from irgraph.execute.records import Result
from irgraph.execute.torch_values import Torch

Reads = Sequence[tuple[str, Torch]]
"""Names and values that the host read, one after the other."""


class ReadPair(Struct, frozen=True):
    """All reads of one tensor of the first step, beside those that they are in the second.

    Attributes:
        name: in the first step.
        other: in the second step, at the first of these reads.
        first, second: the values, one after the other.
    """

    name: str
    other: str
    first: Result
    second: Result


def paired(first: Result, second: Result) -> list[ReadPair]:
    """Return the tensors of which each read of the first step is one of the second.

    A tensor that both steps read as often is the same under its name; all other reads are the same
    in their order, since a rewrite may let the host read one tensor in the place of another.
    """
    times, others = (Counter(name for name, _ in result.read) for result in (first, second))
    named = {name for name in times if times[name] == others[name]}
    found: dict[str, list[tuple[str, Torch, Torch]]] = {}
    for (name, a), (other, b) in _in_order(first.read, second.read, named):
        found.setdefault(name, []).append((other, a, b))
    return [
        ReadPair(
            name,
            pairs[0][0],
            Result({name: torch.stack([a for _, a, _ in pairs])}, {}),
            Result({pairs[0][0]: torch.stack([b for _, _, b in pairs])}, {}),
        )
        for name, pairs in found.items()
        if len(pairs) == times[name]
    ]


def _in_order(
    first: Reads, second: Reads, named: set[str]
) -> Iterator[tuple[tuple[str, Torch], tuple[str, Torch]]]:
    """Yield reads of both steps that are one."""
    left = list(second)
    for name, value in first:
        at = next(
            (
                place
                for place, (other, each) in enumerate(left)
                if (other == name if name in named else other not in named and _alike(each, value))
            ),
            None,
        )
        if at is not None:
            yield (name, value), left.pop(at)


def _alike(a: Torch, b: Torch) -> bool:
    return bool(a.shape == b.shape and a.dtype == b.dtype)
