"""Values for what exists before a step, drawn from a seed and the tensor's name."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence

import torch

from irgraph.execute.ranges import Range, Starts, integer_rules
from irgraph.execute.torch_values import DTYPES, Torch, view_of
from irgraph.ir.graph import Graph
from irgraph.ir.tensor import Tensor


class Drawer:
    """Draws values; equal names get equal values in every graph where they serve alike.

    Parameters lie within plus or minus one over the root of their fan-in, everything else within
    0 and 1 (optimizer state must often not be negative). Integers are 0 or 1, unless an op takes
    them as row numbers, classes or the starts of bags.
    """

    def __init__(self, graph: Graph, seed: int) -> None:
        self._seed = seed
        self._rules: Mapping[str, Sequence[Range | Starts]] = integer_rules(graph)

    def generator(self, *key: object) -> torch.Generator:
        """Return a source of random numbers of its own for a key."""
        return torch.Generator().manual_seed(zlib.crc32(repr((self._seed, *key)).encode()))

    def fill(self, tensor: Tensor, view: Torch, role: str) -> None:
        """Fill a tensor's memory by its role."""
        view.copy_(self._values(tensor, role))

    def obey(self, buffer: str, storage: Torch, shift: int = 0) -> None:
        """Draw anew those integers of a buffer that ops take as row numbers or starts of bags."""
        rules = sorted(self._rules.get(buffer, ()), key=_strictness)
        for number, rule in enumerate(rules):
            source = self.generator(rule.tensor.name, rule.tensor.offset, number)
            shape = tuple(map(int, rule.tensor.shape))
            view = view_of(storage, rule.tensor, shift)
            if isinstance(rule, Range):
                view.copy_(torch.randint(max(rule.below, 1), shape, generator=source))
            else:
                view.copy_(_starts(rule, source))

    def _values(self, tensor: Tensor, role: str) -> Torch:
        shape = tuple(map(int, tensor.shape))
        dtype = DTYPES[tensor.dtype]
        source = self.generator(tensor.name)
        if not (dtype.is_floating_point or dtype.is_complex):
            return torch.randint(2, shape, generator=source)
        values = torch.rand(shape, generator=source)
        if role == "param":
            fan = max(tensor.numel // max(shape[0], 1), 1) if shape else 1
            return values.sub_(0.5).mul_(2 * min(fan**-0.5, 0.5))
        return values


def _strictness(rule: Range | Starts) -> tuple[bool, int]:
    """Order rules so that what a later one draws is also right by the earlier ones."""
    return isinstance(rule, Starts), -rule.below if isinstance(rule, Range) else 0


def _starts(rule: Starts, source: torch.Generator) -> Torch:
    """Draw where bags start; lengths differ, and some bags are empty."""
    count = rule.tensor.numel
    starts, _ = torch.randint(rule.total + 1, (count,), generator=source).sort()
    starts[:1] = 0
    if rule.closed:
        starts[-1:] = rule.total
    return starts.view(tuple(map(int, rule.tensor.shape)))
