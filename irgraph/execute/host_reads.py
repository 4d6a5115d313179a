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


def pair_reads(first: Result, second: Result) -> list[ReadPair]:
    """Return the tensors of which each read of the first step is one of the second.

    A tensor that both steps read as often is the same under its name; all other reads are the same
    in their order, since a rewrite may let the host read one tensor in the place of another.
    """
    counts, other_counts = (Counter(name for name, _ in result.read) for result in (first, second))
    equal_counts = {name for name in counts if counts[name] == other_counts[name]}
    pairs_by_name: dict[str, list[tuple[str, Torch, Torch]]] = {}
    for (name, a), (other, b) in _match_reads(first.read, second.read, equal_counts):
        pairs_by_name.setdefault(name, []).append((other, a, b))
    return [
        ReadPair(
            name,
            pairs[0][0],
            Result({name: torch.stack([a for _, a, _ in pairs])}, {}),
            Result({pairs[0][0]: torch.stack([b for _, _, b in pairs])}, {}),
        )
        for name, pairs in pairs_by_name.items()
        if len(pairs) == counts[name]
    ]


def _match_reads(
    first: Reads, second: Reads, equal_counts: set[str]
) -> Iterator[tuple[tuple[str, Torch], tuple[str, Torch]]]:
    """Yield reads of both steps that are one."""
    remaining = list(second)
    for name, value in first:
        index = next(
            (
                position
                for position, (other, other_value) in enumerate(remaining)
                if (
                    other == name
                    if name in equal_counts
                    else other not in equal_counts and _same_type(other_value, value)
                )
            ),
            None,
        )
        if index is not None:
            yield (name, value), remaining.pop(index)


def _same_type(a: Torch, b: Torch) -> bool:
    return bool(a.shape == b.shape and a.dtype == b.dtype)
