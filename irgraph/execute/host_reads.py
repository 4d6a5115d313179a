"""Matches the host's reads of two steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import torch
from msgspec import Struct

from irgraph.execute.records import Result
from irgraph.execute.torch_values import Torch

Reads = Sequence[tuple[str, Torch]]
"""Names and values of the host's reads, in order."""


class ReadPair(Struct, frozen=True):
    """All reads of one tensor of the first step, and the matching reads of the second.

    Attributes:
        name: in the first step.
        other: in the second step, at the first of these reads.
        first, second: the values, in order.
    """

    name: str
    other: str
    first: Result
    second: Result


def pair_reads(first: Result, second: Result) -> list[ReadPair]:
    """Return the tensors whose reads in the first step all match a read in the second.

    A tensor with the same number of reads in both steps is matched by name. All other reads are
    matched in order, since a rewrite may replace the tensor that the host reads.
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
    """Yield matching reads of both steps."""
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
